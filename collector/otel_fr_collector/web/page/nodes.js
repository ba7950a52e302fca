// The node map: one row for each host, one cell for each rank. In large jobs, neighbours in the same state share a cell.

import { h, keyed, number, setClass, setText } from "./dom.js";
import { STATUSES, describe, outliers, tally } from "./status.js";
import { ranksText } from "./text.js";

const APART = 1024; // ranks up to which each has a cell of its own
const NUMBERED = 64; // ranks up to which the cells show their numbers
const HOSTS = 256; // rows, those whose ranks differ first
const LEVEL = STATUSES.findIndex(([name]) => name === "waits"); // from here on a status is no difference from the rest

// `pick(indexes)` is called with the ranks of a cell that is selected.
export function makeNodes(pick) {
  let job = null;
  let judged = null;
  let picked = new Set();
  let at = null; // index of the rank under the keyboard's cursor

  const legend = h("div", { class: "legend", id: "tally" });
  const differ = h("p", { class: "quiet", id: "differ", hidden: true });
  const map = h("div", {
    class: "nodes", id: "nodes", role: "grid", "aria-label": "Ranks by host", "aria-multiselectable": "true", onkeydown: move,
    onclick: (event) => choose(cellOf(event)), onmouseover: (event) => say(cellOf(event)), onfocusin: (event) => enter(cellOf(event)),
  });
  const more = h("p", { class: "quiet", hidden: true });
  const said = h("p", { class: "said", id: "said" });
  const node = h("section", { class: "map", "aria-label": "Node map" }, legend, differ, h("div", { class: "hosts" }, map), more, said);

  function update(fresh, freshlyJudged, selected) {
    [job, judged, picked] = [fresh, freshlyJudged, selected];
    keyed(legend, tally(judged, judged.worst), ([, word]) => word,
      ([status]) => h("span", {}, h("i", { class: `sw-${status}` }), h("span")),
      (item, [, word, count]) => setText(item.lastChild, `${number(count)} ${word}`));
    const found = byHost();
    const odd = found.filter((one) => one.worst < LEVEL).map((one) => one.host);
    differ.hidden = found.length < 2;
    setText(differ, `${number(found.length)} hosts${odd.length ? `; ranks differ on ${listText(odd)}` : ""}`);
    const count = job.ranks.rank.length;
    setClass(map, `nodes${count <= APART ? " apart" : ""}${count <= NUMBERED ? " numbered" : ""}`);
    keyed(map, found.slice(0, HOSTS), (one) => one.host, makeRow, fillRow);
    const left = found.slice(HOSTS);
    more.hidden = !left.length;
    if (left.length) setText(more, `${number(left.length)} more hosts: ${stateText(left.flatMap((one) => one.at))}.`);
    const cells = [...map.querySelectorAll("[role=gridcell]")];
    const here = cells.find((cell) => holds(cell, at)) ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === here ? 0 : -1;
    if (here && here === document.activeElement) enter(here);
  }

  function byHost() {
    const hosts = new Map();
    job.ranks.host.forEach((name, i) => {
      const host = name || "host not known";
      if (!hosts.has(host)) hosts.set(host, { host, at: [], worst: STATUSES.length - 1 });
      const own = hosts.get(host);
      own.at.push(i);
      own.worst = Math.min(own.worst, STATUSES.findIndex(([known]) => known === judged.worst[i]));
    });
    return [...hosts.values()].sort((a, b) => Math.min(a.worst, LEVEL) - Math.min(b.worst, LEVEL) || a.at[0] - b.at[0]);
  }

  function makeRow(one) {
    return h("div", { role: "row", class: "host" }, h("span", { role: "rowheader" }, one.host), h("span", { class: "cells", role: "presentation" }));
  }

  function fillRow(row, one) {
    const [head, cells] = row.children;
    const text = `${one.host}: ${stateText(one.at)}`;
    head.title = text;
    head.setAttribute("aria-label", text);
    keyed(cells, cellsOf(one.at), ([first]) => first, () => h("span", { role: "gridcell", tabindex: "-1" }), fillCell);
  }

  // The indexes of each cell of a row.
  function cellsOf(indexes) {
    if (job.ranks.rank.length <= APART) return indexes.map((i) => [i]);
    const found = [];
    for (const i of indexes) {
      const last = found[found.length - 1];
      if (last && judged.worst[last[0]] === judged.worst[i]) last.push(i);
      else found.push([i]);
    }
    return found;
  }

  function fillCell(cell, indexes) {
    const [first] = indexes;
    cell.indexes = indexes;
    const isPicked = indexes.some((i) => picked.has(i));
    setClass(cell, `sw-${judged.worst[first]}${isPicked ? " picked" : ""}`);
    cell.style.flexGrow = job.ranks.rank.length <= APART ? "" : String(indexes.length);
    setText(cell, job.ranks.rank.length <= NUMBERED ? String(job.ranks.rank[first]) : "");
    cell.setAttribute("aria-selected", String(isPicked));
    cell.setAttribute("aria-label", `${ranksText(indexes.map((i) => job.ranks.rank[i]))}: ${judged.word(judged.worst[first], first)}`);
  }

  function stateText(indexes) {
    return tally(judged, judged.worst, indexes).map(([, word, count]) => `${number(count)} ${word}`).join(", ");
  }

  function cellOf(event) {
    return event.target.closest("[role=gridcell]");
  }

  function holds(cell, i) {
    return i !== null && cell.indexes.includes(i);
  }

  // A screen reader reads of the cell that has the focus all that the line below shows.
  function enter(cell) {
    if (!cell) return;
    if (!holds(cell, at)) at = cell.indexes[0];
    say(cell);
    cell.setAttribute("aria-label", said.textContent);
  }

  function say(cell) {
    if (!cell) return;
    const [first, ...others] = cell.indexes;
    const label = others.length ? `${ranksText(cell.indexes.map((i) => job.ranks.rank[i]))}: ${judged.word(judged.worst[first], first)}; the first: ` : "";
    setText(said, label + describe(job, judged, first));
  }

  function choose(cell) {
    if (cell) pick(cell.indexes);
  }

  function move(event) {
    const rows = [...map.children].map((row) => [...row.lastChild.children]);
    const from = rows.flat().find((cell) => holds(cell, at));
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
    at = cell.indexes[0];
    cell.tabIndex = 0;
    cell.focus();
    cell.scrollIntoView({ block: "nearest" });
  }

  // To the rank that differs most.
  function focus() {
    const worst = outliers(judged, 1).shown[0] ?? 0;
    const cells = [...map.querySelectorAll("[role=gridcell]")];
    const cell = cells.find((one) => holds(one, worst)) ?? cells[0];
    if (cell) focusCell(cell);
  }

  return { node, update, focus };
}

function listText(names) {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${number(names.length - 3)} more` : "");
}
