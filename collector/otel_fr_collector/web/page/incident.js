// One incident, with its evidence.

import { kindOf, showSince } from "./card.js";
import { h, keyed, number, setClass, setText, when } from "./dom.js";
import { collectiveText, groupText, placeText, ranksByText, ranksText, siteShortener, siteText, stateSummary } from "./text.js";

const SHOWN = 16; // lines that are shown; the others are folded

// Shows incidents as items of a list. The consequences of each, found among `all`, are folded below it.
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
    makeConsequences());
}

function fillItem(node, data, consequences) {
  const [item, folded] = node.children;
  const [badge, name, side, text, since] = item.children;
  setClass(item, `item ${kindOf(data)}`);
  setClass(badge, `badge ${kindOf(data)}`);
  setText(badge, data.state);
  setText(name, [data.job_title, data.culprit_ranks.length ? ranksText(data.culprit_ranks) : ""].filter(Boolean).join(" · "));
  setText(side, `${data.category} · attempt ${data.attempt} · ${when(data.detected_at)}`);
  setText(text, stateSummary(data));
  showSince(since, data);
  fillConsequences(folded, consequences);
}

// Details that name the consequences of an incident.
export function makeConsequences() {
  return h("details", { class: "caused", hidden: true }, h("summary"), h("ul"));
}

export function fillConsequences(folded, consequences) {
  folded.hidden = !consequences.length;
  setText(folded.firstChild, `${number(consequences.length)} consequence${consequences.length === 1 ? "" : "s"}`);
  keyed(folded.lastChild, consequences, (one) => one.id, (one) => h("li", {}, h("a", { href: `#/incidents/${one.id}` })), (line, one) =>
    setText(line.firstChild, stateSummary(one)));
}

export function incidentBody(data) {
  const open = data.state === "firing";
  const details = data.details.length ? [h("ul", { class: "details" }, data.details.map((text) => h("li", {}, text)))] : [];
  return [...details, ...values(data), ...places(data), ...waiting(data),
    h("details", { class: "fold", open: !open }, h("summary", {}, "Facts"), facts(data), ras(data), files(data))];
}

const RESOLUTIONS = {
  ended: "the job has ended",
  stopped: "the job was stopped",
  replaced: "the job continues in another run",
  unheard: "the job sends no more reports",
  dropped: "there were too many firing incidents",
};

function facts(data) {
  const group = data.process_group;
  const rows = [
    ["Detected", when(data.detected_at)],
    ["Started", when(data.started_at)],
    ["Resolved", data.resolved_at && [when(data.resolved_at), RESOLUTIONS[data.resolution]].filter(Boolean).join("; ")],
    ["Process group", group && `${groupText(group)}, ${ranksText(group.ranks)}`],
    ["Collective", data.operation && collectiveText(data.operation, data.sequence_id)],
    ["Culprits", data.culprit_ranks.length ? culprits(data) : null],
    ["Waiting", data.waiting_ranks.length ? ranksText(data.waiting_ranks) : null],
    ["Waiting since", when(data.waiting_since)],
    ["Trace", data.trace_id && h("code", {}, data.trace_id)],
    ["Run", `attempt ${data.attempt}, ${data.run_id}`],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function culprits({ culprit_ranks: ranks, places: known }) {
  const placed = ranks.filter((rank) => known?.[rank]).slice(0, SHOWN);
  return [ranksText(ranks), ...placed.map((rank) => h("div", { class: "quiet" }, `rank ${rank}: ${placeText(known[rank])}`))];
}

function values(data) {
  const found = Object.entries(data.values ?? {});
  if (!data.field || !found.length) return [];
  const by = ranksByText(found.map(([rank, value]) => [Number(rank), value]));
  const rows = [...by].sort((a, b) => b[1].length - a[1].length).map(([value, ranks]) =>
    h("tr", {}, h("th", { scope: "row" }, ranksText(ranks)), h("td", { class: "site" }, value)));
  return [h("h3", {}, `What differs: ${data.field}`), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows)))];
}

function waiting(data) {
  if (!data.waiting_ranks.length) return [];
  const by = ranksByText(data.waiting_ranks.map((rank) => [rank, siteText(data.call_sites?.[rank])]));
  const short = siteShortener(by.keys());
  const rows = [...by].map(([site, ranks]) =>
    h("tr", {}, h("th", { scope: "row" }, ranksText(ranks)), h("td", { class: "site", title: site }, short(site))));
  return [h("h3", {}, "Waiting ranks"), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows)))];
}

function places(data) {
  const found = data.stack_groups ?? [];
  return found.length ? [h("h3", {}, data.state === "resolved" ? "Where the ranks were" : "Where the ranks are"), ...stackGroups(found)] : [];
}

// Merged stacks, in the given order: most ranks first. A later stack of only one rank is open.
export function stackGroups(found) {
  const short = siteShortener(found.flatMap(({ frames }) => frames));
  return folded(found.map(({ ranks, frames }, i) => {
    const last = frames[frames.length - 1];
    const head = h("summary", {}, `${ranks.length} here: ${ranksText(ranks)} `, h("code", { title: last }, short(last)));
    return h("details", { open: i > 0 && ranks.length === 1 }, head, h("pre", { tabindex: "0" }, frames.join("\n")));
  }));
}

// What NCCL itself says. It is not used for the verdict.
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
