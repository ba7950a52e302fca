// Ranks by process group: a table of small jobs; of larger ones a map of cells for each lane, and a table of the ranks
// that differ.

import { fold, h, keyed, number, setClass, setOpen, setText } from "./dom.js";
import { STATUSES, describe, judge, outliers, tally } from "./status.js";
import { collectiveText, durationText, lateText, overdueText, siteShortener } from "./text.js";

const TABLE = 64; // ranks up to which every rank has a row
const ROWS = 100; // rows of the table of outliers
const HOW = 120; // characters of how a rank ended, in the table; the rest shows under the pointer
const LANES = 12; // lanes with a column or a map of their own; the first are the largest groups

export function makeGrid() {
  let job = null;
  let judged = null;
  let short = siteShortener([]);
  let only = false;
  const picked = new Set();
  let at = null; // [lane, index] of the keyboard cursor

  const legend = h("div", { class: "legend", id: "tally" });
  const filter = h("button", { type: "button", id: "outliers", "aria-pressed": "false", onclick: () => toggle() }, "Outliers only");
  const maps = h("div", { class: "maps", id: "maps" });
  const said = h("p", { class: "said", id: "said" });
  const head = h("tr");
  const body = h("tbody");
  const more = h("p", { class: "quiet" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks" },
    h("table", { id: "grid" }, h("thead", {}, head), body));
  const node = h("section", { "aria-label": "Ranks and process groups" },
    h("div", { class: "tools" }, filter, legend), table, more, said, maps);

  function toggle() {
    only = !only;
    filter.setAttribute("aria-pressed", String(only));
    draw();
  }

  function update(fresh, incidents) {
    job = fresh;
    short = siteShortener(job.ranks.site);
    judged = judge(job, incidents);
    draw();
  }

  function draw() {
    if (!job) return;
    const small = job.ranks.rank.length <= TABLE;
    const lanes = job.lanes.slice(0, LANES);
    drawTally();
    filter.hidden = !small;
    maps.hidden = said.hidden = small;
    if (!small) drawMaps(lanes);
    drawTable(lanes, small);
  }

  function drawTally() {
    keyed(legend, tally(judged, judged.worst), ([, word]) => word,
      ([status]) => h("span", {}, h("i", { class: `sw-${status}` }), h("span")),
      (item, [, word, count]) => setText(item.lastChild, `${number(count)} ${word}`));
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
    if (!rows.length) texts.push(small ? "No rank differs from the rest." : "No rank differs from the rest. Select one on a map to see it here.");
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

  function drawMaps(lanes) {
    keyed(maps, lanes.map((lane, i) => ({ lane, i })), (m) => m.i, makeMap, (figure, m) => {
      const groups = new Set(m.lane.group.filter((g) => g !== null)).size;
      const odd = judged.cells[m.i].some((status) => status !== null && status !== "ok" && status !== "ended");
      setOpen(figure, odd);
      setText(figure.firstChild, `${m.lane.name}${groups > 1 ? ` · ${number(groups)} groups` : ""}${odd ? "" : " · all running"}`);
      paint(figure.lastChild, m.i);
    });
  }

  function makeMap(m) {
    // A screen reader reads the cell under the keyboard's cursor: two take turns, so that a move is a change.
    const cells = [0, 1].map((turn) => h("span", { role: "gridcell", id: `cell-${m.i}-${turn}`, hidden: true }));
    const canvas = h("canvas", {
      tabindex: "0", role: "grid", "aria-multiselectable": "true", "data-lane": m.i,
      onkeydown: (event) => move(event, m.i), onfocus: () => focus(m.i), onblur: () => { at = null; draw(); },
      onmousemove: (event) => say(m.i, hit(event, canvas)), onclick: (event) => pick(hit(event, canvas)),
    }, h("span", { role: "row" }, cells));
    return fold({ class: "map" }, "", canvas); // folded while it shows no difference
  }

  function layout() {
    const count = job.ranks.rank.length;
    const cell = count <= 256 ? 16 : count <= 1024 ? 10 : count <= 4096 ? 4 : 3;
    const columns = count <= 256 ? 16 : count <= 1024 ? 32 : count <= 4096 ? 64 : 128;
    return { count, cell, columns, rows: Math.ceil(count / columns) };
  }

  function paint(canvas, lane) {
    const { count, cell, columns, rows } = layout();
    const scale = window.devicePixelRatio || 1;
    const width = columns * cell;
    const height = rows * cell;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    const css = getComputedStyle(document.documentElement);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const gap = cell > 3 ? 1 : 0;
    for (const [status] of STATUSES) {
      pen.fillStyle = css.getPropertyValue(`--${status}`);
      for (let i = 0; i < count; i++) {
        if (judged.cells[lane][i] !== status) continue;
        pen.fillRect((i % columns) * cell, Math.floor(i / columns) * cell, cell - gap, cell - gap);
      }
    }
    // One cell among thousands is easily overlooked, so culprits and dead ranks get a ring.
    for (let i = 0; i < count; i++) {
      const status = judged.cells[lane][i];
      if (status === "culprit" || status === "dead") ring(pen, i, columns, cell, css.getPropertyValue(`--${status}`), 2);
      if (picked.has(i)) ring(pen, i, columns, cell, css.getPropertyValue("--accent"), 1.5);
    }
    if (at && at[0] === lane) {
      ring(pen, at[1], columns, cell, css.getPropertyValue("--focus"), 2.5);
      describeCell(canvas, lane, at[1], columns);
    }
    const counts = tally(judged, judged.cells[lane]).map(([, word, many]) => `${many} ${word}`);
    canvas.setAttribute("aria-label", `${job.lanes[lane].name}: ${counts.join(", ") || "no rank"}`);
  }

  function describeCell(canvas, lane, i, columns) {
    const row = canvas.firstChild;
    const [now, next] = row.children[0].hidden ? [row.children[1], row.children[0]] : row.children;
    const cell = now.dataset.rank === String(i) ? now : next;
    now.hidden = cell !== now;
    cell.hidden = false;
    cell.dataset.rank = String(i);
    cell.setAttribute("aria-colindex", String((i % columns) + 1));
    cell.setAttribute("aria-selected", String(picked.has(i)));
    row.setAttribute("aria-rowindex", String(Math.floor(i / columns) + 1));
    canvas.setAttribute("aria-rowcount", String(layout().rows));
    canvas.setAttribute("aria-colcount", String(columns));
    canvas.setAttribute("aria-activedescendant", cell.id);
    setText(cell, describe(job, judged, lane, i));
  }

  function ring(pen, i, columns, cell, color, width) {
    const radius = Math.max(cell * 0.9, 6);
    pen.beginPath();
    pen.arc(((i % columns) + 0.5) * cell, (Math.floor(i / columns) + 0.5) * cell, radius, 0, 2 * Math.PI);
    pen.lineWidth = width;
    pen.strokeStyle = color;
    pen.stroke();
  }

  function hit(event, canvas) {
    const { count, cell, columns } = layout();
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const i = Math.floor((event.clientY - box.top) / cell) * columns + column;
    return column >= 0 && column < columns && i >= 0 && i < count ? i : null;
  }

  function say(lane, i) {
    setText(said, i === null ? "" : describe(job, judged, lane, i));
  }

  function pick(i) {
    if (i === null) return;
    if (!picked.delete(i)) picked.add(i);
    draw();
  }

  function focus(lane) {
    const worst = outliers(judged, 1).shown[0] ?? 0;
    at = [lane, at ? at[1] : worst];
    say(lane, at[1]);
    draw();
  }

  function move(event, lane) {
    const { count, columns, rows } = layout();
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -count, End: count, PageUp: -columns * 8, PageDown: columns * 8 };
    const i = at ? at[1] : 0;
    if (event.key === "Enter" || event.key === " ") pick(i);
    else if (event.key in steps && rows) at = [lane, Math.min(count - 1, Math.max(0, i + steps[event.key]))];
    else return;
    event.preventDefault();
    event.stopPropagation();
    say(lane, at[1]);
    draw();
  }

  function focusMap() {
    const map = maps.querySelector("details[open]") ?? maps.firstElementChild;
    if (!map) return;
    map.open = true;
    map.lastChild.focus();
  }

  return { node, update, toggle, redraw: draw, judged: () => judged, focusMap };
}

function clipped(text) {
  return text?.length > HOW ? `${text.slice(0, HOW)} ...` : text;
}
