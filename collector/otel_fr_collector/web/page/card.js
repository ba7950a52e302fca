// The card of an incident: who, where, since when, how many ranks wait, what to do, and tools for it.

import { Refused, get } from "./api.js";
import { h, link, number, secondsSince, setText, when } from "./dom.js";
import {
  debugCommand, decodeRanks, durationText, lastingText, placeText, rankList, ranksByText, ranksText, siteShortener,
  stateSummary,
} from "./text.js";

const SHOWN = 3; // culprits with a line and a stack of their own

export function kindOf({ state, severity }) {
  return state === "firing" && severity === "warning" ? "warning" : state;
}

function headline(data) {
  const [culprits, waiting] = [data.culprit_ranks, waitingOf(data)];
  if (culprits.length) return ranksText(culprits);
  return waiting.length ? `${ranksText(waiting)} ${waiting.length === 1 ? "waits" : "wait"}` : "No rank is named";
}

// Shows when a fault began and how long it has lasted. `tick` keeps the text current.
export function showSince(node, data) {
  const start = data.waiting_since ?? data.started_at ?? data.detected_at;
  node.dataset.from = start ?? "";
  node.dataset.until = data.resolved_at ?? "";
  node.dataset.verb = data.waiting_since ? "waiting for" : "for";
  tickOne(node);
}

function tickOne(node) {
  const { from, until, verb } = node.dataset;
  if (!from) return setText(node, "");
  const lasted = until ? `lasted ${durationText(Math.max(0, secondsSince(from) - secondsSince(until)))}` : `${verb} ${lastingText(secondsSince(from))}`;
  setText(node, `${when(from)}, ${lasted}`);
}

export function tick(parent) {
  for (const node of parent.querySelectorAll(".since")) tickOne(node);
}

// `opened`: names of the open details. They stay open when the card is made again.
export function card(data, { level, opened, toPage = false }) {
  const ranks = data.culprit_ranks.slice(0, SHOWN);
  const short = siteShortener([...Object.values(data.call_sites ?? {}), ...(data.stack_groups ?? []).flatMap(({ frames }) => frames)]);
  const since = h("dd", { class: "since" });
  showSince(since, data);
  const places = ranks.map((rank) => placeText(data.places?.[rank]));
  const sites = [...ranksByText(data.culprit_ranks.filter((rank) => data.call_sites?.[rank]).map((rank) => [rank, data.call_sites[rank]]))];
  const where = sites.slice(0, SHOWN).map(([site, there]) =>
    h("div", {}, h("code", { title: site }, short(site)), sites.length > 1 ? ` ${ranksText(there)}` : null));
  const facts = [
    ["where", where.length ? h("dd", {}, where) : null],
    ["since", since],
    ["waiting", waitingText(data) && h("dd", {}, waitingText(data))],
    ["what to do", data.what_to_do && h("dd", { class: "advice" }, data.what_to_do)],
  ];
  const node = h("section", { class: `card answer ${kindOf(data)}`, "aria-label": "Incident", "data-incident": data.id },
    h("p", { class: "chips" }, h("span", { class: `badge ${kindOf(data)}` }, data.state), " ",
      h("span", { class: "badge", "data-part": "category" }, data.category)),
    h(level, {}, headline(data), ranks.length === 1 && places[0] ? h("span", { class: "place" }, ` ${places[0]}`) : null),
    ranks.length > 1 ? h("p", { class: "quiet" }, ranks.map((rank, i) => places[i] && `rank ${rank}: ${places[i]}`).filter(Boolean).join(" · ")) : null,
    h("dl", { class: "facts" }, facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), value])),
    h("p", { class: "quiet summary", title: data.summary }, sites.reduce((text, [site]) => text.replaceAll(site, short(site)), stateSummary(data))),
    data.caused_by ? h("p", {}, "A consequence of ", h("a", { href: `#/incidents/${data.caused_by}` }, `incident ${data.caused_by}`), ".") : null,
    h("div", { class: "tools" }, debugTools(data, ranks), links(data),
      toPage ? h("a", { class: "button", href: `#/incidents/${data.id}`, "data-item": data.id, "data-part": "evidence" }, "Evidence") : null),
    ranks.filter((rank) => data.stacks?.[rank]).map((rank) => stack(data, rank, opened)));
  return node;
}

