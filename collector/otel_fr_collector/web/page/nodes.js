// The node map: one row for each host, one cell for each rank.

import { h, keyed, number, setClass, setText } from "./dom.js";
import { LEVEL, STATUSES, describe, outliers, tally } from "./status.js";

const NUMBERED = 64; // ranks up to which the cells show their numbers
const HOSTS = 256; // rows; hosts whose ranks differ come first

// `pick(ranks)` is called with the rank of a cell that is selected.
export function makeNodes(pick) {
  let job = null;
  let judged = null;
  let picked = new Set();
  let at = null; // the rank under the keyboard's cursor

  const map = h("div", {
    class: "nodes", id: "nodes", role: "grid", "aria-label": "Ranks by host", "aria-multiselectable": "true", onkeydown: move,
    onclick: (event) => choose(cellOf(event)), onmouseover: (event) => say(cellOf(event)), onfocusin: (event) => enter(cellOf(event)),
  });
  const more = h("p", { class: "quiet", hidden: true });
  const said = h("p", { class: "said", id: "said" });
  const node = h("div", {}, h("div", { class: "hosts" }, map), more, said);

  // Draws the ranks at these indexes. Returns the number of hosts, and the names of hosts whose ranks differ.
  function update(fresh, freshlyJudged, selected, indexes) {
    [job, judged, picked] = [fresh, freshlyJudged, selected];
    const found = byHost(indexes);
    setClass(map, `nodes${indexes.length <= NUMBERED ? " numbered" : ""}`);
    keyed(map, found.slice(0, HOSTS), (one) => one.host, makeRow, (row, one) => fillRow(row, one, indexes.length));
    const left = found.slice(HOSTS);
    more.hidden = !left.length;
    if (left.length) setText(more, `${number(left.length)} more hosts: ${stateText(left.flatMap((one) => one.at))}.`);
    const cells = [...map.querySelectorAll("[role=gridcell]")];
    const here = cells.find((cell) => cell.rank === at) ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === here ? 0 : -1;
    if (here && here === document.activeElement) enter(here);
    return { hosts: found.length, odd: found.filter((one) => one.worst < LEVEL).map((one) => one.host) };
  }

  function byHost(indexes) {
    const hosts = new Map();
    for (const i of indexes) {
      const host = job.ranks.host[i] || "host not known";
      if (!hosts.has(host)) hosts.set(host, { host, at: [], worst: STATUSES.length - 1 });
      const own = hosts.get(host);
      own.at.push(i);
      own.worst = Math.min(own.worst, STATUSES.findIndex(([known]) => known === judged.worst[i]));
    }
    return [...hosts.values()].sort((a, b) => Math.min(a.worst, LEVEL) - Math.min(b.worst, LEVEL) || a.at[0] - b.at[0]);
  }

  function makeRow(one) {
    return h("div", { role: "row", class: "host" }, h("span", { role: "rowheader" }, one.host), h("span", { class: "cells", role: "presentation" }));
  }

  function fillRow(row, one, count) {
    const [head, cells] = row.children;
    const text = `${one.host}: ${stateText(one.at)}`;
    head.title = text;
    head.setAttribute("aria-label", text);
    keyed(cells, one.at, (i) => job.ranks.rank[i], () => h("span", { role: "gridcell", tabindex: "-1" }), (cell, i) => fillCell(cell, i, count));
  }

  function fillCell(cell, i, count) {
    const rank = job.ranks.rank[i];
    [cell.rank, cell.index] = [rank, i];
    setClass(cell, `sw-${judged.worst[i]}${picked.has(rank) ? " picked" : ""}`);
    setText(cell, count <= NUMBERED ? String(rank) : "");
    cell.setAttribute("aria-selected", String(picked.has(rank)));
    cell.setAttribute("aria-label", `rank ${rank}: ${judged.word(judged.worst[i], i)}`);
  }

  function stateText(indexes) {
    return tally(judged, judged.worst, indexes).map(([, word, count]) => `${number(count)} ${word}`).join(", ");
  }

  function cellOf(event) {
    return event.target.closest("[role=gridcell]");
  }

  // Makes a screen reader read the line below the map when a cell gets the focus.
  function enter(cell) {
    if (!cell) return;
    at = cell.rank;
    say(cell);
    cell.setAttribute("aria-label", said.textContent);
  }

  function say(cell) {
    if (cell) setText(said, describe(job, judged, cell.index));
  }

  function choose(cell) {
    if (cell) pick([cell.rank]);
  }

  function move(event) {
    const rows = [...map.children].map((row) => [...row.lastChild.children]);
    const from = rows.flat().find((cell) => cell.rank === at);
    const y = rows.findIndex((row) => row.includes(from));
    if (y < 0) return;
    const x = rows[y].indexOf(from);
    const all = rows.flat();
    const beside = (by) => all[all.indexOf(from) + by];
    const inRow = (to) => { const row = rows[Math.max(0, Math.min(rows.length - 1, to))]; return row[Math.min(x, row.length - 1)]; };
    const targets = {
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), ArrowUp: () => inRow(y - 1), ArrowDown: () => inRow(y + 1),
      PageUp: () => inRow(y - 8), PageDown: () => inRow(y + 8), Home: () => all[0], End: () => all[all.length - 1],
    };
    if (event.key === "Enter" || event.key === " ") choose(from);
    else if (event.key in targets) focusCell(targets[event.key]() ?? from);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function focusCell(cell) {
    for (const one of map.querySelectorAll("[role=gridcell][tabindex='0']")) one.tabIndex = -1;
    at = cell.rank;
    cell.tabIndex = 0;
    cell.focus();
    cell.scrollIntoView({ block: "nearest" });
  }

  // Focuses the rank that differs most.
  function focus() {
    const worst = job.ranks.rank[outliers(judged, 1)[0] ?? 0];
    const cells = [...map.querySelectorAll("[role=gridcell]")];
    const cell = cells.find((one) => one.rank === worst) ?? cells[0];
    if (cell) focusCell(cell);
  }

  return { node, update, focus };
}
