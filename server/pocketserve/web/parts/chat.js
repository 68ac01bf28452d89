// Chat with language models: one, or several side by side.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { asJson, asMarkdown, chats, messagesFor, newAnswer, newChat, titleOf } from "../chat/chats.js";
import { MarkdownView } from "../chat/markdown.js";
import { streamChat } from "../chat/stream.js";
import { bytes, milliseconds, number } from "../format.js";
import { download } from "../inputs/saving.js";
import { say, update } from "../page.js";
import { problem } from "../problems.js";
import { t } from "../words.js";
import { chatModels, defaultOf, loadIfUnloaded, memoryOf, models, refreshModels } from "./models.js";

export const part = { view: chatView, leave: () => {}, back: () => {} };

const MOST = 3; // models side by side
const SPOKEN = 300; // characters of an answer that readers hear
const NEAR_END = 160; // pixels from the end of the page where it follows the answer
const LEAST_MS = 100; // over which a speed is measured
const FIELDS = [
  { name: "temperature", step: 0.1, max: 2 }, { name: "top_p", step: 0.05, max: 1 },
  { name: "max_tokens", step: 1, min: 1 }, { name: "seed", step: 1 },
];

const chosen = { models: [], named: "" };
const asking = { control: null }; // what stops the answers that are being written
const editing = { turn: null };
const views = new WeakMap(); // answer -> its MarkdownView

function chatView([named = ""]) {
  if (models.list === null) return html`<p class="waiting">${t("loading")}</p>`;
  const usable = chatModels().map(({ name }) => name);
  choose(usable, named);
  if (chats.current === null) newChat();
  const chat = chats.current;
  return html`<h1 class="on-wide">${t("part.chat")}</h1>
    ${usable.length ? html`${settings(chat, usable)}
    <section class="log" role="log" aria-live="off" aria-label=${t("chat.log")} aria-busy=${asking.control ? "true" : "false"}>
      ${chat.turns.map((turn, index) => turnView(chat, turn, index === chat.turns.length - 1))}</section>
    ${composer()}` : html`<p class="panel">${t("chat.none")}</p>`}`;
}

/** Keep the models that are still there; begin with the named one or the first. */
function choose(usable, named) {
  if (named && named !== chosen.named && usable.includes(named)) chosen.models = [named];
  chosen.named = named;
  chosen.models = chosen.models.filter((name) => usable.includes(name));
  if (chosen.models.length === 0) chosen.models = usable.slice(0, 1);
}

function settings(chat, usable) {
  return html`<details class="panel settings"><summary>${chosen.models.join(", ")} · ${t("chat.settings")}</summary>
    ${usable.length > 1 ? html`<fieldset class="choices"><legend>${t("chat.models")}</legend>
      ${usable.map((name) => modelTick(name))}</fieldset>` : nothing}
    <label>${t("chat.system")}<textarea name="system" rows="2" dir="auto" .value=${chat.system}
      @input=${(event) => { chat.system = event.target.value; }}></textarea></label>
    <div class="fields">${FIELDS.map((field) => numberField(chat.parameters, field))}</div>
    <div class="actions">
      <button @click=${() => { stop(); newChat(); update(); }}>${t("chat.new")}</button>
      <button ?disabled=${!chat.turns.length} @click=${() => save(asJson(chat), "chat.json", "application/json")}>${t("chat.json")}</button>
      <button ?disabled=${!chat.turns.length} @click=${() => save(asMarkdown(chat), "chat.md", "text/markdown")}>${t("chat.markdown")}</button>
    </div>
    ${chats.list.length > 1 ? earlier() : nothing}</details>`;
}

function modelTick(name) {
  const isOn = chosen.models.includes(name);
  const change = (event) => {
    chosen.models = event.target.checked ? [...chosen.models, name] : chosen.models.filter((each) => each !== name);
    update();
  };
  return html`<label class="tick"><input type="checkbox" .checked=${isOn} @change=${change}
    ?disabled=${isOn ? chosen.models.length === 1 : chosen.models.length >= MOST}>${name}</label>`;
}

