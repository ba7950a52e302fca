// Writes ranks, groups, collectives, call sites and durations for a reader, as otel_fr/presentation.py does.

const MAX_RANGES = 12; // ranges of ranks that are written out
const MIN_STEPPED = 5; // ranks in equal steps that are written as one range; fewer are listed

// [0, 1, 2, 5] -> "0-2, 5"; [5, 13, ..., 69] -> "5-69 step 8"; long lists end with their length.
export function rankList(ranks) {
  const items = [...new Set(ranks)].sort((a, b) => a - b);
  const parts = [];
  for (let start = 0; start < items.length; ) {
    const end = endOfRange(items, start);
    const step = items[end] - items[end - 1];
    parts.push(end === start ? `${items[start]}` : `${items[start]}-${items[end]}${step > 1 ? ` step ${step}` : ""}`);
    start = end + 1;
  }
  if (parts.length > MAX_RANGES + 1) parts.splice(MAX_RANGES, parts.length, `... (${items.length} in all)`);
  return parts.join(", ");
}

function endOfRange(items, start) {
  const step = items[start + 1] - items[start];
  let end = start + 1;
  while (items[end + 1] - items[end] === step) end++;
  return end - start + 1 >= (step === 1 ? 3 : MIN_STEPPED) ? end : start;
}

export function ranksText(ranks) {
  const size = new Set(ranks).size;
  return size ? `${size === 1 ? "rank" : "ranks"} ${rankList(ranks)}` : "no rank";
}

// The API's "0-3,8-12:2" -> [0, 1, 2, 3, 8, 10, 12]
export function decodeRanks(text) {
  const ranks = [];
  for (const part of text ? text.split(",") : []) {
    const [first, last, step] = part.split(/[-:]/).map(Number);
    for (let rank = first; rank <= (last ?? first); rank += step ?? 1) ranks.push(rank);
  }
  return ranks;
}

// [0, 1, 2, 3, 8] -> "0-3,8", of ranks in rising order
export function encodeRanks(ranks) {
  const parts = [];
  for (let start = 0; start < ranks.length; ) {
    let end = start;
    while (ranks[end + 1] === ranks[end] + 1) end++;
    parts.push(end > start ? `${ranks[start]}-${ranks[end]}` : `${ranks[start]}`);
    start = end + 1;
  }
  return parts.join(",");
}

export function groupText({ name, description }) {
  return ["", "undefined", name].includes(description) ? name : `${description} (${name})`;
}

export function collectiveText(operation, number) {
  return number === null ? operation : `${operation} number ${number}`;
}

export function siteText(site) {
  return site || "location not known";
}

// Makes call sites short: "/a/b/data.py:9 load" -> "load data.py:9", with as much of the path as distinguishes the files.
/** @param {Iterable<string>} sites @returns {(site: string | undefined) => string} */
export function siteShortener(sites) {
  const files = new Map(); // file name -> the paths that end with it
  for (const site of sites) {
    const path = SITE.exec(site)?.[1];
    if (!path) continue;
    const name = path.split("/").pop() ?? "";
    if (!files.has(name)) files.set(name, new Set());
    files.get(name).add(path);
  }
  return (site) => {
    const [, path, line, name] = SITE.exec(site ?? "") ?? [];
    if (!path) return siteText(site);
    const parts = path.split("/");
    const others = [...(files.get(parts[parts.length - 1]) ?? [])].filter((other) => other !== path);
    let count = 1;
    while (count < parts.length && others.some((other) => `/${other}`.endsWith(`/${parts.slice(-count).join("/")}`))) count++;
    return `${name ? `${name} ` : ""}${parts.slice(-count).join("/")}:${line}`;
  };
}

const SITE = /^(.+):(\d+)(?: (.*))?$/;

// A rank's state in a reader's words; `state` is as in the API.
export function rankStateText(state) {
  return state === "unheard" ? "no report yet" : state;
}

