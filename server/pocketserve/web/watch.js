// Asks for the server's numbers every two seconds while the page is seen: the charts, and whether the server is there.
import { ask, session } from "./server.js";
import { parseMetrics } from "./metrics.js";

const PERIOD_MS = 2000;
const PATIENCE_MS = 5000; // a server that answers nothing for so long stands still
const KEPT = 300; // samples: ten minutes

export const watched = { state: "unknown", samples: [], since: 0 };

let timer = 0;
let changed = () => {};
let entered = false; // by a session, which ends with the server's process

/** Begin; `onChange` is called after each sample, and when the server comes or goes. */
export function startWatch(onChange) {
  changed = onChange;
  entered = session.get() !== null;
  document.addEventListener("visibilitychange", again);
  again();
}

export function stopWatch() {
  clearTimeout(timer);
  document.removeEventListener("visibilitychange", again);
}

function again() {
  clearTimeout(timer);
  if (!document.hidden) tick();
}

async function tick() {
  const before = watched.state;
  try {
    const text = await (await ask("GET", "/metrics", null, { timeoutMs: PATIENCE_MS })).text();
    keep({ time: Date.now() / 1000, values: parseMetrics(text) });
    watched.state = entered && session.get() === null ? "locked" : "there";
  } catch (failure) {
    watched.state = stateOf(failure);
  }
  // Who answers at this port after two misses may be another app: it is sent no session, and gets no input.
  if (watched.state === "away" && before === "away") session.end();
  changed(watched.state !== before ? before : null);
  if (watched.state === "locked") return;
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(tick, PERIOD_MS);
}

function keep(sample) {
  watched.samples.push(sample);
  watched.samples.splice(0, watched.samples.length - KEPT);
}

function stateOf(failure) {
  if (failure.status === 401) return "locked";
  if (failure.code === "FROZEN") return "frozen";
  return failure.status === 0 ? "away" : "there";
}
