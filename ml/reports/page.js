// Two conveniences; the page is complete without them: a trial lights up everywhere, columns sort.
const light = (event, on) => {
  const mark = event.target.closest("[data-t]");
  if (mark) for (const one of document.querySelectorAll(`[data-t="${mark.dataset.t}"]`)) one.classList.toggle("lit", on);
};
document.addEventListener("mouseover", (event) => light(event, true));
document.addEventListener("mouseout", (event) => light(event, false));
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, at) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const key = (row) => row.cells[at].title || row.cells[at].textContent;
      const number = (text) => Number(text.replaceAll(",", "").replaceAll("−", "-").replace(/ s$/, "") || NaN);
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)], [x, y] = [number(a), number(b)];
        const order = Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b) : x - y;
        return up ? order : -order;
      });
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
