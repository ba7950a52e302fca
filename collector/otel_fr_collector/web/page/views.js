// The views, one for each route. A job's view is in job.js. A view has a node, update(state), and the actions of its keys.

import { get, getPatiently } from "./api.js";
import { card, kindOf, tick } from "./card.js";
import { ago, h, keyed, setClass, setText } from "./dom.js";
import { incidentBody, incidentList } from "./incident.js";
import { jobText } from "./job.js";
import { slowestText } from "./text.js";

const KINDS = ["firing", "warning", "resolved"]; // in the order of lists
const FINISHED = 50; // finished jobs in one page of the list
const OLDER = 200; // incidents in one page of the list
const NONE_YET = "No job has reported yet. Start one with: OTEL_EXPORTER_OTLP_ENDPOINT=http://this-host:4317 torchrun train.py";

export function jobsView() {
  const list = h("ul", { class: "list", id: "jobs" });
  const none = h("p", { class: "quiet" });
  const finished = makeFinished(() => show());
  let state = {};
  let known = null; // ids of the jobs that were live; null: not known yet

  function show() {
    const { jobs, incidents } = state;
    if (!jobs) return;
    const byId = new Map((incidents ?? []).map((one) => [one.id, one]));
    setText(none, jobs.length ? "" : finished.some() ? "No job runs now." : NONE_YET);
    const sorted = [...jobs].sort((a, b) => placeOf(a) - placeOf(b));
    keyed(list, sorted, (job) => job.id, makeJob, (node, job) => fillJob(node, job, byId));
  }

  return {
    title: "Jobs",
    node: h("div", {}, h("h1", {}, "Jobs"), none, list, finished.node),
    update(fresh) {
      state = fresh;
      if (!state.jobs) return;
      const now = new Set(state.jobs.map((job) => job.id));
      if (!known || [...known].some((id) => !now.has(id))) finished.load();
      known = now;
      show();
    },
    tick: show,
  };
}

// Jobs with faults come first, then slow jobs. The others keep the collector's order.
function placeOf({ state }) {
  return { incident: 0, slow: 1 }[state] ?? 2;
}

// The jobs that are over and no longer live, newest first. Calls changed() once they are loaded.
function makeFinished(changed) {
  const list = h("ul", { class: "list", id: "finished" });
  const older = h("button", { type: "button", onclick: () => load(true) }, "Older");
  const node = h("section", { hidden: true }, h("h2", {}, "Finished jobs"), list, h("p", {}, older));
  let shown = [];

  async function load(further = false) {
    const before = further && shown.length ? `&before=${encodeURIComponent(shown[shown.length - 1].last_heard_at)}` : "";
    const found = await getPatiently(`jobs?state=finished&limit=${FINISHED}${before}`).catch(() => null);
    if (!found) return;
    const fresh = new Map([...(further ? shown : []), ...found.jobs].map((job) => [job.id, job]));
    older.hidden = found.jobs.length < FINISHED;
    shown = [...fresh.values()];
    node.hidden = !shown.length;
    keyed(list, shown, (job) => job.id, makeJob, (line, job) => fillJob(line, job, new Map()));
    changed();
  }

  return { node, load, some: () => shown.length > 0 };
}

function makeJob(job) {
  return h("li", {}, h("a", { "data-item": job.id },
    h("span"), h("span", { class: "name" }), h("span", { class: "side" }), h("span", { class: "text" }),
    h("span", { class: "text quiet" })));
}

function fillJob(node, job, incidents) {
  const item = node.firstChild;
  const open = job.incidents.map((id) => incidents.get(id)).filter(Boolean);
  setClass(item, `item ${job.state}`);
  // The page of another collector has the ranks of that collector's jobs.
  item.href = `${job.collector_page || ""}#/jobs/${job.id}`;
  const [badge, name, side, fault, text] = item.children;
  setText(name, job.job_title);
  setClass(badge, `badge ${job.state}`);
  setText(badge, job.incidents.length > 1 ? `${job.incidents.length} incidents` : job.state);
  setText(side, `attempt ${job.attempt} · last seen ${ago(job.last_heard_at)}`);
  const faults = open.slice(0, 3).map((one) => one.summary).join(" · ");
  const slowest = job.is_finished ? null : job.rates?.slowest;
  setText(fault, faults || (slowest ? slowestText(slowest) : ""));
  setText(text, jobText(job));
}