// Where a rank runs, from an entry of the API's `places`: "gpu-17, pod train/llama-0, local rank 3, GPU 3, pid 4711".
export function placeText(place) {
  if (!place) return "";
  const { host, node, pod, namespace, pid, gpu } = place;
  const inside = pod || (node && host !== node ? host : "");
  const machine = [node || host, inside && inside !== (node || host) && `pod ${namespace ? `${namespace}/` : ""}${inside}`];
  const own = [place.local_rank !== null && `local rank ${place.local_rank}`, gpu && `GPU ${gpu}`, pid !== null && `pid ${pid}`];
  return [...machine, ...own].filter(Boolean).join(", ");
}

const SAFE = /^[A-Za-z0-9][A-Za-z0-9._-]*$/; // names go into a shell: they come from the job

// The command that shows the stack of a process in a terminal. "": its pid is not known.
export function debugCommand(place) {
  if (!Number.isInteger(place?.pid)) return "";
  const dump = `py-spy dump --pid ${place.pid}`;
  const host = place.node || place.host;
  if (SAFE.test(place.pod ?? "")) {
    const space = SAFE.test(place.namespace ?? "") ? `-n ${place.namespace} ` : "";
    return `kubectl exec ${space}${place.pod} -- ${dump}`;
  }
  return SAFE.test(host ?? "") ? `ssh ${host} ${dump}` : dump;
}

// The summary of an incident. It is in the present tense, so for a resolved incident, this says when it was true.
export function stateSummary({ summary, state }) {
  return state === "resolved" ? `while it fired: ${summary}` : summary;
}

// [rank, text] pairs -> a map from each text to its ranks.
export function ranksByText(texts) {
  const found = new Map();
  for (const [rank, text] of texts) {
    if (!found.has(text)) found.set(text, []);
    found.get(text).push(rank);
  }
  return found;
}

const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];

// "3.2 MB": with decimal prefixes, as in nccl-tests.
export function bytesText(count) {
  let at = 0;
  for (; count >= 999.5 && at < BYTES.length - 1; at++) count /= 1000;
  return `${Number(count.toPrecision(3))} ${BYTES[at]}`;
}

export function shareText(share) {
  return `${Math.round(share * 100)} %`;
}

// A duration that may be short: "120 µs", "4.2 ms", "1.5 s".
export function shortText(seconds) {
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  return seconds < 1 ? `${Number((seconds * 1e3).toPrecision(3))} ms` : durationText(seconds);
}

export function durationText(seconds) {
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 100) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

// A sentence about the rank that costs a job most, from the API's rates.
export function slowestText({ rank, process_group: group, waited, over_s: over, lost_per_step_s: lost }) {
  const step = lost === null ? "" : ` Each step loses ${shortText(lost)}.`;
  return `Rank ${rank} slows the job down: ${group} waited for it for ${shareText(waited)} of the latest ${durationText(over)}.${step}`;
}

// The duration of something that is not over. It changes once a second: "47 s", "3 min 5 s".
export function lastingText(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return whole < 100 ? `${whole} s` : durationText(whole);
}

// How late a rank comes: in which share of the blocks with waits, by how much, and what share of the time others wait.
export function lateText(share, seconds, waited) {
  const behind = seconds < 1 ? `${Math.round(seconds * 1000)} ms` : durationText(seconds);
  return `${Math.round(share * 100)} % by ${behind}; others wait ${Math.round(waited * 100)} %`;
}

// A heartbeat or section that has passed its limit, from the API's [kind, name, seconds, limit].
export function overdueText(overdue) {
  if (!overdue) return "";
  const [kind, name, seconds, limit] = overdue;
  const what = { section: `section ${name} open`, outside: "in no section" }[kind] ?? `no ${kind}`;
  return `${what} for ${durationText(seconds)} (limit ${durationText(limit)})`;
}

export function agoText(seconds) {
  for (const [limit, size, unit] of /** @type {[number, number, string][]} */ ([[90, 1, "s"], [5400, 60, "min"], [129600, 3600, "h"]])) {
    if (seconds < limit) return `${Math.round(Math.max(0, seconds) / size)} ${unit} ago`;
  }
  return `${Math.round(seconds / 86400)} days ago`;
}
