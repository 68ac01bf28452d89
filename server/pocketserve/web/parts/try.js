// Try a model: choose it, give it an input, see the answer, take the request with you.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { answerView, summary } from "../answers/answer.js";
import { Bench } from "../inputs/bench.js";
import { available, defaultOf, models, taskName } from "./models.js";
import { say, update } from "../page.js";
import { askMetadata, predict } from "../predict.js";
import { problem } from "../problems.js";
import { snippetsView } from "./snippets.js";
import { t } from "../words.js";

const bench = new Bench(ask);
const tried = { turn: 0, model: "", version: "", busy: false, failure: null, answer: null, metadata: null };

export function leaveTry() {
  bench.close();
  Object.assign(tried, { model: "", version: "", answer: null, failure: null, metadata: null });
}

export function tryView([model = "", version = ""]) {
  const usable = (models.list ?? []).filter((each) => available(each).length);
  const name = model || usable[0]?.name || "";
  if (name && (name !== tried.model || version !== tried.version)) open(name, version);
  return html`<h1>${t("part.try")}</h1>
    ${models.list === null ? html`<p class="waiting">${t("loading")}</p>` : choosers(usable, name, version)}
    ${tried.failure && !tried.metadata ? problem(tried.failure) : nothing}
    ${tried.metadata ? workView() : nothing}
    ${tried.busy && !tried.metadata ? html`<p class="waiting">${t("try.loading", { name })}</p>` : nothing}`;
}

/** Ask for the card again that could not be had while the server was away. */
export function retryTry() {
  if (tried.failure && !tried.metadata && tried.model) open(tried.model, tried.version);
}

function choosers(usable, name, version) {
  const go = (model, chosen) => { location.hash = ["try", model, chosen].filter(Boolean).map(encodeURIComponent).join("/"); };
  const own = models.list.find((each) => each.name === name);
  return html`<div class="choosers">
    <label>${t("model")}<select @change=${(event) => go(event.target.value, "")}>
      ${usable.map((each) => html`<option value=${each.name} ?selected=${each.name === name}>${each.name} – ${taskName(defaultOf(each).task)}</option>`)}
    </select></label>
    ${own ? html`<label>${t("fact.version")}<select @change=${(event) => go(name, event.target.value)}>
      ${available(own).map((each) => html`<option value=${each.version} ?selected=${version ? each.version === version : each.default}>${each.version}</option>`)}
    </select></label>` : nothing}</div>`;
}

/** Ask for the card, which loads the model: only when it is chosen. */
async function open(model, version) {
  const kept = tried.model === model ? bench.sample : null;
  Object.assign(tried, { model, version, busy: true, failure: null, answer: null });
  if (!kept) Object.assign(tried, { metadata: null });
  try {
    const metadata = await askMetadata(model, version);
    if (tried.model !== model || tried.version !== version) return;
    tried.metadata = metadata;
    bench.open(metadata);
  } catch (failure) {
    if (tried.model !== model || tried.version !== version) return;
    Object.assign(tried, { failure, metadata: null });
  }
  tried.busy = false;
  update();
}

function workView() {
  const { card } = tried.metadata;
  return html`<div class="work" data-model=${tried.metadata.name}>
    <section class="panel" aria-label=${t("try.input")}>
      <p class="help" lang="en">${tried.metadata.parameters?.description ?? ""}</p>
      ${bench.view()}</section>
    <section class="panel" aria-label=${t("try.answer")}><h2>${t("try.answer")}</h2>
      ${tried.failure ? html`${problem(tried.failure)}${againButton()}` : nothing}
      ${tried.answer ? answerView(tried.answer, bench.sample) : html`<p class="help" lang="en">${card.answer ?? t("try.none")}</p>`}
    </section></div>
    ${snippetsView(tried.model, tried.version, bench)}`;
}

function againButton() {
  if (!bench.sample || bench.sample.live) return nothing;
  return html`<button @click=${() => bench.again()}>${t("again")}</button>`;
}

/** Ask about a sample; returns the failure, if there was one. What was asked since has its own answer. */
async function ask(sample) {
  const { model, version } = tried;
  const turn = ++tried.turn;
  const isShown = () => tried.turn === turn && bench.sample === sample && tried.model === model && tried.version === version;
  try {
    const answer = await predict(model, version, bench, sample);
    if (!isShown()) return null;
    Object.assign(tried, { answer, failure: null });
    sample.draw?.(answer);
    say(summary(answer));
  } catch (failure) {
    if (failure.code === "SUPERSEDED" || !isShown()) return failure;
    tried.failure = failure;
    update();
    return failure;
  }
  update();
  return null;
}
