// The views, one for each route. A view has a node, update(state), and the actions of its keys.

import { Refused, get } from "./api.js";
import { ago, h, keyed, number, setClass, setText, when } from "./dom.js";
import { makeGrid } from "./grid.js";
import { incidentBody, incidentItem, incidentTitle, linkLine } from "./incident.js";
import { decodeRanks, groupText, rankList } from "./text.js";

const OLDER = 200; // incidents of one page of the list

export function jobsView() {
  const list = h("ul", { class: "list", id: "jobs" });
  const none = h("p", { class: "quiet" });
  return {
    title: "Jobs",
    node: h("div", {}, h("h1", {}, "Jobs"), none, list),
    update({ jobs, incidents }) {
      if (!jobs) return;
      const summaries = new Map((incidents ?? []).map((one) => [one.id, one.summary]));
      setText(none, jobs.length ? "" : "No job has reported yet. Start one with: OTEL_EXPORTER_OTLP_ENDPOINT=http://this-host:4317 torchrun train.py");
      keyed(list, jobs, (job) => job.id, makeJob, (node, job) => fillJob(node, job, summaries));
    },
  };
}

function makeJob(job) {
  return h("li", {}, h("a", { href: `#/jobs/${job.id}`, "data-item": job.id },
    h("span"), h("span", { class: "name" }, job.job), h("span", { class: "side" }), h("span", { class: "text" }),
    h("span", { class: "text quiet" })));
}

function fillJob(node, job, summaries) {
  const item = node.firstChild;
  setClass(item, `item ${job.state}`);
  const [badge, , side, fault, text] = item.children;
  setClass(badge, `badge ${job.state}`);
  setText(badge, job.incidents.length > 1 ? `${job.incidents.length} incidents` : job.state);
  setText(side, `attempt ${job.attempt} · last seen ${ago(job.last_heard_at)}`);
  setText(fault, job.incidents.map((id) => summaries.get(id)).filter(Boolean).slice(0, 3).join(" · "));
  setText(text, jobText(job));
}

function jobText(job) {
  const tally = job.ranks.tally ?? job.ranks;
  const states = Object.entries(tally).map(([state, count]) => `${number(count)} ${state}`);
  const groups = job.groups.length ?? job.groups;
  const world = job.world_size === null ? "" : ` of ${number(job.world_size)} ranks`;
  return `${states.join(", ")}${world} · ${number(groups)} process group${groups === 1 ? "" : "s"}`;
}

export function jobView(id) {
  const grid = makeGrid();
  const title = h("h1");
  const badge = h("span");
  const text = h("p", { class: "quiet" });
  const problem = h("p", { class: "problem", hidden: true });
  const open = h("ul", { class: "list", id: "open" });
  const past = h("ul", { class: "list", id: "past" });
  const pastHead = h("h2", { hidden: true }, "Past incidents of this job");
  const groups = h("tbody");
  const groupTable = h("details", {}, h("summary", {}, "Process groups"),
    h("div", { class: "scroll" }, h("table", { id: "groups" }, h("thead", {}, h("tr", {},
      ["name", "ranks", "enqueued, slowest to fastest member", "completed", "behind"].map((t) => h("th", { scope: "col" }, t)))), groups)));
  let job = null;
  let loading = false;
  let again = false;
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
    show();
    if (again) {
      again = false;
      setTimeout(load, 250);
    }
  }

  function show() {
    if (!job) return;
    setText(title, job.job);
    setClass(badge, `badge ${job.state}`);
    setText(badge, job.state);
    setText(text, `attempt ${job.attempt} · ${jobText(job)} · first seen ${when(job.first_heard_at)}, last seen ${ago(job.last_heard_at)}`);
    const own = (state.incidents ?? []).filter((one) => one.job === job.job);
    const firing = own.filter((one) => one.state === "firing" && one.run_id === job.run_id && !one.caused_by);
    keyed(open, firing, (one) => `${one.id}/${one.revision}`, incidentItem, () => {});
    const over = own.filter((one) => !firing.includes(one)).reverse().slice(0, 50);
    pastHead.hidden = !over.length;
    keyed(past, over, (one) => `${one.id}/${one.revision}`, incidentItem, () => {});
    grid.update(job, state.incidents ?? []);
    showGroups();
  }

  function showGroups() {
    const worst = [...job.groups].sort((a, b) => b.enqueued[1] - b.enqueued[0] - (a.enqueued[1] - a.enqueued[0])).slice(0, 200);
    keyed(groups, worst, (one) => one.id, () => h("tr", {}, h("th", { scope: "row" }), h("td"), h("td"), h("td"), h("td")), (row, one) => {
      const texts = [
        groupText(one), `${one.size}: ${rankList(decodeRanks(one.ranks))}`,
        one.enqueued.join(" to "), one.completed.join(" to "), one.behind_count ? `${one.behind_count}: ${rankList(decodeRanks(one.behind))}` : "",
      ];
      texts.forEach((value, i) => setText(row.children[i], value));
    });
  }

  return {
    title: "Job",
    node: h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Jobs")), title, badge, text, problem, open,
      h("h2", {}, "Ranks and process groups"), grid.node, groupTable, pastHead, past),
    up: "#/",
    update(fresh, why) {
      state = fresh;
      if (why === "incident") show();
      else if (!document.hidden || !job) load();
    },
    outliers: grid.toggle,
    map: grid.focusMap,
    redraw: grid.redraw,
  };
}

