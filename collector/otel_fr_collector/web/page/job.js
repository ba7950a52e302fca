// The view of one job: its open incidents, its ranks and process groups, its hosts, its past incidents.

import { Refused, get } from "./api.js";
import { makeCommunication } from "./communication.js";
import { ago, h, keyed, number, setCells, setClass, setText, when } from "./dom.js";
import { makeGrid } from "./grid.js";
import { makeHosts } from "./hosts.js";
import { incidentList, tick } from "./incident.js";
import { makeStacks } from "./stacks.js";
import { decodeRanks, groupText, ranksText } from "./text.js";

const GROUPS = 200; // process groups in the table, those with the slowest ranks first
const PAST = 50; // resolved incidents

export function jobText(job) {
  const tally = job.ranks.tally ?? job.ranks;
  const states = Object.entries(tally).map(([state, count]) => `${number(count)} ${state}`);
  const groups = job.groups.length ?? job.groups;
  const world = job.world_size === null ? "" : ` of ${number(job.world_size)} ranks`;
  return `${states.join(", ")}${world} · ${number(groups)} process group${groups === 1 ? "" : "s"}`;
}

export function jobView(id) {
  const grid = makeGrid();
  const hosts = makeHosts();
  const groups = makeGroups();
  const stacks = makeStacks(id);
  const communication = makeCommunication(id);
  const ranks = h("div", { hidden: true }, h("h2", {}, "Ranks and process groups"), grid.node, stacks.node, hosts.node, groups.node);
  const title = h("h1");
  const badge = h("span");
  const text = h("p", { class: "quiet" });
  const problem = h("p", { class: "problem", hidden: true });
  const open = h("ul", { class: "list", id: "open" });
  const advice = h("p", { id: "advice", hidden: true });
  const past = h("ul", { class: "list", id: "past" });
  const pastHead = h("h2", { hidden: true }, "Past incidents of this job");
  let job = null;
  let loading = false;
  let again = false;
  let advised = false;
  let state = {};

  async function load() {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    try {
      job = await get(`jobs/${encodeURIComponent(id)}`);
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
    // Another run may have the same name at the same time: what is open there is not open here.
    incidentList(open, causes.filter((one) => one.state === "firing" && one.run_id === job.run_id), own);
    const over = causes.filter((one) => one.state !== "firing").reverse().slice(0, PAST);
    pastHead.hidden = !over.length;
    incidentList(past, over, own);
    const here = !job.is_finished && job.collector_page === null;
    stacks.node.hidden = !here;
    if (here && !document.hidden) communication.update();
    ranks.hidden = !job.lanes; // of a very large job that is over, only its line in the list is kept
    if (ranks.hidden) return;
    grid.update(job, state.incidents ?? []);
    hosts.update(job, grid.judged());
    groups.update(job.groups);
  }

  // What to do next is asked for only where something has failed.
  async function advise() {
    if (!job || !(state.incidents ?? []).some((one) => one.job === job.job && one.run_id === job.run_id)) {
      advice.hidden = true;
      return;
    }
    advised = true;
    try {
      const found = await get(`attribution?job=${encodeURIComponent(job.job)}&attempt=${job.attempt}&run_id=${encodeURIComponent(job.run_id)}`);
      // The rule that always holds only repeats the incident's sentence.
      const reasons = found.reasons.filter((one) => one.rule !== "otherwise").map((one) => one.text).join("; ");
      const what = { restart: "restart the job", exclude_node: `restart without ${found.exclude_nodes.join(", ")}`, stop: "do not restart: stop the job" };
      advice.hidden = !found.reasons.length;
      const ended = !(job.ranks.tally ?? job.ranks).running;
      setText(advice, `${ended ? "Next" : "If the job ends"}: ${what[found.recommendation] ?? found.recommendation}${reasons && ` (${reasons})`}.`);
    } catch {
      advice.hidden = true; // the incidents say what is known
    }
  }

  return {
    title: "Job",
    node: h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Jobs")), title, badge, text, problem, open, advice,
      ranks, communication.node, pastHead, past),
    up: "#/",
    update(fresh, why) {
      state = fresh;
      if (why === "incident") {
        show();
        advise();
      } else if (!job || !(document.hidden || job.is_finished)) load();
    },
    tick: () => tick(open),
    outliers: grid.toggle,
    map: grid.focusMap,
    redraw() {
      grid.redraw();
      communication.redraw();
    },
  };
}

const COLUMNS = ["process group", "ranks", "last rank enqueued", "first rank enqueued", "last rank completed", "first rank completed", "behind"];

// The table of process groups: how far the ranks that are last and first have come.
function makeGroups() {
  const body = h("tbody");
  const head = h("tr", {}, COLUMNS.map((text) => h("th", { scope: "col" }, text)));
  const more = h("p", { class: "quiet", hidden: true });
  const node = h("details", {}, h("summary", {}, "Process groups"),
    h("p", { class: "quiet" }, "Collectives that the last and the first rank have enqueued and completed."),
    h("div", { class: "scroll" }, h("table", { id: "groups" }, h("thead", {}, head), body)), more);

  function update(groups) {
    const lag = (one) => one.enqueued[1] - one.enqueued[0];
    const worst = [...groups].sort((a, b) => lag(b) - lag(a)).slice(0, GROUPS);
    more.hidden = groups.length <= GROUPS;
    setText(more, `The ${GROUPS} of ${number(groups.length)} whose ranks differ most.`);
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
