// What each cell of the grid shows: one rank in one process group.

import { kindOf } from "./card.js";
import { collectiveText, durationText, groupText, lateText, overdueText, rankStateText } from "./text.js";

// Each status, worst first, and its word in rows, legend and filter. For "dead", the word says how the rank ended.
export const STATUSES = [
  ["culprit", "culprit"],
  ["dead", ""],
  ["slow", "slow"],
  ["behind", "behind"],
  ["silent", "silent"],
  ["unheard", rankStateText("unheard")],
  ["waits", "waiting"],
  ["stopped", "stopped"],
  ["ended", "ended"],
  ["ok", "running"],
];
const WORDS = new Map(STATUSES.map(([name, word]) => [name, word]));
const ORDER = new Map(STATUSES.map(([name], index) => [name, index]));
export const LEVEL = ORDER.get("waits") ?? 0; // ranks with a status from here on do not differ from the rest
const WAITING = 3; // s in one collective after which a rank counts as waiting

// The grid of a job: cells[lane][i] is a status or null (not a member); worst[i] is a rank's worst status.
export function judge(job, incidents) {
  const open = incidents.filter((one) => one.state === "firing" && one.run_id === job.run_id && one.job === job.job);
  const culprits = new Map();
  for (const one of open.filter((one) => !one.caused_by)) {
    for (const rank of one.culprit_ranks) {
      if (!culprits.has(rank)) culprits.set(rank, []);
      culprits.get(rank).push(one);
    }
  }
  const { rank, state, waits } = job.ranks;
  const awaited = new Set((job.waiting ?? []).filter((one) => one.seconds >= WAITING).map((one) => one.group));
  const worst = new Array(rank.length).fill("ok");
  const cells = job.lanes.map((lane) =>
    lane.group.map((group, i) => {
      if (group === null) return null;
      const status = cellStatus(job, lane, group, i, culprits.get(rank[i]));
      if (ORDER.get(status) < ORDER.get(worst[i])) worst[i] = status;
      return status;
    }),
  );
  rank.forEach((number, i) => {
    const own = blame(culprits.get(number)) ?? rankStatus(state[i]);
    if (own && ORDER.get(own) < ORDER.get(worst[i])) worst[i] = own;
  });
  return { cells, worst, word: (status, i) => WORDS.get(status) || state[i] };

  // A rank in a call is not behind, whatever its counts are in other groups. A rank is behind only in a group in which
  // others wait, because counts also differ with the age of the reports.
  function cellStatus(job, lane, group, i, accused) {
    const id = job.groups[group].id;
    const own = blame(accused?.filter((one) => !one.process_group || one.process_group.id === id)) ?? rankStatus(state[i]);
    if (own) return own;
    const isBehind = (lane.enqueued[i] ?? 0) < job.groups[group].enqueued[1];
    if (waits[i]) return waits[i][3] >= WAITING && (isBehind || waits[i][2] === group) ? "waits" : "ok";
    return isBehind && awaited.has(group) ? "behind" : "ok";
  }
}

// Counts these ranks (all, or those at `indexes`) by status and word, worst first: [status, word, count].
export function tally(judged, statuses, indexes = statuses.keys()) {
  const found = new Map();
  for (const i of indexes) {
    if (statuses[i] === null) continue;
    const word = judged.word(statuses[i], i);
    const [, , count] = found.get(word) ?? [null, null, 0];
    found.set(word, [statuses[i], word, count + 1]);
  }
  return [...found.values()].sort((a, b) => ORDER.get(a[0]) - ORDER.get(b[0]));
}

function blame(incidents) {
  if (!incidents?.length) return null;
  return incidents.some((one) => kindOf(one) === "firing") ? "culprit" : "slow";
}

// The status for a state by which the API counts a host's ranks; `wordOf` returns its word.
export function statusOf(state) {
  return { waiting: "waits", running: "ok" }[state] ?? rankStatus(state);
}

export function wordOf(state) {
  return WORDS.get(statusOf(state)) || state;
}

function rankStatus(state) {
  if (state === "running") return null;
  if (state === "raised" || state === "killed" || state === "gone") return "dead";
  return state;
}

// The ranks that differ from the rest, worst first. Ranks that only wait, were stopped or have ended well do not.
export function outliers(judged, limit) {
  const found = [];
  for (const [name] of STATUSES.slice(0, LEVEL)) {
    judged.worst.forEach((status, i) => {
      if (status === name) found.push(i);
    });
  }
  return found.slice(0, limit);
}

// What is known about a rank, in one line. It names only the group in which the rank differs most.
export function describe(job, judged, i) {
  const { rank, host, state, how, site, waits, late, step, overdue, idle_s: idle } = job.ranks;
  const worst = judged.worst[i];
  const parts = [`rank ${rank[i]}`, `${judged.word(worst, i)}${state[i] !== "running" && how[i] ? ` (${how[i]})` : ""}`];
  const at = worst === "ok" ? -1 : judged.cells.findIndex((lane) => lane[i] === worst);
  if (at >= 0) {
    const lane = job.lanes[at];
    const group = job.groups[lane.group[i]];
    const enqueued = lane.enqueued[i];
    parts.push(`group ${groupText(group)}: ${enqueued ?? "nothing"} enqueued, ${lane.completed[i] ?? "nothing"} completed`);
    if (enqueued !== null && enqueued < group.enqueued[1]) parts.push(`${group.enqueued[1] - enqueued} behind`);
  }
  if (waits[i]) parts.push(`in ${collectiveText(waits[i][0], waits[i][1])} for ${durationText(waits[i][3])}`);
  else if (idle[i] !== null) parts.push(`idle for ${durationText(idle[i])}`);
  if (late[i]) parts.push(`comes late in ${groupText(job.groups[late[i][0]])}: ${lateText(late[i][1], late[i][2], late[i][3])}`);
  if (step[i] !== null) parts.push(`step ${step[i]}`);
  if (overdue[i]) parts.push(overdueText(overdue[i]));
  if (site[i]) parts.push(`at ${site[i]}`);
  if (host[i]) parts.push(`on ${host[i]}`);
  return parts.join("; ");
}
