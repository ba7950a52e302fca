// The ranks: a map by host, and below it a table with their process groups. If there are many ranks, the table has only
// ranks that differ, and ranks that the user selects on the map. For a large job, the collector lists only these, and
// the ranks of hosts that the user has opened.

import { fold, h, keyed, number, setClass, setText } from "./dom.js";
import { makeNodes } from "./nodes.js";
import { makeRanges, rangeText, tallyOf } from "./ranges.js";
import { LEVEL, STATUSES, judge, outliers, tally } from "./status.js";
import { collectiveText, decodeRanks, durationText, lateText, overdueText, siteShortener } from "./text.js";

const TABLE = 64; // ranks up to which every rank has a row
const ROWS = 100; // rows of the table of outliers
const HOW = 120; // characters in the table that say how a rank ended; the tooltip has all
const LANES = 12; // lanes with a column of their own; the first are the largest groups
const OPENED = 512; // ranks of a large job that are shown at once

// `ask()` is called when `asked` has changed.
export function makeGrid(ask) {
  let job = null;
  let judged = null;
  let short = siteShortener([]);
  let only = false;
  const picked = new Set(); // ranks
  let opened = null; // hosts of a large job whose ranks are shown: {title, ranks, at}

  const filter = h("button", { type: "button", id: "outliers", "aria-pressed": "false", onclick: () => toggle() }, "Outliers only");
  const legend = h("div", { class: "legend", id: "tally" });
  const differ = h("p", { class: "quiet", id: "differ", hidden: true });
  const ranges = makeRanges(open);
  const nodes = makeNodes(pick);
  const title = h("span", { id: "opened" });
  const before = h("button", { type: "button", onclick: () => turn(-OPENED) }, "Previous");
  const next = h("button", { type: "button", onclick: () => turn(OPENED) }, "Next");
  const tools = h("div", { class: "tools" }, title, before, next, h("button", { type: "button", onclick: () => open(null) }, "Close"));
  const map = h("section", { class: "map", "aria-label": "Node map" }, legend, differ, ranges.node, tools, nodes.node);
  const head = h("tr");
  const body = h("tbody");
  const more = h("p", { class: "quiet" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks" },
    h("table", { id: "grid" }, h("thead", {}, head), body));
  const folded = fold({ class: "fold", id: "ranks" }, "Ranks", h("div", { class: "tools" }, filter), table, more);

  function toggle() {
    only = !only;
    folded.open = true;
    filter.setAttribute("aria-pressed", String(only));
    draw();
  }

  function pick(ranks) {
    const isNew = ranks.some((rank) => !picked.has(rank));
    for (const rank of ranks) {
      if (isNew && picked.size < ROWS) picked.add(rank);
      else picked.delete(rank);
    }
    if (isNew) folded.open = true;
    draw();
  }

  function open(range) {
    opened = range && { title: rangeText(range), ranks: decodeRanks(range.ranks), at: 0 };
    draw();
    ask();
  }

  function turn(by) {
    opened.at += by;
    draw();
    ask();
  }

  function shownOfOpened() {
    return opened ? opened.ranks.slice(opened.at, opened.at + OPENED) : [];
  }

  function update(fresh, incidents) {
    job = fresh;
    short = siteShortener(job.ranks.site);
    judged = judge(job, incidents);
    draw();
  }

  function draw() {
    const isLarge = job.nodes?.length > 0;
    const small = !isLarge && job.ranks.rank.length <= TABLE;
    filter.hidden = !small;
    const counts = isLarge ? tallyOf(job.nodes) : tally(judged, judged.worst);
    keyed(legend, counts, ([, word]) => word, ([status]) => h("span", {}, h("i", { class: `sw-${status}` }), h("span")),
      (item, [, word, count]) => setText(item.lastChild, `${number(count)} ${word}`));
    const all = job.ranks.rank.map((_, i) => i);
    const wanted = new Set(shownOfOpened());
    const inCells = isLarge ? all.filter((i) => wanted.has(job.ranks.rank[i])) : all;
    const byCell = nodes.update(job, judged, picked, inCells);
    const { hosts, odd } = isLarge ? ranges.update(job.nodes, !job.is_finished) : byCell;
    ranges.node.hidden = !isLarge;
    nodes.node.hidden = isLarge && !opened;
    tools.hidden = !isLarge || !opened;
    if (opened) drawTools();
    differ.hidden = hosts < 2;
    setText(differ, `${number(hosts)} hosts${odd.length ? `; ranks differ on ${listText(odd)}` : ""}`);
    const total = counts.filter(([status]) => STATUSES.findIndex(([name]) => name === status) < LEVEL).reduce((sum, one) => sum + one[2], 0);
    drawTable(job.lanes.slice(0, LANES), small, total);
  }

  function drawTools() {
    const { ranks, at } = opened;
    const last = Math.min(ranks.length, at + OPENED);
    setText(title, `${opened.title}${ranks.length > OPENED ? `: ${number(at + 1)} to ${number(last)} of ${number(ranks.length)} ranks` : ""}`);
    before.hidden = at === 0;
    next.hidden = last === ranks.length;
  }

  function drawTable(lanes, small, differing) {
    const { rank } = job.ranks;
    const shown = outliers(judged, ROWS);
    let rows = small && !only ? rank.map((_, i) => i) : shown;
    if (!small) rows = [...rank.keys()].filter((i) => picked.has(rank[i])).concat(rows.filter((i) => !picked.has(rank[i])));
    const extras = extra();
    const columns = ["rank", "state", ...lanes.map((lane) => lane.name), ...extras.map(([name]) => name), "where it is"];
    keyed(head, columns.map((text, i) => ({ text, i })), (c) => c.i, () => h("th", { scope: "col" }), (cell, c) => setText(cell, c.text));
    keyed(body, rows, (i) => job.ranks.rank[i], makeRow, (row, i) => fillRow(row, i, lanes, extras));
    table.hidden = !rows.length;
    const texts = [];
    if (!rows.length) texts.push(small ? "No rank differs from the rest." : "No rank differs from the rest. Select one on the map to see it here.");
    if (differing > shown.length && rows.length) texts.push(`${number(differing - shown.length)} more differ.`);
    if (job.lanes.length > LANES) texts.push(`${job.lanes.length - LANES} more columns are not shown.`);
    setText(more, texts.join(" "));
  }

  // Columns that not every job fills.
  function extra() {
    const { step, late } = job.ranks;
    return [
      ["step", step.some((one) => one !== null), (i) => step[i] ?? ""],
      ["comes late", late.some(Boolean), (i) => (late[i] ? lateText(late[i][1], late[i][2], late[i][3]) : "")],
    ].filter(([, used]) => used);
  }

  function makeRow(i) {
    return h("tr", { "data-rank": job.ranks.rank[i] }, h("th", { scope: "row" }, String(job.ranks.rank[i])), h("td"));
  }

  function fillRow(row, i, lanes, extras) {
    const { state, how, waits, overdue, site, host } = job.ranks;
    const width = lanes.length + extras.length + 3;
    setClass(row, picked.has(job.ranks.rank[i]) ? "picked" : "");
    while (row.children.length < width) row.append(h("td"));
    while (row.children.length > width) row.lastChild.remove();
    const worst = judged.worst[i];
    const word = judged.word(worst, i);
    const label = worst === "culprit" && state[i] !== "running" ? `${word}, ${state[i]}` : word;
    setClass(row.children[1], `cell s-${worst}`);
    setText(row.children[1], label);
    lanes.forEach((lane, number_) => {
      const cell = row.children[number_ + 2];
      const status = judged.cells[number_][i];
      setClass(cell, status ? `cell s-${status}` : "cell");
      setText(cell, cellText(lane, i, status));
    });
    extras.forEach(([, , textOf], number_) => {
      const cell = row.children[lanes.length + 2 + number_];
      setClass(cell, "");
      setText(cell, String(textOf(i)));
    });
    const last = row.lastChild;
    setClass(last, "site");
    const doing = waits[i] ? `in ${collectiveText(waits[i][0], waits[i][1])} for ${durationText(waits[i][3])}` : "";
    last.title = [how[i], site[i]].filter(Boolean).join(" · ");
    setText(last, [clipped(how[i]), overdueText(overdue[i]), doing, site[i] && short(site[i]), host[i]].filter(Boolean).join(" · "));
  }

  function cellText(lane, i, status) {
    if (status === null) return "";
    const enqueued = lane.enqueued[i];
    if (enqueued === null) return "–";
    const front = job.groups[lane.group[i]].enqueued[1];
    const lag = front - enqueued;
    const pending = enqueued - lane.completed[i];
    return `${enqueued}${pending ? ` (${pending} in flight)` : ""}${lag && status !== "ok" ? ` −${lag}` : ""}`;
  }

  // The ranks of a large job that the collector must list in addition to ranks that differ.
  function asked() {
    return job?.nodes?.length ? [...new Set([...shownOfOpened(), ...picked])].sort((a, b) => a - b) : [];
  }

  function focusMap() {
    if (nodes.node.hidden) ranges.focus();
    else nodes.focus();
  }

  return { node: h("div", {}, map, folded), toggle, focusMap, update, asked };
}

function clipped(text) {
  return text?.length > HOW ? `${text.slice(0, HOW)} ...` : text;
}

function listText(names) {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${number(names.length - 3)} more` : "");
}