function numberField(parameters, { name, step, min = 0, max }) {
  const change = ({ target }) => {
    if (!target.reportValidity()) return;
    if (target.value === "") delete parameters[name];
    else parameters[name] = Number(target.value);
  };
  return html`<label>${t(`chat.${name}`)}<input type="number" name=${name} step=${step} min=${min} max=${max ?? nothing}
    inputmode="decimal" .value=${String(parameters[name] ?? "")} @change=${change}></label>`;
}

function earlier() {
  const go = (event) => { stop(); chats.current = chats.list[Number(event.target.value)]; update(); };
  return html`<label>${t("chat.earlier")}<select name="chats" @change=${go}>
    ${chats.list.map((chat, index) => html`<option value=${index} .selected=${chat === chats.current}>${titleOf(chat)}</option>`)}
  </select></label>`;
}

const save = (text, name, type) => download(new Blob([text], { type: `${type};charset=utf-8` }), name);

function turnView(chat, turn, isLast) {
  return html`<article class="turn">
    ${editing.turn === turn ? editor(chat, turn) : questionView(turn)}
    <div class="sides">${turn.answers.map((answer) => answerView(answer))}</div>
    ${isLast && !asking.control ? html`<button class="quiet" @click=${() => regenerate(chat, turn)}>${t("chat.regenerate")}</button>` : nothing}
  </article>`;
}

function questionView(turn) {
  return html`<div class="question"><h2 class="unseen">${t("chat.you")}</h2><p dir="auto">${turn.question}</p>
    ${asking.control ? nothing : html`<button class="quiet" @click=${() => edit(turn)}>${t("chat.edit")}</button>`}</div>`;
}

function edit(turn) {
  editing.turn = turn;
  update();
}

function editor(chat, turn) {
  const submit = (event) => {
    event.preventDefault();
    const question = new FormData(event.target).get("question").trim();
    editing.turn = null;
    chat.turns.splice(chat.turns.indexOf(turn));
    if (question) send(chat, question);
    update();
  };
  return html`<form class="editor" @submit=${submit} @keydown=${sendByKey}>
    <label>${t("chat.message")}<textarea name="question" rows="3" dir="auto" required .value=${turn.question}></textarea></label>
    <div class="actions"><button class="primary">${t("chat.send")}</button>
      <button type="button" @click=${() => edit(null)}>${t("chat.cancel")}</button></div></form>`;
}

function answerView(answer) {
  const isRunning = answer.state === "waiting" || answer.state === "writing";
  return html`<section class="panel reply" data-model=${answer.model} data-state=${answer.state}>
    <h2>${answer.model}</h2>
    ${answer.thought ? html`<details><summary>${t("chat.thought")}</summary><p class="thought" dir="auto">${answer.thought}</p></details>` : nothing}
    ${viewOf(answer).node}
    ${answer.failure ? problem(answer.failure) : nothing}
    ${isRunning && !answer.text ? html`<progress aria-label=${t("chat.waiting")}></progress>` : nothing}
    <p class="timing">${isRunning && !answer.text ? waitingText(answer) : factsOf(answer)}</p></section>`;
}

function viewOf(answer) {
  if (!views.has(answer)) views.set(answer, new MarkdownView());
  return views.get(answer);
}

function waitingText({ progress }) {
  return progress ? t("chat.prompt", progress) : t("chat.waiting");
}

/** Tokens, speed and memory, and why an answer ends early. */
function factsOf(answer) {
  const facts = [];
  if (answer.tokens) facts.push(t("chat.speed", { count: answer.tokens, rate: answer.rate ? number(answer.rate, 1) : "–" }));
  if (answer.firstMs) facts.push(t("chat.first", { time: milliseconds(answer.firstMs) }));
  const memory = memoryOfModel(answer.model);
  if (memory) facts.push(t("chat.memory", { memory: bytes(memory) }));
  if (answer.state === "stopped") facts.push(t("chat.stopped"));
  if (answer.end === "length") facts.push(t("chat.length"));
  return facts.join(" · ");
}

function memoryOfModel(name) {
  const model = models.list?.find((each) => each.name === name);
  return model && memoryOf(defaultOf(model));
}

