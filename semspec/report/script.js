"use strict";
/* Comfort only: without it everything is there. Tables of jobs are sorted by their headings. */
for (const table of document.querySelectorAll("table.jobs")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => {
        const text = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
      };
      const order = (a, b) =>
        typeof a === "number" && typeof b === "number" ? a - b
          : typeof a === typeof b ? String(a).localeCompare(String(b), "en", { numeric: true })
          : typeof a === "number" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => order(value(a), value(b)) * (up ? 1 : -1));
      body.append(...rows);
    });
  });
}
