// Requests to the collector, and its live stream. URLs are relative, so the page works behind any prefix.

const RETRY = [500, 1000, 2000, 5000];
const SILENCE = 40000; // ms; the collector sends at least a comment every 15 s
const AGAIN = 2000; // ms after which a busy collector is asked again

let token = sessionStorage.getItem("otel-fr-token") ?? "";

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export function useToken(text) {
  token = text;
  sessionStorage.setItem("otel-fr-token", text);
}

export async function get(path, method = "GET") {
  const answer = await fetch(`api/v1/${path}`, { method, headers: headers({ Accept: "application/json" }), cache: "no-store" });
  if (!answer.ok) {
    let text = `the collector returned status ${answer.status}`;
    try {
      text = (await answer.json()).error ?? text;
    } catch {
      // not JSON: the status is enough
    }
    throw new Refused(answer.status, text);
  }
  return answer.json();
}

// As `get`, but asks a busy collector again until it answers.
export async function getPatiently(path) {
  for (;;) {
    try {
      return await get(path);
    } catch (error) {
      if (!(error instanceof Refused && error.status === 503)) throw error;
    }
    await new Promise((done) => setTimeout(done, AGAIN));
  }
}

// Calls on.event(name, data) for each event, and on.state("on" | "off" | "token") as the connection changes.
export async function listen(on) {
  for (let attempt = 0; ; attempt++) {
    try {
      await readStream(on, () => {
        attempt = 0;
      });
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        await on.state("token");
        continue;
      }
    }
    on.state("off");
    await new Promise((done) => setTimeout(done, RETRY[Math.min(attempt, RETRY.length - 1)]));
  }
}

async function readStream(on, alive) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE);
  try {
    const answer = await fetch("api/v1/events", {
      headers: headers({ Accept: "text/event-stream" }),
      cache: "no-store",
      signal: stop.signal,
    });
    if (!answer.ok) throw new Refused(answer.status, "refused");
    on.state("on");
    alive();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
      text += value.replaceAll("\r", "");
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        deliver(text.slice(0, end), on);
        text = text.slice(end + 2);
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

function deliver(block, on) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (data.length) on.event(name, JSON.parse(data.join("\n")));
}