export function incidentsView() {
  const list = h("ul", { class: "list", id: "incidents" });
  const none = h("p", { class: "quiet" });
  const wanted = { state: "", text: "" };
  const buttons = [["", "All"], ["firing", "Open"], ["resolved", "Resolved"]].map(([value, text]) =>
    h("button", { type: "button", "data-state": value, "aria-pressed": String(value === ""), onclick: () => choose(value) }, text));
  const search = h("input", { type: "search", placeholder: "job, category, text", "aria-label": "Filter incidents", oninput: () => { wanted.text = search.value.toLowerCase(); show(); } });
  const older = h("button", { type: "button", onclick: () => loadOlder() }, "Older");
  let state = {};
  let past = [];

  function choose(value) {
    wanted.state = value;
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.state === value)));
    show();
  }

  async function loadOlder() {
    const first = [...past, ...(state.incidents ?? [])].reduce((a, b) => (!a || b.detected_at < a.detected_at ? b : a), null);
    if (!first) return;
    const found = (await get(`incidents?view=brief&limit=${OLDER}&before=${encodeURIComponent(first.detected_at)}`)).incidents;
    past = [...found, ...past];
    older.disabled = !found.length;
    show();
  }

  function show() {
    const known = new Map([...past, ...(state.incidents ?? [])].map((one) => [`${one.id}/${one.run_id}`, one]));
    const fit = [...known.values()].reverse().filter((one) =>
      (!wanted.state || one.state === wanted.state) &&
      (!wanted.text || `${one.job} ${one.category} ${one.summary} ${one.id}`.toLowerCase().includes(wanted.text)));
    fit.sort((a, b) => (a.state === b.state ? 0 : a.state === "firing" ? -1 : 1));
    setText(none, fit.length ? "" : "No incident matches.");
    keyed(list, fit, (one) => `${one.id}/${one.run_id}/${one.revision}`, incidentItem, () => {});
  }

  return {
    title: "Incidents",
    node: h("div", {}, h("h1", {}, "Incidents"), h("div", { class: "tools" }, buttons, search), none, list, h("p", {}, older)),
    update(fresh) {
      state = fresh;
      show();
    },
  };
}

export function incidentView(id) {
  const body = h("div");
  let revision = null;
  let up = "#/incidents";

  async function load(state) {
    const known = (state.incidents ?? []).find((one) => one.id === id);
    if (revision !== null && known?.revision === revision) return;
    try {
      const data = await get(`incidents/${encodeURIComponent(id)}`);
      revision = data.revision;
      if (data.job_url) up = `#/jobs/${data.job_url.split("/").pop()}`;
      show(data, state);
    } catch (error) {
      body.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  function show(data, state) {
    const consequences = data.consequences.map((number_) => (state.incidents ?? []).find((one) => one.id === number_)).filter(Boolean);
    body.replaceChildren(
      h("p", { class: "crumbs" }, h("a", { href: "#/incidents" }, "Incidents"), " / ", h("a", { href: up }, data.job)),
      h("h1", {}, incidentTitle(data)),
      h("div", { class: `card ${data.state}` },
        h("p", { class: "lead" }, h("span", { class: `badge ${data.state}` }, data.state), " ", data.summary),
        ...(data.caused_by ? [h("p", {}, "A consequence of ", h("a", { href: `#/incidents/${data.caused_by}` }, `incident ${data.caused_by}`), ".")] : []),
        ...linkLine(data.links)),
      ...incidentBody(data),
      ...(consequences.length ? [h("h3", {}, "Consequences"), h("ul", { class: "list" }, consequences.map(incidentItem))] : []),
      h("p", {}, h("a", { href: `api/v1/incidents/${encodeURIComponent(id)}` }, "As JSON")));
  }

  return { title: "Incident", node: body, get up() { return up; }, update: load };
}

export function missingView() {
  return { title: "Not found", node: h("div", {}, h("h1", {}, "Page not found"), h("p", {}, h("a", { href: "#/" }, "All jobs"))), update() {} };
}
