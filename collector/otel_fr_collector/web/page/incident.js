// One incident, with its evidence.

import { h, keyed, link, number, secondsSince, setClass, setText, when } from "./dom.js";
import { collectiveText, durationText, groupText, lastingText, placeText, ranksByText, ranksText, siteText, stateSummary } from "./text.js";

const SHOWN = 16; // ranks whose lines are shown at once; the others are folded

export function incidentTitle(data) {
  const ranks = data.culprit_ranks.length ? `: ${ranksText(data.culprit_ranks)}` : "";
  return `${data.category}${ranks}`;
}

// Shows incidents as items of a list, each with its consequences, found among `all`, folded below it.
export function incidentList(list, shown, all) {
  const caused = new Map();
  for (const one of all) {
    if (!one.caused_by) continue;
    const key = `${one.caused_by}/${one.run_id}`;
    if (!caused.has(key)) caused.set(key, []);
    caused.get(key).push(one);
  }
  keyed(list, shown, (one) => `${one.id}/${one.run_id}`, makeItem, (node, one) =>
    fillItem(node, one, caused.get(`${one.id}/${one.run_id}`) ?? []));
}

function makeItem(data) {
  return h("li", {},
    h("a", { href: `#/incidents/${data.id}`, "data-item": data.id },
      h("span"), h("span", { class: "name" }), h("span", { class: "side" }), h("span", { class: "text" }), h("span", { class: "text since" })),
    h("details", { class: "caused", hidden: true }, h("summary"), h("ul")));
}

function fillItem(node, data, consequences) {
  const [item, folded] = node.children;
  const [badge, name, side, text, since] = item.children;
  setClass(item, `item ${data.state} ${data.severity ?? ""}`);
  setClass(badge, `badge ${data.state} ${data.severity ?? ""}`);
  setText(badge, data.state);
  setText(name, incidentTitle(data));
  setText(side, `${data.job_title} · attempt ${data.attempt} · ${when(data.detected_at)}`);
  setText(text, stateSummary(data));
  showSince(since, data);
  folded.hidden = !consequences.length;
  setText(folded.firstChild, `${number(consequences.length)} consequence${consequences.length === 1 ? "" : "s"}`);
  keyed(folded.lastChild, consequences, (one) => one.id, (one) => h("li", {}, h("a", { href: `#/incidents/${one.id}` })), (line, one) =>
    setText(line.firstChild, stateSummary(one)));
}

// How long an open fault has lasted: text that `tick` keeps current.
function showSince(node, data) {
  const start = data.waiting_since ?? data.started_at ?? data.detected_at;
  node.dataset.since = data.state === "firing" && start ? start : "";
  node.dataset.verb = data.waiting_since ? "waiting for" : "for";
  node.dataset.until = data.resolved_at ?? "";
  node.dataset.from = start ?? "";
  tickOne(node);
}

function tickOne(node) {
  const { since, from, until, verb } = node.dataset;
  if (since) setText(node, `${verb} ${lastingText(secondsSince(since))}, since ${when(since)}`);
  else setText(node, from && until ? `lasted ${durationText(Math.max(0, secondsSince(from) - secondsSince(until)))}` : "");
}

export function tick(parent) {
  for (const node of parent.querySelectorAll(".since")) tickOne(node);
}

export function incidentLead(data) {
  const since = h("p", { class: "since quiet" });
  showSince(since, data);
  const details = (data.details ?? []).map((text) => h("li", {}, text));
  return [
    h("p", { class: "lead" }, h("span", { class: `badge ${data.state} ${data.severity ?? ""}` }, data.state), " ", stateSummary(data)), since,
    ...(details.length ? [h("ul", { class: "details" }, details)] : []),
    ...(data.what_to_do ? [h("p", {}, h("b", {}, "What to do: "), data.what_to_do)] : []),
  ];
}

export function incidentBody(data) {
  return [facts(data), values(data), culprits(data), waiting(data), places(data), ras(data), files(data)].flat();
}

const RESOLUTIONS = {
  stopped: "the job was stopped",
  replaced: "the job continues in another run",
  unheard: "nothing was heard of the job any more",
  dropped: "there were too many open incidents",
};

