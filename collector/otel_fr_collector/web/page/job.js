// The view of one job: its open incidents, its hosts and ranks, its process groups, its past incidents.

import { Refused, get } from "./api.js";
import { kindOf, makeCard, tick } from "./card.js";
import { makeCommunication } from "./communication.js";
import { ago, fold, h, keyed, number, setCells, setClass, setOpen, setText, when } from "./dom.js";
import { makeGrid } from "./grid.js";
import { fillConsequences, incidentList, makeConsequences } from "./incident.js";
import { makeStacks } from "./stacks.js";
import { decodeRanks, encodeRanks, groupText, rankStateText, ranksText, shortText } from "./text.js";

const GROUPS = 200; // process groups in the table, those with the largest lag first
const PAST = 50; // resolved incidents
const SETTLE = [1200, 6000]; // ms after the last change, when the job is loaded again: an answer may be 1 s old, or 5 s if it takes long to make

function aliveOf(job) {
  return (job.ranks.tally ?? job.ranks).running ?? 0;
}

export function jobText(job) {
  const { running: alive = 0, ...others } = job.ranks.tally ?? job.ranks;
  const groups = job.group_count ?? job.groups.length ?? job.groups;
  const world = job.world_size === null ? "" : ` of ${number(job.world_size)}`;
  const states = Object.entries(others).map(([state, count]) => `${number(count)} ${rankStateText(state)}`);
  const ranks = alive ? [`${number(alive)}${world} ranks alive`, ...states].join(", ") : `${states.join(", ")}${world} ranks`;
  return `${ranks} · ${number(groups)} process group${groups === 1 ? "" : "s"}`;
}

export function jobView(id) {
  const grid = makeGrid(() => load());
  const groups = makeGroups();
  const stacks = makeStacks(id);
  const communication = makeCommunication(id);
  const ranks = h("div", { hidden: true }, grid.node, groups.node, stacks.node);
  const title = h("h1");
  const badge = h("span");
  const answer = makeCard();
  const text = h("p", { class: "quiet" });
  const problem = h("p", { class: "problem", hidden: true });
  const others = h("ul", { class: "list" });
  const caused = makeConsequences();
  const open = h("div", { id: "open" }, answer.node, caused, others);
  const advice = h("p", { id: "advice", hidden: true });
  const links = h("ul", { class: "list", id: "links", hidden: true });
  const past = h("ul", { class: "list", id: "past" });
  const pastFold = fold({ class: "fold", hidden: true }, "Past incidents of this job", past);
  let job = null;
  let loading = false;
  let again = false;
  let advised = false;
  let settled = 0;
  let state = {};

  async function load() {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    try {
      const asked = encodeRanks(grid.asked());
      job = await get(`jobs/${encodeURIComponent(id)}${asked && `?ranks=${asked}`}`);
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      if (!job) setText(title, "Unknown job");
      setText(problem, error instanceof Refused && error.status === 404
        ? "This job is no longer known. Its incidents are still in the list of incidents."
        : `Not live: ${error.message}.`);
    }
    loading = false;
    if (!advised) advise();
    show();
    if (again) {
      again = false;
      setTimeout(load, 250);
    }
  }

  function refresh() {
    if (!job || !(document.hidden || job.is_finished)) load();
  }

  function settle(times = SETTLE) {
    clearTimeout(settled);
    settled = setTimeout(() => {
      if (!text.isConnected) return;
      refresh();
      if (times.length > 1) settle(times.slice(1));
    }, times[0]);
  }

  function show() {
    if (!job) return;
    setText(title, job.job_title);
    title.title = job.job;
    setClass(badge, `badge ${job.state}`);
    setText(badge, job.state);
    const last = job.is_finished ? when(job.last_heard_at) : ago(job.last_heard_at);
    setText(text, `attempt ${job.attempt} · ${jobText(job)} · first seen ${when(job.first_heard_at)}, last seen ${last}`);
    const own = (state.incidents ?? []).filter((one) => one.job === job.job);
    const causes = own.filter((one) => !one.caused_by);
    // Another run may have the same name at the same time. Its firing incidents are not shown here.
    const firing = causes.filter((one) => one.state === "firing" && one.run_id === job.run_id);
    firing.sort((a, b) => Number(kindOf(a) === "warning") - Number(kindOf(b) === "warning"));
    const over = causes.filter((one) => one.state !== "firing").reverse().slice(0, PAST);
    const isOver = !aliveOf(job);
    const first = firing[0] ?? (isOver ? over.find((one) => one.run_id === job.run_id) : undefined);
    answer.update(first);
    fillConsequences(caused, own.filter((one) => one.caused_by && one.caused_by === first?.id && one.run_id === first.run_id));
    incidentList(others, firing.slice(1), own);
    const rest = over.filter((one) => one !== first);
    pastFold.hidden = !rest.length;
    incidentList(past, rest, own);
    for (const folded of [communication.node, pastFold]) setOpen(folded, !firing.length);
    const here = !job.is_finished && job.collector_page === null;
    stacks.node.hidden = !here || isOver;
    if (here && !document.hidden) communication.update();
    showLinks(links, job.slow_links ?? []);
    ranks.hidden = !job.lanes; // a very large job that is over has only its line in the list
    if (ranks.hidden) return;
    grid.update(job, state.incidents ?? []);
    groups.update(job.groups, job.group_count ?? job.groups.length);
  }

  // Asks what to do next, but only if something has failed, and the job has ended without being stopped.
  async function advise() {
    const isOver = job && !aliveOf(job) && job.state !== "stopped";
    if (!isOver || !(state.incidents ?? []).some((one) => one.job === job.job && one.run_id === job.run_id)) {
      advice.hidden = true; // while a job runs, its incident says what to do
      return;
    }
    advised = true;
    try {
      const found = await get(`attribution?job=${encodeURIComponent(job.job)}&attempt=${job.attempt}&run_id=${encodeURIComponent(job.run_id)}`);
      // The rule that always holds adds nothing to the incident, which says what to do.
      const reasons = found.reasons.filter((one) => one.rule !== "otherwise").map((one) => one.text).join("; ");
      const what = { restart: "restart the job", exclude_node: `restart without ${found.exclude_nodes.join(", ")}`, stop: "do not restart: stop the job" };
      advice.hidden = !reasons;
      setText(advice, `Next: ${what[found.recommendation] ?? found.recommendation} (${reasons}).`);
    } catch {
      advice.hidden = true; // the incidents say what is known
    }
  }

  return {
    title: "Job",
    node: h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Jobs")), h("div", { class: "heading" }, title, badge),
      problem, open, advice, links, ranks, text, communication.node, pastFold),
    up: "#/",
    update(fresh, why) {
      state = fresh;
      if (why === "incident") {
        show();
        advise();
      } else refresh();
      settle();
    },
    tick: () => tick(open),
    outliers: grid.toggle,
    map: grid.focusMap,
    redraw: communication.redraw,
  };
}

