// What the communication of a job costs: rates over time, the ranks that others wait for, the slowest operations.

import { get } from "./api.js";
import { fold, h, keyed, number, setCells, setText } from "./dom.js";
import { bytesText, shareText, shortText, siteShortener, slowestText } from "./text.js";

const EVERY = 5000; // ms between two requests; the collector takes a sample every 15 s
const HEIGHT = 130; // px of a chart
const LEAST_WIDTH = 260;
/** @type {[string, string, (value: number) => string][]} */
const CHARTS = [
  ["collectives_per_s", "Collectives a second", (value) => value.toPrecision(3)],
  ["bytes_per_s", "Bytes a second", (value) => `${bytesText(value)}/s`],
  ["bus_bandwidth", "Bus bandwidth", (value) => `${bytesText(value)}/s`],
  // share of the time for which half of a group waits for its last rank
  ["wait_share", "Wait share", shareText],
  ["step_s", "Training step", shortText],
];
const COLUMNS = ["operation", "process group", "size", "dtype", "calls", "mean", "99 %", "bus bandwidth", "a slow call"];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function makeCommunication(id) {
  const named = h("p", { class: "lead", id: "slowest", hidden: true });
  const latest = h("dd");
  const start = h("dd");
  const facts = h("dl", { class: "facts", id: "rates" }, h("dt", {}, "latest minute"), latest, h("dt", {}, "since the start"), start);
  const charts = h("div", { class: "charts", id: "charts" });
  const strip = h("div", { class: "chart strip", id: "strip", hidden: true },
    h("div", { class: "quiet title" }, "Seconds that others waited for each rank"));
  const stripText = h("p", { class: "quiet", id: "strip-text" });
  const body = h("tbody");
  const table = h("div", { class: "scroll", hidden: true, tabindex: "0", role: "region", "aria-label": "Operations" },
    h("table", { id: "operations" }, h("thead", {}, h("tr", {}, COLUMNS.map((text) => h("th", { scope: "col" }, text)))), body));
  const node = fold({ class: "fold", id: "communication", hidden: true }, "Communication", named, facts, charts, strip, stripText, table);
  node.addEventListener("toggle", () => { if (node.open && rates) show(); });
  const drawn = new Map(); // name -> its chart
  let rates = null;
  let asked = 0;

  async function update() {
    if (Date.now() - asked < EVERY) return;
    asked = Date.now();
    try {
      rates = await get(`jobs/${encodeURIComponent(id)}/rates`);
      show();
    } catch {
      // not known now: a collector that has restarted does not know the job yet
    }
  }

  function show() {
    const { operations, ranks } = rates;
    node.hidden = !ranks.rank.length && !operations.length && rates.latest.collectives_per_s === null;
    if (node.hidden || !node.open) return;
    setText(latest, ratesText(rates.latest));
    setText(start, ratesText(rates.since_start));
    const slowest = rates.latest.slowest;
    named.hidden = !slowest;
    if (slowest) setText(named, slowestText(slowest));
    table.hidden = !operations.length;
    const short = siteShortener(operations.map((one) => one.slow?.site ?? ""));
    keyed(body, operations, (one) => JSON.stringify([one.operation, one.process_group, one.group_size, one.backend, one.dtype, one.size]),
      () => h("tr", {}, h("th", { scope: "row" }), COLUMNS.slice(1).map((_, i) => h("td", { class: i === COLUMNS.length - 2 ? "site" : "short" }))),
      (row, one) => {
        setCells(row, cells(one, short));
        row.lastChild.title = one.slow?.site ?? "";
      });
    drawCharts();
    drawStrip();
  }

  function drawCharts() {
    const { at, ...columns } = rates.intervals;
    for (const [name, title, text] of CHARTS) {
      if (columns[name].filter((value) => value !== null).length > 1) draw(name, charts, title, text, [at, columns[name]]);
    }
  }

  function drawStrip() {
    const { rank, came_last, waited_for_s, waited_s } = rates.ranks;
    strip.hidden = !rank.length;
    if (strip.hidden) return;
    const order = rank.map((_, i) => i).sort((a, b) => waited_for_s[b] - waited_for_s[a]).filter((i) => waited_for_s[i] > 0);
    const most = order.slice(0, 3).map((i) => `rank ${rank[i]}: ${shortText(waited_for_s[i])} in ${number(came_last[i])} collective${came_last[i] === 1 ? "" : "s"}`);
    const longest = waited_s.indexOf(Math.max(...waited_s));
    setText(stripText, `Waited for most since the start: ${most.join("; ") || "nobody"}. `
      + `Rank ${rank[longest]} waited longest: ${shortText(waited_s[longest])}.`);
    draw("strip", strip, "waited for", shortText, [rank, waited_for_s]);
  }

  function draw(name, parent, title, text, data) {
    const known = drawn.get(name);
    if (known) {
      known.setData(data);
      return;
    }
    const isStrip = name === "strip";
    const box = isStrip ? parent : h("div", { class: "chart" });
    if (!isStrip) parent.append(box);
    const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false } };
    const color = isStrip ? "--behind" : "--accent";
    drawn.set(name, new uPlot({
      width: Math.max(LEAST_WIDTH, box.clientWidth - 2),
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: !isStrip, range: isStrip ? (_, low, high) => [low - 0.6, high + 0.6] : undefined }, y: { range: (_, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        isStrip ? { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] } : { ...axis, values: timesText },
        { ...axis, size: 70, values: (_, values) => values.map((value) => (value === 0 ? "0" : text(value))) },
      ],
      series: [
        isStrip ? { label: "rank" } : {},
        {
          label: title,
          stroke: () => css(color),
          fill: isStrip ? () => css(color) : undefined,
          width: 1.5,
          spanGaps: false,
          paths: isStrip ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined,
          points: { show: false },
          value: (_, value) => (value === null || value === undefined ? "-" : text(value)),
        },
      ],
    }, data, box));
  }

  function redraw() {
    for (const chart of drawn.values()) chart.redraw(false);
  }

  new ResizeObserver(() => {
    for (const [name, chart] of drawn) {
      const box = name === "strip" ? strip : chart.root.parentElement;
      chart.setSize({ width: Math.max(LEAST_WIDTH, box.clientWidth - 2), height: HEIGHT });
    }
  }).observe(node);

  return { node, update, redraw };
}

