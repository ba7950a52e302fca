// The node map of a large job. Neighbouring hosts whose ranks are in the same states share one row.

import { h, keyed, number, setClass, setText } from "./dom.js";
import { LEVEL, STATUSES, statusOf, wordOf } from "./status.js";

const ROWS = 256; // hosts whose ranks differ come first

// `open(range)` is called with the range of a row that is selected.
export function makeRanges(open) {
  const rows = h("div", { class: "ranges", id: "ranges", role: "list", "aria-label": "Ranks by host" });
  const more = h("p", { class: "quiet", hidden: true });
  const node = h("div", {}, rows, more);

  // Returns the number of hosts, and the names of rows whose ranks differ.
  function update(ranges, canOpen) {
    keyed(rows, ranges.slice(0, ROWS), (one) => `${one.first} ${one.ranks}`, makeRow, (row, one) => fillRow(row, one, canOpen));
    const left = ranges.slice(ROWS);
    more.hidden = !left.length;
    if (left.length) setText(more, `${number(sum(left.map((one) => one.hosts)))} more hosts: ${statesText(left)}.`);
    const odd = ranges.filter((one) => Object.keys(one.states).some((state) => placeOf(state) < LEVEL));
    return { hosts: sum(ranges.map((one) => one.hosts)), odd: odd.map(rangeText) };
  }

  function makeRow() {
    return h("div", { role: "listitem" }, h("button", { type: "button", "data-item": "" },
      h("span", { class: "name" }), h("span", { class: "cells" }), h("span", { class: "quiet" })));
  }

  function fillRow(row, one, canOpen) {
    const button = row.firstChild;
    button.onclick = () => open(one);
    button.disabled = !canOpen;
    const [name, cells, text] = button.children;
    setText(name, rangeText(one));
    name.title = rangeText(one);
    keyed(cells, Object.entries(one.states), ([state]) => state, () => h("i"), (cell, [state, count]) => {
      setClass(cell, `sw-${statusOf(state)}`);
      cell.style.flexGrow = String(count);
    });
    setText(text, `${one.hosts > 1 ? `${number(one.hosts)} hosts: ` : ""}${statesText([one])}`);
  }

  return { node, update, focus: () => rows.querySelector("button")?.focus() };
}

// Counts the ranks by status and word, worst first: [status, word, count].
export function tallyOf(ranges) {
  const found = new Map();
  for (const { states } of ranges) {
    for (const [state, count] of Object.entries(states)) found.set(state, (found.get(state) ?? 0) + count);
  }
  return [...found].sort(([a], [b]) => placeOf(a) - placeOf(b)).map(([state, count]) => [statusOf(state), wordOf(state), count]);
}

export function rangeText({ first, last, hosts }) {
  if (!first && hosts === 1) return "host not known";
  return hosts === 1 ? first : `${first || "?"} to ${last || "?"}`;
}

function placeOf(state) {
  return STATUSES.findIndex(([name]) => name === statusOf(state));
}

function statesText(ranges) {
  return tallyOf(ranges).map(([, word, count]) => `${number(count)} ${word}`).join(", ");
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}