function showLinks(list, found) {
  list.hidden = !found.length;
  keyed(list, found, (one) => one.hosts.join(" "), () => h("li"), (item, one) => {
    setText(item, `A round trip between hosts ${one.hosts.join(" and ")} takes ${shortText(one.seconds)}: the link is slow or congested.`);
  });
}

const COLUMNS = ["process group", "ranks", "last rank enqueued", "first rank enqueued", "last rank completed", "first rank completed", "behind"];

// The table of process groups: how far the last and the first rank have come.
function makeGroups() {
  const body = h("tbody");
  const head = h("tr", {}, COLUMNS.map((text) => h("th", { scope: "col" }, text)));
  const more = h("p", { class: "quiet", hidden: true });
  const node = h("details", { class: "fold" }, h("summary", {}, "Process groups"),
    h("p", { class: "quiet" }, "Collectives that the last and the first rank have enqueued and completed."),
    h("div", { class: "scroll" }, h("table", { id: "groups" }, h("thead", {}, head), body)), more);

  function update(groups, count) {
    const lag = (one) => one.enqueued[1] - one.enqueued[0];
    const worst = [...groups].sort((a, b) => lag(b) - lag(a)).slice(0, GROUPS);
    more.hidden = count <= GROUPS;
    setText(more, `The ${GROUPS} of ${number(count)} whose ranks differ most.`);
    keyed(body, worst, (one) => one.id, () => h("tr", {}, h("th", { scope: "row" }), COLUMNS.slice(1).map(() => h("td"))), (row, one) => {
      const texts = [groupText(one), membersText(one), ...one.enqueued.map(number), ...one.completed.map(number), behindText(one)];
      setCells(row, texts);
    });
  }

  return { node, update };
}

function membersText(group) {
  const ranks = decodeRanks(group.ranks);
  return ranks.length > 1 ? `${ranksText(ranks)} (${number(group.size)})` : ranksText(ranks);
}

function behindText(group) {
  if (!group.behind_count) return "";
  const named = decodeRanks(group.behind);
  return ranksText(named) + (named.length < group.behind_count ? ` (of ${number(group.behind_count)})` : "");
}
