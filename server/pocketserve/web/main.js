// The page: who is let in, which part is seen, and what is said when the server is away.
import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { loginView } from "./parts/login.js";
import { chatModels, modelsView, refreshModels } from "./parts/models.js";
import { show, statusElement, update } from "./page.js";
import { enter, isOpen, session, takeTicket } from "./server.js";
import { again, startWatch, stopWatch, watched } from "./watch.js";
import { language, t } from "./words.js";

const LIST_PERIOD = 5; // samples of the watch between two looks at the list
const nothingToDo = () => {};

/** What each part shows, what it does when it is left, and when the server is back. */
const PARTS = {
  models: { view: modelsView, leave: nothingToDo, back: nothingToDo },
  try: later(() => import("./parts/try.js")),
  chat: later(() => import("./parts/chat.js")),
  compare: later(() => import("./parts/compare.js")),
  activity: later(() => import("./parts/activity.js")),
};
const AWAY = { away: "away", frozen: "frozen" };

let route = readRoute();
let looks = 0;
let locked = ""; // why a token is asked for: "", "ended" or a failure; null for who is in

function readRoute() {
  const [part, ...rest] = location.hash.slice(1).split("/").map(decoded);
  return { part: Object.hasOwn(PARTS, part) ? part : "models", rest };
}

/** Make a part whose modules are fetched when it is first opened. */
function later(load) {
  const part = { leave: nothingToDo, back: nothingToDo };
  const fetched = (module) => { Object.assign(part, module.part); update(); };
  part.view = () => {
    load().then(fetched, nothingToDo); // without a server the banner says so
    return html`<p class="waiting">${t("loading")}</p>`;
  };
  return part;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // anybody may write an address
  }
}

function follow() {
  if (comeIn()) return;
  const before = route.part;
  route = readRoute();
  if (before !== route.part) PARTS[before].leave();
  if (locked === null && route.part !== "activity") refreshModels();
  if (locked === null && route.part === "activity") again();
  writeTitle();
  update();
}

function writeTitle() {
  document.title = `${t(`part.${route.part}`)} – Pocketserve`;
}

function frame() {
  return html`
    <a class="skip" href="#content" @click=${skip}>${t("skip")}</a>
    <header>
      <a class="brand" href="#models"><img src=${document.querySelector("link[rel=icon]").href} alt="" width="28" height="28">Pocketserve</a>
      ${locked === null ? badge() : nothing}
    </header>
    ${locked === null ? navigation() : nothing}
    ${locked === null && watched.state in AWAY ? awayBanner() : nothing}
    <main id="content" tabindex="-1">${locked === null ? PARTS[route.part].view(route.rest) : loginView(locked, letIn)}</main>
    ${statusElement}`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

function navigation() {
  const shown = Object.keys(PARTS).filter((part) => part !== "chat" || part === route.part || chatModels().length);
  return html`<nav aria-label=${t("parts")}>${shown.map(
    (part) => html`<a href="#${part}" aria-current=${part === route.part ? "page" : nothing}>${t(`part.${part}`)}</a>`,
  )}</nav>`;
}

function badge() {
  const state = watched.state in AWAY ? watched.state : "there";
  return html`<span class="badge ${state}">${t(`server.${state}`)}</span>`;
}

function awayBanner() {
  return html`<div class="banner" role="alert">
    <strong>${t(`${AWAY[watched.state]}.title`)}</strong> ${t(`${AWAY[watched.state]}.help`)}
  </div>`;
}

function letIn() {
  locked = null;
  refreshModels();
  startWatch(onWatch, () => route.part === "activity");
  update();
}

/** Go on by itself when the server is back; ask for the token when the session is no more. */
function onWatch(before) {
  if (watched.state === "locked") lock("ended");
  else if (watched.state === "there" && before in AWAY) refreshModels().then(PARTS[route.part].back);
  else if (watched.state === "there" && route.part === "models" && ++looks % LIST_PERIOD === 0) refreshModels();
  update();
}

function lock(reason) {
  stopWatch();
  session.end();
  PARTS[route.part].leave();
  locked = reason;
  update();
}

/** Come in by the address's ticket, if it has one; an open page may be given one, too. */
function comeIn() {
  const ticket = takeTicket();
  if (ticket === null) return false;
  route = readRoute();
  enter(ticket).then(letIn, (failure) => lock(failure));
  return true;
}

async function start() {
  document.documentElement.lang = language;
  writeTitle();
  addEventListener("hashchange", follow);
  if (!comeIn() && (session.get() !== null || await isOpen())) letIn();
  show(frame);
}

start();
