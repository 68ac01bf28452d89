// Try a model: choose it, give it an input, see the answer, take the request with you.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { answerView, summary } from "../answers/answer.js";
import { historyView, remember } from "../answers/history.js";
import { Bench } from "../inputs/bench.js";
import { available, defaultOf, learnTask, loadIfUnloaded, models, natural, taskName } from "./models.js";
import { reveal, say, update } from "../page.js";
import { askMetadata, predict } from "../predict.js";
import { problem } from "../problems.js";
import { snippetsView } from "./snippets.js";
import { t } from "../words.js";

export const part = { view: tryView, leave: leaveTry, back: retryTry };

const LAST = "pocketserve-model"; // of this tab, in the session's storage

const bench = new Bench(ask);
const tried = {
  turn: 0, model: "", version: "", busy: false, pending: false, failure: null, answer: null, metadata: null,
};

/** Stop the camera and the microphone; the input and its answer stay. */
function leaveTry() {
  bench.pause();
}

function tryView([model = "", version = ""]) {
  const usable = (models.list ?? []).filter((each) => available(each).length);
  const name = model || lastOf(usable);
  if (name && (name !== tried.model || version !== tried.version)) open(name, version);
  return html`<h1 class="on-wide">${t("part.try")}</h1>
    ${models.list === null ? html`<p class="waiting">${t("loading")}</p>` : choosers(usable, name, version)}
    ${models.list !== null && !name ? html`<p class="panel">${t("try.help")}</p>` : nothing}
    ${tried.failure && !tried.metadata ? problem(tried.failure) : nothing}
    ${tried.metadata ? workView() : nothing}
    ${tried.busy && !tried.metadata ? html`<p class="waiting">${t("try.loading", { name })}</p>` : nothing}`;
}

/** Ask for the card again that could not be had while the server was away. */
function retryTry() {
  if (tried.failure && !tried.metadata && tried.model) open(tried.model, tried.version);
}

/** The model that this tab tried last, if it can still be asked. */
function lastOf(usable) {
  const last = tried.model || sessionStorage.getItem(LAST) || "";
  return usable.some(({ name }) => name === last) ? last : "";
}

function choosers(usable, name, version) {
  const go = (model, chosen) => { location.hash = ["try", model, chosen].filter(Boolean).map(encodeURIComponent).join("/"); };
  const own = models.list.find((each) => each.name === name);
  const versions = own ? available(own) : [];
  return html`<div class="choosers">
    <label>${t("model")}<select @change=${(event) => go(event.target.value, "")}>
      ${name ? nothing : html`<option value="" selected>${t("try.choose")}</option>`}
      ${usable.map((each) => html`<option value=${each.name} ?selected=${each.name === name}>${each.name} – ${taskOf(each)}</option>`)}
    </select></label>
    ${versions.length > 1 ? html`<label>${t("fact.version")}<select @change=${(event) => go(name, event.target.value)}>
      ${[...versions].sort(natural).map((each) => html`<option value=${each.version} ?selected=${version ? each.version === version : each.default}>${each.version}</option>`)}
    </select></label>` : nothing}</div>`;
}

/** The task in words; the open model's is known by its card. */
function taskOf(model) {
  const isOpen = tried.metadata?.name === model.name;
  return taskName(isOpen ? tried.metadata.card.task : defaultOf(model).task);
}

/** Ask for the card, which loads the model. An input that the new model takes, too, is asked of it at once. */
async function open(model, version) {
  const isSame = tried.model === model;
  Object.assign(tried, { model, version, busy: true, failure: null });
  if (!isSame && !bench.holdsInput()) Object.assign(tried, { metadata: null, answer: null });
  bench.forgetOptions();
  sessionStorage.setItem(LAST, model);
  const isShown = () => tried.model === model && tried.version === version;
  try {
    await loadIfUnloaded(model);
    const metadata = await askMetadata(model, version);
    if (!isShown()) return;
    tried.metadata = metadata;
    learnTask(model, metadata.card.task);
    bench.open(metadata);
    if (bench.sample) bench.again();
    else tried.answer = null;
  } catch (failure) {
    if (!isShown()) return;
    Object.assign(tried, { failure, metadata: null, answer: null });
  }
  tried.busy = false;
  update();
}

/** A picture comes first, with the answer below it; a form comes before its answer. */
function workView() {
  const stage = bench.stageView();
  const isWaiting = tried.pending || tried.busy;
  return html`<div class="work ${stage ? "pictured" : ""}" data-model=${tried.metadata.name} aria-busy=${isWaiting ? "true" : "false"}>
    ${bench.sample ? nothing : html`<section class="first">${bench.samplesView()}</section>`}
    ${stage ? html`<section class="seen" aria-label=${t("try.input")}>${stage}</section>` : nothing}
    ${stage ? answerPanel(isWaiting) : nothing}
    <section class="panel controls" aria-label=${t("try.controls")}>
      ${bench.view(bench.sample !== null)}
      <p class="help" lang="en">${tried.metadata.parameters?.description ?? ""}</p></section>
    ${stage ? nothing : answerPanel(isWaiting)}</div>
    ${historyView()}
    ${snippetsView(tried.model, tried.version, bench)}`;
}

function answerPanel(isWaiting) {
  const { card } = tried.metadata;
  return html`<section class="panel answered ${isWaiting ? "stale" : ""}" aria-label=${t("try.answer")}>
    ${isWaiting ? html`<progress aria-label=${t("try.asking")}></progress>` : nothing}
    ${tried.failure ? html`${problem(tried.failure)}${againButton()}` : nothing}
    ${tried.answer && bench.sample ? answerView(tried.answer, bench.sample) : html`<p class="help" lang="en">${card.answer ?? t("try.none")}</p>`}
  </section>`;
}

function againButton() {
  if (!bench.sample || bench.sample.live) return nothing;
  return html`<button @click=${() => bench.again()}>${t("again")}</button>`;
}

/** Note an answer in the history, with a picture of it once it is drawn. */
async function keep(model, answer, sample, drawn) {
  const { input } = bench;
  await drawn;
  remember(model, answer, sample, (await input?.thumbnail?.()) ?? null);
}

/** Ask about a sample; returns the failure, if there was one. What was asked since has its own answer. */
async function ask(sample) {
  const { model, version } = tried;
  const turn = ++tried.turn;
  const isShown = () => tried.turn === turn && bench.sample === sample && tried.model === model && tried.version === version;
  const isFirst = tried.answer === null;
  tried.pending = !sample.live;
  update();
  try {
    const answer = await predict(model, version, bench, sample);
    if (!isShown()) return null;
    Object.assign(tried, { answer, failure: null, pending: false });
    const drawn = sample.draw?.(answer);
    if (!sample.live) keep(model, answer, sample, drawn);
    say(summary(answer));
    if (isFirst || !sample.live) reveal(bench.stageView() ? ".stage" : ".answer", ".answer .best");
  } catch (failure) {
    if (failure.code === "SUPERSEDED" || !isShown()) return failure;
    Object.assign(tried, { failure, answer: null, pending: false });
    sample.clear?.();
    update();
    return failure;
  }
  update();
  return null;
}