export function incidentsView() {
  const list = h("ul", { class: "list", id: "incidents" });
  const none = h("p", { class: "quiet" });
  const wanted = { state: "", text: "" };
  const buttons = [["", "All"], ["firing", "Firing"], ["resolved", "Resolved"]].map(([value, text]) =>
    h("button", { type: "button", "data-state": value, "aria-pressed": String(value === ""), onclick: () => choose(value) }, text));
  const search = h("input", { type: "search", placeholder: "job, category, text", "aria-label": "Filter incidents", oninput: () => { wanted.text = search.value.toLowerCase(); show(); } });
  const older = h("button", { type: "button", onclick: () => loadOlder() }, "Older");
  let state = {};
  let past = [];
  let hasOlder; // undefined: not asked yet

  function choose(value) {
    wanted.state = value;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.state === value));
    show();
  }

  async function before(limit) {
    const first = [...past, ...(state.incidents ?? [])].reduce((a, b) => (!a || b.detected_at < a.detected_at ? b : a), null);
    if (!first) return [];
    return (await getPatiently(`incidents?view=brief&include=consequences&limit=${limit}&before=${encodeURIComponent(first.detected_at)}`)).incidents;
  }

  async function loadOlder() {
    const found = await before(OLDER);
    past = [...found, ...past];
    hasOlder = found.length > 0 && (await before(1)).length > 0;
    show();
  }

  async function findOlder() {
    hasOlder = false;
    hasOlder = (await before(1).catch(() => [null])).length > 0; // not known: the button will show it
    show();
  }

  function show() {
    const known = new Map([...past, ...(state.incidents ?? [])].map((one) => [`${one.id}/${one.run_id}`, one]));
    const all = [...known.values()].reverse();
    const fit = all.filter((one) => !one.caused_by &&
      (!wanted.state || one.state === wanted.state) &&
      (!wanted.text || `${one.job_title} ${one.job} ${one.category} ${one.summary} ${one.id}`.toLowerCase().includes(wanted.text)));
    fit.sort((a, b) => KINDS.indexOf(kindOf(a)) - KINDS.indexOf(kindOf(b)));
    setText(none, fit.length ? "" : "No incident matches.");
    older.hidden = !hasOlder;
    incidentList(list, fit, all);
  }

  return {
    title: "Incidents",
    node: h("div", {}, h("h1", {}, "Incidents"), h("div", { class: "tools" }, buttons, search), none, list, h("p", {}, older)),
    update(fresh) {
      state = fresh;
      if (hasOlder === undefined && state.incidents?.length) findOlder();
      show();
    },
    tick: () => tick(list),
  };
}

export function incidentView(id) {
  const body = h("div");
  const opened = new Set();
  let revision = null;
  let listed = false; // whether the list of incidents was known: it has the consequences
  let up = "#/incidents";

  async function load(state) {
    const known = (state.incidents ?? []).find((one) => one.id === id);
    if (revision !== null && (known?.revision ?? revision) === revision && listed === Boolean(state.incidents)) return;
    try {
      const data = await get(`incidents/${encodeURIComponent(id)}`);
      revision = data.revision;
      listed = Boolean(state.incidents);
      if (data.job_url) up = `#/jobs/${data.job_url.split("/").pop()}`;
      show(data, state);
    } catch (error) {
      body.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  function show(data, state) {
    const consequences = data.consequences.map((number_) => (state.incidents ?? []).find((one) => one.id === number_)).filter(Boolean);
    const list = h("ul", { class: "list" });
    incidentList(list, consequences, []);
    body.replaceChildren(
      h("p", { class: "crumbs" }, h("a", { href: "#/incidents" }, "Incidents"), " / ", h("a", { href: up }, data.job_title)),
      card(data, { level: "h1", opened }),
      ...incidentBody(data),
      ...(consequences.length ? [h("h3", {}, "Consequences"), list] : []),
      h("p", {}, h("a", { href: `api/v1/incidents/${encodeURIComponent(id)}` }, "As JSON")));
  }

  return { title: "Incident", node: body, get up() { return up; }, update: load, tick: () => tick(body) };
}

export function missingView() {
  return { title: "Not found", node: h("div", {}, h("h1", {}, "Page not found"), h("p", {}, h("a", { href: "#/" }, "All jobs"))), update() {} };
}
