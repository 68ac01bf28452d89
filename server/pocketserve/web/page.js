// Draws the page anew after changes, at most once a frame, and speaks to screen readers.
import { render } from "./vendor/lit-html/lit-html.js";

const SPEECH_PAUSE_MS = 1000; // a reader must not hear thirty labels a second

let template = () => "";
let waiting = false;

/** Set what the page shows: a function that returns a template. */
export function show(view) {
  template = view;
  update();
}

export function update() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    render(template(), document.getElementById("page"));
  });
}

/** After the next drawing, scroll as little as shows the first element of each selector. */
export function reveal(...selectors) {
  update();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    for (const selector of selectors) document.querySelector(selector)?.scrollIntoView({ block: "nearest" });
  }));
}

const speech = { text: "", last: -Infinity, timer: 0 };

/** The one element that readers hear. */
export const statusElement = Object.assign(document.createElement("p"), { className: "unseen" });
statusElement.setAttribute("role", "status");

/** Say a text, unless it was the last one; at most one a second, the newest. */
export function say(text) {
  if (text === speech.text) return;
  speech.text = text;
  clearTimeout(speech.timer);
  const pause = Math.max(0, speech.last + SPEECH_PAUSE_MS - performance.now());
  speech.timer = setTimeout(speakNow, pause);
}

function speakNow() {
  speech.last = performance.now();
  statusElement.textContent = speech.text;
}

/** Make an element: its properties, and attributes under `attributes`. */
export function element(tag, { attributes = {}, ...properties } = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
