// Routes, keys, theme, and the live state that the views show.

import { getPatiently, listen, useToken } from "./api.js";
import { byId, setText } from "./dom.js";
import { jobView } from "./job.js";
import { incidentView, incidentsView, jobsView, missingView } from "./views.js";

const main = byId("main");
const live = byId("live");
const openCount = byId("open-count");
const state = { jobs: null, incidents: null };
let view = null;

// Routes.

function routeParts() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return ["%"]; // a "%" that begins no escape: no address of this page
  }
}

function route() {
  const [name, id] = routeParts();
  if (!name) return jobsView();
  if (name === "jobs" && id) return jobView(id);
  if (name === "incidents") return id ? incidentView(id) : incidentsView();
  return missingView();
}

function open() {
  view = route();
  main.replaceChildren(view.node);
  document.title = `${view.title} · otel-fr`;
  const here = location.hash.startsWith("#/incidents") ? "incidents" : "jobs";
  for (const item of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-nav]"))) {
    if (item.dataset.nav === here) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  view.update(state);
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", () => {
  open();
  main.focus();
});

// Live state.

function changed(why) {
  const firing = (state.incidents ?? []).filter((one) => one.state === "firing" && !one.caused_by).length;
  openCount.hidden = !firing;
  setText(openCount, String(firing));
  openCount.setAttribute("aria-label", `${firing} firing`);
  view?.update(state, why);
}

let told = null; // incidents from the stream while their list is loading: the list may be older

async function loadIncidents() {
  const mine = [];
  told = mine;
  try {
    const { incidents } = await getPatiently("incidents?view=brief&include=consequences");
    if (told !== mine) return; // the stream has connected again: a newer list comes, or has come
    state.incidents = incidents;
    for (const one of mine) put(one);
  } catch {
    return; // the list is loaded once the stream is connected again
  } finally {
    if (told === mine) told = null;
  }
  changed("incident");
}

function put(incident) {
  const incidents = state.incidents ?? [];
  const known = incidents.findIndex((one) => one.id === incident.id && one.run_id === incident.run_id);
  state.incidents = known < 0 ? [...incidents, incident] : incidents.with(known, incident);
}

function take(name, data) {
  if (name === "jobs") {
    state.jobs = data.jobs;
    changed("jobs");
  } else if (name === "incident") {
    told?.push(data.incident);
    put(data.incident);
    changed("incident");
  }
}

listen({
  event: take,
  async state(name) {
    live.classList.toggle("on", name === "on");
    setText(live, name === "on" ? "live" : name === "token" ? "token required" : "connection lost, reconnecting");
    if (name === "on") await loadIncidents(); // what changed while the stream was not connected
    if (name === "token") await askToken();
  },
});

function askToken() {
  const dialog = byId("login");
  const field = byId("token");
  return new Promise((done) => {
    byId("login-form").onsubmit = (event) => {
      event.preventDefault();
      useToken(field.value.trim());
      field.value = "";
      dialog.close();
    };
    dialog.onclose = () => {
      open();
      done();
    };
    if (!dialog.open) dialog.showModal();
  });
}

// Theme: the system's, unless the user has chosen one.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const themeButton = byId("theme");
const THEMES = ["system", "light", "dark"];
let theme = localStorage.getItem("otel-fr-theme") ?? "system";

function showTheme() {
  const isDark = theme === "dark" || (theme === "system" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  setText(byId("theme-name"), theme);
  view?.redraw?.();
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("otel-fr-theme", theme);
  showTheme();
}

dark.addEventListener("change", showTheme);
themeButton.addEventListener("click", nextTheme);

// Keys.

const help = byId("help");
const keysOn = byId("keys-on");
keysOn.checked = localStorage.getItem("otel-fr-keys") !== "off";
keysOn.addEventListener("change", () => localStorage.setItem("otel-fr-keys", keysOn.checked ? "on" : "off"));
byId("keys").addEventListener("click", () => help.showModal());

function step(by) {
  const items = [.../** @type {NodeListOf<HTMLElement>} */ (main.querySelectorAll("[data-item]"))].filter((item) => item.offsetParent !== null);
  if (!items.length) return;
  const now = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = items[now < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, now + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  u: () => { location.hash = view.up ?? "#/"; },
  g: () => { location.hash = "#/"; },
  i: () => { location.hash = "#/incidents"; },
  o: () => view.outliers?.(),
  m: () => view.map?.(),
  t: nextTheme,
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (!keysOn.checked || typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const action = KEYS[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});

setInterval(() => view?.tick?.(), 1000);
showTheme();
open();
