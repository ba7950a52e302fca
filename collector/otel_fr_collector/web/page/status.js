// What each cell of the grid shows: one rank in one process group.

import { collectiveText, durationText, groupText, lateText, overdueText } from "./text.js";

export const STATUSES = [
  ["culprit", "culprit"],
  ["dead", "died"],
  ["behind", "stalled behind"],
  ["silent", "silent"],
  ["unheard", "no report yet"],
  ["waits", "waiting"],
  ["ended", "ended well"],
  ["ok", "on pace"],
];
const IDLE = 2; // s without a call after which a rank that is behind is not merely waiting for its next report to arrive
const WAITING = 3; // s in one collective after which a rank counts as waiting

// The grid of a job: cells[lane][i] is a status or null (not a member); worst[i] is a rank's worst one.
export function judge(job, incidents) {
  const open = incidents.filter((one) => one.state === "firing" && one.run_id === job.run_id && one.job === job.job);
  const causes = open.filter((one) => !one.caused_by);
  const culprits = new Map();
  for (const one of causes) {
    for (const rank of one.culprit_ranks) {
      if (!culprits.has(rank)) culprits.set(rank, []);
      culprits.get(rank).push(one);
    }
  }
  const { rank, state, idle_s: idle, waits } = job.ranks;
  const order = new Map(STATUSES.map(([name], index) => [name, index]));
  const worst = new Array(rank.length).fill("ok");
  const cells = job.lanes.map((lane) =>
    lane.group.map((group, i) => {
      if (group === null) return null;
      const status = cellStatus(job, lane, group, i, culprits.get(rank[i]));
      if (order.get(status) < order.get(worst[i])) worst[i] = status;
      return status;
    }),
  );
  rank.forEach((number, i) => {
    const own = culprits.has(number) ? "culprit" : rankStatus(state[i]);
    if (own && order.get(own) < order.get(worst[i])) worst[i] = own;
  });
  const tally = {};
  for (const status of worst) tally[status] = (tally[status] ?? 0) + 1;
  return { cells, worst, tally, causes, open, culprits };

  function cellStatus(job, lane, group, i, accused) {
    const id = job.groups[group].id;
    if (accused?.some((one) => !one.process_group || one.process_group.id === id)) return "culprit";
    const own = rankStatus(state[i]);
    if (own) return own;
    const front = job.groups[group].enqueued[1];
    if ((lane.enqueued[i] ?? 0) < front && (idle[i] ?? 0) >= IDLE) return "behind";
    if (waits[i] && waits[i][2] === group && waits[i][3] >= WAITING) return "waits";
    return "ok";
  }
}

function rankStatus(state) {
  if (state === "running") return null;
  if (state === "raised" || state === "killed" || state === "gone") return "dead";
  return state;
}

// The ranks that differ from the rest, worst first; not those that only wait or have ended well.
export function outliers(judged, limit) {
  const shown = STATUSES.map(([name]) => name).filter((name) => !["waits", "ended", "ok"].includes(name));
  const found = [];
  for (const name of shown) {
    judged.worst.forEach((status, i) => {
      if (status === name) found.push(i);
    });
  }
  return { shown: found.slice(0, limit), more: Math.max(0, found.length - limit) };
}

export function describe(job, lane, i) {
  const { rank, host, state, how, site, waits, late, step, overdue, idle_s: idle } = job.ranks;
  const parts = [`rank ${rank[i]}`];
  const group = lane === null ? null : job.lanes[lane].group[i];
  if (group !== null) {
    const done = job.lanes[lane].completed[i];
    const enqueued = job.lanes[lane].enqueued[i];
    const front = job.groups[group].enqueued[1];
    const known = job.groups[group];
    parts.push(`group ${groupText(known)}: ${enqueued ?? "nothing"} enqueued, ${done ?? "nothing"} completed`);
    if (enqueued !== null && enqueued < front) parts.push(`${front - enqueued} behind`);
  } else if (lane !== null) parts.push(`in no group of ${job.lanes[lane].name}`);
  parts.push(state[i] === "running" ? "running" : `${state[i]}${how[i] ? ` (${how[i]})` : ""}`);
  if (waits[i]) parts.push(`in ${collectiveText(waits[i][0], waits[i][1])} for ${durationText(waits[i][3])}`);
  else if (idle[i] !== null) parts.push(`idle for ${durationText(idle[i])}`);
  if (late[i]) parts.push(`comes late in ${groupText(job.groups[late[i][0]])}: ${lateText(late[i][1], late[i][2], late[i][3])}`);
  if (step[i] !== null) parts.push(`step ${step[i]}`);
  if (overdue[i]) parts.push(overdueText(overdue[i]));
  if (site[i]) parts.push(`at ${site[i]}`);
  if (host[i]) parts.push(`on ${host[i]}`);
  return parts.join("; ");
}
