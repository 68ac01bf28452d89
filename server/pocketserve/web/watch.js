// Asks whether the server is there while the page is seen; on request also for its numbers, which the charts show.
import { ask, session } from "./server.js";
import { parseMetrics } from "./metrics.js";

const PERIOD_MS = 2000;
const REST_PERIOD_MS = 10_000; // while nobody touches the page
const TOUCHED_MS = 20_000; // after a touch the page counts as used
const PATIENCE_MS = 5000; // a server that answers nothing for so long stands still
const KEPT = 300; // samples: ten minutes

export const watched = { state: "unknown", samples: [], since: 0 };

let timer = 0;
let changed = () => {};
let touched = performance.now();
let wantsNumbers = () => true;
let entered = false; // by a session, which ends with the server's process

/**
 * Begin; `onChange` is called after each look, and when the server comes or goes.
 *
 * `needsNumbers()` says whether the part that is shown has charts.
 */
export function startWatch(onChange, needsNumbers) {
  changed = onChange;
  wantsNumbers = needsNumbers;
  for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, onTouch, { passive: true });
  entered = session.get() !== null;
  document.addEventListener("visibilitychange", again);
  again();
}

export function stopWatch() {
  clearTimeout(timer);
  document.removeEventListener("visibilitychange", again);
  for (const kind of ["pointerdown", "keydown"]) removeEventListener(kind, onTouch);
}

function onTouch() {
  const wasAtRest = isAtRest();
  touched = performance.now();
  if (wasAtRest) again();
}

const isAtRest = () => performance.now() - touched > TOUCHED_MS;

/** Look now. */
export function again() {
  clearTimeout(timer);
  if (!document.hidden) tick();
}

async function tick() {
  const before = watched.state;
  try {
    if (wantsNumbers()) await readNumbers();
    else await ask("GET", "/v2", null, { timeoutMs: PATIENCE_MS });
    watched.state = entered && session.get() === null ? "locked" : "there";
  } catch (failure) {
    watched.state = stateOf(failure);
  }
  // Who answers at this port after two misses may be another app: it is sent no session, and gets no input.
  if (watched.state === "away" && before === "away") session.end();
  changed(watched.state !== before ? before : null);
  if (watched.state === "locked") return;
  clearTimeout(timer);
  const period = isAtRest() && !wantsNumbers() ? REST_PERIOD_MS : PERIOD_MS;
  if (!document.hidden) timer = setTimeout(tick, period);
}

async function readNumbers() {
  const text = await (await ask("GET", "/metrics", null, { timeoutMs: PATIENCE_MS })).text();
  keep({ time: Date.now() / 1000, values: parseMetrics(text) });
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