function facts(data) {
  const group = data.process_group;
  const rows = [
    ["Detected", when(data.detected_at)],
    ["Started", when(data.started_at)],
    ["Resolved", data.resolved_at && [when(data.resolved_at), RESOLUTIONS[data.resolution]].filter(Boolean).join("; ")],
    ["Process group", group && `${groupText(group)}, ${ranksText(group.ranks)}`],
    ["Collective", data.operation && collectiveText(data.operation, data.sequence_id)],
    ["Culprits", data.culprit_ranks.length ? ranksText(data.culprit_ranks) : null],
    ["Waiting", data.waiting_ranks.length ? ranksText(data.waiting_ranks) : null],
    ["Waiting since", when(data.waiting_since)],
    ["Trace", data.trace_id && h("code", {}, data.trace_id)],
    ["Run", `attempt ${data.attempt}, ${data.run_id}`],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function values(data) {
  const found = Object.entries(data.values ?? {});
  if (!data.field || !found.length) return [];
  const by = ranksByText(found.map(([rank, value]) => [Number(rank), value]));
  const rows = [...by].sort((a, b) => b[1].length - a[1].length).map(([value, ranks]) =>
    h("tr", {}, h("th", { scope: "row" }, ranksText(ranks)), h("td", { class: "site" }, value)));
  return [h("h3", {}, `What differs: ${data.field}`), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows)))];
}

function culprits(data) {
  if (!data.culprit_ranks.length) return [];
  const parts = data.culprit_ranks.map((rank, i) => {
    const stack = data.stacks?.[rank];
    const line = h("span", {}, h("span", { class: "badge culprit" }, `rank ${rank}`), " ",
      h("code", {}, siteText(data.call_sites?.[rank])), h("span", { class: "quiet" }, ` ${placeText(data.places?.[rank])}`));
    if (!stack) return h("p", {}, line);
    return h("details", { open: i < 2 }, h("summary", {}, line), h("pre", { tabindex: "0" }, stack));
  });
  return [h("h3", {}, "Culprits"), ...folded(parts)];
}

function waiting(data) {
  if (!data.waiting_ranks.length) return [];
  const by = ranksByText(data.waiting_ranks.map((rank) => [rank, siteText(data.call_sites?.[rank])]));
  const rows = [...by].map(([site, ranks]) => h("tr", {}, h("th", { scope: "row" }, ranksText(ranks)), h("td", { class: "site" }, site)));
  return [h("h3", {}, "Waiting ranks"), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows)))];
}

function places(data) {
  const found = data.stack_groups ?? [];
  return found.length ? [h("h3", {}, data.state === "resolved" ? "Where the ranks were" : "Where the ranks are"), ...stackGroups(found)] : [];
}

// Merged stacks, of most ranks first; a rank that is alone in its place is shown with all frames.
export function stackGroups(found) {
  return folded(found.map(({ ranks, frames }, i) => {
    const head = h("summary", {}, `${ranks.length} here: ${ranksText(ranks)} `, h("code", {}, frames[frames.length - 1]));
    return h("details", { open: i > 0 && ranks.length === 1 }, head, h("pre", { tabindex: "0" }, frames.join("\n")));
  }));
}

// What NCCL itself says: beside the verdict, not a part of it.
function ras({ nccl_ras: said }) {
  if (!said) return [];
  const source = `asked ${when(said.asked_at)}, NCCL ${said.version}; not used for the verdict`;
  return [h("h3", {}, "What NCCL's RAS says"), h("p", { class: "quiet" }, source),
    h("ul", { class: "details", id: "ras" }, said.lines.map((line) => h("li", {}, line)))];
}

function files(data) {
  const found = Object.entries(data.flight_recorder_files ?? {});
  if (!found.length) return [];
  const parts = found.map(([rank, path]) => h("p", {}, `rank ${rank}: `, h("code", {}, path)));
  return [h("h3", {}, "Flight-recorder files"), ...folded(parts)];
}

function folded(parts) {
  if (parts.length <= SHOWN) return parts;
  const rest = parts.slice(SHOWN);
  return [...parts.slice(0, SHOWN), h("details", {}, h("summary", {}, `${rest.length} more`), rest)];
}

const NAMES = { page: "this page", runbook: "Runbook", trace: "Trace", dashboard: "Dashboard" };

// The collector has runbooks of its own, for where the site names no others.
export function linkLine({ links, category }) {
  const found = Object.entries(links ?? {}).filter(([name]) => name !== "page").map(([name, url]) => link(url, NAMES[name] ?? name));
  if (!links?.runbook) found.unshift(h("a", { href: `runbooks/${encodeURIComponent(category)}` }, NAMES.runbook));
  return [h("p", {}, found.flatMap((one, i) => [i ? " · " : "", one]))];
}
