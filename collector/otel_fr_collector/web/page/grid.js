// The ranks: a map by host, and below it a table with their process groups. Of large jobs, the table has only the ranks
// that differ and those that the user selects on the map.

import { fold, h, keyed, number, setClass, setText } from "./dom.js";
import { makeNodes } from "./nodes.js";
import { judge, outliers } from "./status.js";
import { collectiveText, durationText, lateText, overdueText, siteShortener } from "./text.js";

const TABLE = 64; // ranks up to which every rank has a row
const ROWS = 100; // rows of the table of outliers
const HOW = 120; // characters of how a rank ended, in the table; the rest shows under the pointer
const LANES = 12; // lanes with a column of their own; the first are the largest groups

export function makeGrid() {
  let job = null;
  let judged = null;
  let short = siteShortener([]);
  let only = false;
  const picked = new Set();

  const filter = h("button", { type: "button", id: "outliers", "aria-pressed": "false", onclick: () => toggle() }, "Outliers only");
  const nodes = makeNodes(pick);
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

  function pick(indexes) {
    const isNew = indexes.some((i) => !picked.has(i));
    for (const i of indexes.slice(0, ROWS)) {
      if (isNew) picked.add(i);
      else picked.delete(i);
    }
    if (isNew) folded.open = true;
    draw();
  }

  function update(fresh, incidents) {
    job = fresh;
    short = siteShortener(job.ranks.site);
    judged = judge(job, incidents);
    draw();
  }

  function draw() {
    const small = job.ranks.rank.length <= TABLE;
    filter.hidden = !small;
    nodes.update(job, judged, picked);
    drawTable(job.lanes.slice(0, LANES), small);
  }
  function drawTable(lanes, small) {
    const chosen = outliers(judged, ROWS);
    let rows = small && !only ? job.ranks.rank.map((_, i) => i) : chosen.shown;
    if (!small) rows = [...new Set([...picked].filter((i) => i < job.ranks.rank.length)), ...rows.filter((i) => !picked.has(i))];
    const extras = extra();
    const columns = ["rank", "state", ...lanes.map((lane) => lane.name), ...extras.map(([name]) => name), "where it is"];
    keyed(head, columns.map((text, i) => ({ text, i })), (c) => c.i, () => h("th", { scope: "col" }), (cell, c) => setText(cell, c.text));
    keyed(body, rows, (i) => job.ranks.rank[i], makeRow, (row, i) => fillRow(row, i, lanes, extras));
    table.hidden = !rows.length;
    const texts = [];
    if (!rows.length) texts.push(small ? "No rank differs from the rest." : "No rank differs from the rest. Select one on the map to see it here.");
    if (chosen.more && rows.length) texts.push(`${number(chosen.more)} more differ.`);
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
    setClass(row, picked.has(i) ? "picked" : "");
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

  return { node: h("div", {}, nodes.node, folded), toggle, focusMap: nodes.focus, update };
}

function clipped(text) {
  return text?.length > HOW ? `${text.slice(0, HOW)} ...` : text;
}
