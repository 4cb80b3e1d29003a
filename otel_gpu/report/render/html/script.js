"use strict";
// The page is complete without this: it sorts tables, and opens what a link or a printer needs.

const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
}

function sort(table, column, button) {
  const heading = button.parentElement;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  // Figures begin with the largest, names with the first.
  const isText = heading.classList.contains("text") && rows.length > 0
    && typeof valueOf(rows[0], column) === "string";
  const before = heading.getAttribute("aria-sort");
  const first = isText ? "ascending" : "descending";
  const order = before === first ? (isText ? "descending" : "ascending") : first;
  const sign = order === "ascending" ? 1 : -1;
  rows.sort((a, b) => sign * compare(valueOf(a, column), valueOf(b, column)));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => sort(table, column, button));
    heading.replaceChildren(button);
  });
}

function reveal() {
  const id = decodeURIComponent(location.hash.slice(1));
  const target = id && document.getElementById(id);
  if (!target) return;
  for (let at = target; at; at = at.parentElement) {
    if (at instanceof HTMLDetailsElement) at.open = true;
  }
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

// Paper cannot be clicked.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of closed) one.open = false;
});
