// A trial is highlighted in every chart, and columns sort. The page is complete without both.
const highlight = (event, on) => {
  const mark = event.target.closest("[data-t]");
  const same = mark ? mark.closest("section").querySelectorAll(`[data-t="${mark.dataset.t}"]`) : [];
  for (const element of same) element.classList.toggle("lit", on);
};
document.addEventListener("mouseover", (event) => highlight(event, true));
document.addEventListener("mouseout", (event) => highlight(event, false));
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, at) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      // The tooltip of a rounded number has all its digits.
      const number = (cell) => [cell.title, cell.textContent].map((text) => parseFloat(text)).find(Number.isFinite);
      const compare = (left, right) => {
        const [a, b] = [left.cells[at], right.cells[at]], [x, y] = [number(a), number(b)];
        if (x !== undefined && y !== undefined) return x - y;
        return (x === undefined) - (y === undefined) || a.textContent.localeCompare(b.textContent);
      };
      const rows = [...table.tBodies[0].rows].sort((left, right) => (up ? 1 : -1) * compare(left, right));
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