function composer() {
  const submit = (event) => {
    event.preventDefault();
    const field = event.target.elements.message;
    const question = field.value.trim();
    if (!question || asking.control) return;
    field.value = "";
    send(chats.current, question);
  };
  return html`<form class="composer" @submit=${submit} @keydown=${sendByKey}>
    <label class="unseen" for="message">${t("chat.message")}</label>
    <textarea id="message" name="message" rows="1" dir="auto" placeholder=${t("chat.message")}></textarea>
    ${asking.control ? html`<button type="button" class="primary" @click=${stop}>${t("chat.stop")}</button>`
      : html`<button class="primary">${t("chat.send")}</button>`}</form>`;
}

/** Enter sends where there is a real keyboard, Shift+Enter makes a new line; on phones Enter makes one. */
function sendByKey(event) {
  if (event.key !== "Enter" || event.isComposing || event.target.tagName !== "TEXTAREA") return;
  const isMeant = event.ctrlKey || event.metaKey || (!event.shiftKey && matchMedia("(pointer: fine)").matches);
  if (!isMeant) return;
  event.preventDefault();
  event.currentTarget.requestSubmit();
}

function stop() {
  asking.control?.abort();
}

function send(chat, question) {
  const turn = { question, answers: chosen.models.map(newAnswer) };
  chat.turns.push(turn);
  return answerAll(chat, turn);
}

function regenerate(chat, turn) {
  turn.answers = chosen.models.map(newAnswer);
  return answerAll(chat, turn);
}

/** Ask the models one after the other: at the same time they would take the cores from each other. */
async function answerAll(chat, turn) {
  stop();
  const control = new AbortController();
  asking.control = control;
  update();
  follow(true);
  for (const answer of turn.answers) {
    await answerOne(chat, turn, answer, control.signal);
    update();
  }
  if (asking.control === control) asking.control = null;
  say(turn.answers.map(({ model, text }) => `${model}: ${text.slice(0, SPOKEN)}`).join(" "));
  await refreshModels(); // which also knows the memory now
}

async function answerOne(chat, turn, answer, signal) {
  const began = performance.now();
  let first = 0;
  const piece = (text, kind) => {
    first ||= performance.now();
    Object.assign(answer, { state: "writing", firstMs: first - began, [kind]: answer[kind] + text });
    answer.tokens += 1; // until the server says how many
    answer.rate = rateOf(answer.tokens, first);
    draw(answer);
  };
  try {
    if (signal.aborted) throw new DOMException("", "AbortError");
    await loadIfUnloaded(answer.model);
    const fields = { model: answer.model, messages: messagesFor(chat, answer.model, turn), ...chat.parameters };
    await streamChat(fields, signal, {
      piece: (text) => piece(text, "text"),
      thought: (text) => piece(text, "thought"),
      progress: (done, count) => { answer.progress = { done, count }; draw(answer); },
      end: (reason) => { answer.end = reason; },
      usage: (counts) => Object.assign(answer, { tokens: counts.completion_tokens, rate: rateOf(counts.completion_tokens, first) }),
    });
    answer.state = "done";
  } catch (failure) {
    answer.state = signal.aborted ? "stopped" : "failed";
    if (!signal.aborted) answer.failure = failure;
  }
  draw(answer);
}

/** Tokens a second after the first one; 0 before there is a time to measure. */
function rateOf(tokens, first) {
  const elapsed = performance.now() - first;
  return first && elapsed > LEAST_MS ? (1000 * (tokens - 1)) / elapsed : 0;
}

/** Show an answer as it stands, once a frame. */
function draw(answer) {
  const view = viewOf(answer);
  if (view.isWaiting) return;
  view.isWaiting = true;
  requestAnimationFrame(() => {
    view.isWaiting = false;
    view.write(answer.text);
    update();
    follow(false);
  });
}

/** Keep the end of the page in sight, unless the reader has scrolled away from it. */
function follow(always) {
  const { scrollHeight, scrollTop, clientHeight } = document.scrollingElement;
  if (!always && scrollHeight - scrollTop - clientHeight > NEAR_END) return;
  requestAnimationFrame(() => requestAnimationFrame(() => scrollTo(0, document.scrollingElement.scrollHeight)));
}