// The waiting ranks. A brief incident has them as text.
function waitingOf({ waiting_ranks: ranks, waiting }) {
  return ranks ?? decodeRanks(waiting ?? "");
}

function waitingText(data) {
  const { waiting_count: count } = data;
  if (!count) return "";
  const waiting = waitingOf(data);
  const others = count - waiting.length;
  const who = others > 0 ? `${ranksText(waiting)} in this call, ${number(others)} in calls blocked by it` : rankList(waiting);
  return `${number(count)} rank${count === 1 ? "" : "s"}: ${who}`;
}

function stack(data, rank, opened) {
  const name = `stack-${rank}`;
  const node = h("details", { open: opened.has(name), ontoggle: () => (node.open ? opened.add(name) : opened.delete(name)) },
    h("summary", { "data-part": name }, `Stack of rank ${rank}`), h("pre", { tabindex: "0" }, data.stacks[rank]));
  return node;
}

// A process that has ended cannot be debugged.
function debugTools(data, ranks) {
  const ended = new Set((data.culprits ?? []).filter((one) => one.ending !== null).map((one) => one.rank));
  const rank = ranks.find((one) => !ended.has(one) && debugCommand(data.places?.[one]));
  if (rank === undefined || data.state !== "firing") return [];
  const command = h("code", { class: "command", "data-part": "command" }, debugCommand(data.places[rank]));
  const button = h("button", { type: "button", "data-part": "copy", "aria-live": "polite", onclick: copy }, "Copy");
  return [h("span", { class: "debug" }, command, button)];

  async function copy() {
    getSelection()?.selectAllChildren(command);
    setText(button, "Selected");
    try {
      await navigator.clipboard.writeText(command.textContent);
      setText(button, "Copied");
    } catch {
      // the page came by http, or the user does not let it write: the text is selected
    }
  }
}

const NAMES = { runbook: "Runbook", trace: "Trace", dashboard: "Dashboard", silence: "Silence" };

// If the site names no runbook, the link leads to the collector's own.
function links({ links: given, category }) {
  const found = Object.entries(given ?? {}).filter(([name]) => name in NAMES).map(([name, url]) => link(url, NAMES[name]));
  if (!given?.runbook) found.unshift(h("a", { href: `runbooks/${encodeURIComponent(category)}` }, NAMES.runbook));
  for (const one of found) one.classList.add("button");
  return found;
}

// A card for one incident of a list. It then loads what the list leaves out.
export function makeCard(changed) {
  const node = h("div", { id: "answer", hidden: true });
  const opened = new Set();
  let shown = null; // the incident as in the list
  let whole = null;

  function update(data) {
    const isOther = data?.id !== shown?.id || data?.revision !== shown?.revision;
    node.hidden = !data;
    if (!isOther) return;
    shown = data;
    if (whole?.id !== data?.id) opened.clear();
    if (whole?.id !== data?.id) whole = null;
    if (data) {
      draw();
      load(data);
    } else node.replaceChildren();
  }

  async function load(data) {
    try {
      const found = await get(`incidents/${encodeURIComponent(data.id)}?view=brief`);
      if (shown?.id !== data.id) return;
      whole = found;
      draw();
    } catch (error) {
      const isGone = error instanceof Refused && error.status === 404;
      if (!isGone) shown = { ...shown, revision: null }; // the next update loads it again
    }
  }

  function draw() {
    const focused = node.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.part : null;
    node.replaceChildren(card(whole ?? shown, { level: "h2", opened, toPage: true }));
    if (focused) node.querySelector(`[data-part="${focused}"]`)?.focus();
    changed?.();
  }

  return { node, update };
}
