// Two conveniences; the page is complete without them: a trial lights up everywhere, columns sort.
const light = (event, on) => {
  const mark = event.target.closest("[data-t]");
  const same = mark ? mark.closest("section").querySelectorAll(`[data-t="${mark.dataset.t}"]`) : [];
  for (const one of same) one.classList.toggle("lit", on);
};
document.addEventListener("mouseover", (event) => light(event, true));
document.addEventListener("mouseout", (event) => light(event, false));
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, at) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      // The title of a rounded number is all of it.
      const number = (cell) => [cell.title, cell.textContent].map((text) => parseFloat(text)).find(Number.isFinite);
      const compare = (one, other) => {
        const [a, b] = [one.cells[at], other.cells[at]], [x, y] = [number(a), number(b)];
        if (x !== undefined && y !== undefined) return x - y;
        return (x === undefined) - (y === undefined) || a.textContent.localeCompare(b.textContent);
      };
      const rows = [...table.tBodies[0].rows].sort((one, other) => (up ? 1 : -1) * compare(one, other));
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
