// The hosts of a job: which ranks run there, and how they are. Shown from two hosts on.

import { h, keyed, number, setCells, setClass, setText } from "./dom.js";
import { STATUSES, tally } from "./status.js";
import { ranksText } from "./text.js";

const ROWS = 200; // hosts in the table, those whose ranks differ first

export function makeHosts() {
  const title = h("summary");
  const body = h("tbody");
  const more = h("p", { class: "quiet", hidden: true });
  const head = h("tr", {}, ["host", "state", "ranks"].map((text) => h("th", { scope: "col" }, text)));
  const node = h("details", { id: "hosts", hidden: true }, title,
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, head), body)), more);

  function update(job, judged) {
    const found = byHost(job, judged);
    node.hidden = found.length < 2;
    if (node.hidden) return;
    const odd = found.filter((one) => one.worst < LEVEL).map((one) => one.host);
    setText(title, `${number(found.length)} hosts${odd.length ? `; ranks differ on ${listText(odd)}` : ""}`);
    more.hidden = found.length <= ROWS;
    setText(more, `${number(found.length - ROWS)} more hosts.`);
    keyed(body, found.slice(0, ROWS), (one) => one.host,
      () => h("tr", {}, h("th", { scope: "row" }), h("td"), h("td")), (row, one) => {
        const texts = [one.host, stateText(judged, one.at), ranksText(one.at.map((i) => job.ranks.rank[i]))];
        setCells(row, texts);
        setClass(row.children[1], `cell s-${STATUSES[one.worst][0]}`);
      });
  }

  return { node, update };
}

const LEVEL = STATUSES.findIndex(([name]) => name === "waits"); // from here on a status is no difference from the rest

function byHost(job, judged) {
  const hosts = new Map();
  job.ranks.host.forEach((name, i) => {
    const host = name || "host not known";
    if (!hosts.has(host)) hosts.set(host, { host, at: [], worst: STATUSES.length - 1 });
    const own = hosts.get(host);
    own.at.push(i);
    own.worst = Math.min(own.worst, STATUSES.findIndex(([known]) => known === judged.worst[i]));
  });
  return [...hosts.values()].sort((a, b) => a.worst - b.worst || a.at[0] - b.at[0]);
}

function stateText(judged, at) {
  return tally(judged, judged.worst, at).map(([, word, count]) => (count === at.length ? word : `${number(count)} ${word}`)).join(", ");
}

function listText(names) {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${number(names.length - 3)} more` : "");
}