// The times of an axis, with seconds if the minutes would repeat.
function timesText(_, times) {
  const seconds = times.length > 1 && times[1] - times[0] < 60;
  /** @type {Intl.DateTimeFormatOptions} */
  const form = { hour: "2-digit", minute: "2-digit", ...(seconds && { second: "2-digit" }) };
  return times.map((time) => new Date(time * 1000).toLocaleTimeString("sv-SE", form));
}

function sizeText(size) {
  if (size === "0" || size === "_OTHER") return size;
  return size === "larger" ? "> 256 MiB" : `≤ ${size.replace(/(?=[KM]iB)/, " ")}`;
}

function cells(one, short) {
  const { slow } = one;
  return [
    one.operation, one.process_group, sizeText(one.size), one.dtype, number(one.calls),
    meanText(one), one.p99_s === null ? "" : `≤ ${shortText(one.p99_s)}`,
    one.bus_bandwidth === null ? "" : `${bytesText(one.bus_bandwidth)}/s`,
    slow && slow.seconds > (one.mean_s ?? 0) ? `${shortText(slow.seconds)} at ${short(slow.site)}` : "",
  ];
}

// The mean duration. If the device's times are known, also the mean time in its queue and on it.
function meanText({ mean_s: mean, delay_mean_s: delay, device_mean_s: device }) {
  if (mean === null) return "";
  return device === null ? shortText(mean) : `${shortText(mean)} (queue ${shortText(delay)}, device ${shortText(device)})`;
}

function ratesText(rates) {
  const found = [];
  const { collectives_per_s: many, bytes_per_s: size, bus_bandwidth: bus, wait_share: wait, step_s: step } = rates;
  if (many !== null) found.push(`${many.toPrecision(3)} collectives/s`);
  if (size !== null) found.push(`${bytesText(size)}/s`);
  if (bus !== null) found.push(`bus bandwidth ${bytesText(bus)}/s`);
  if (wait !== null) found.push(`groups wait for their last rank for ${shareText(wait)} of the time`);
  if (step !== null) found.push(`a step takes ${shortText(step)}`);
  return found.join(", ") || "not known yet";
}
