// Several versions of a model side by side, on the same input or on the live camera.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { answerView, summary } from "../answers/answer.js";
import { Bench } from "../inputs/bench.js";
import { bytes, measure, milliseconds } from "../format.js";
import { available, defaultOf, memoryOf, models, refreshModels } from "./models.js";
import { say, update } from "../page.js";
import { askMetadata, predict } from "../predict.js";
import { problem } from "../problems.js";
import { t } from "../words.js";

const MOST = 4; // versions: more are not seen side by side
const KEPT = 30; // answers over which times are taken

const bench = new Bench(ask);
const compared = { turn: 0, model: "", versions: [], results: new Map(), failure: null };

export function leaveCompare() {
  bench.close();
  Object.assign(compared, { model: "", versions: [], failure: null });
  compared.results.clear();
}

export function compareView([model = ""]) {
  const usable = (models.list ?? []).filter((each) => available(each).length > 1);
  const name = model || usable[0]?.name || "";
  const own = usable.find((each) => each.name === name);
  if (own && name !== compared.model) open(own);
  return html`<h1>${t("part.compare")}</h1>
    ${models.list === null ? html`<p class="waiting">${t("loading")}</p>` : nothing}
    ${models.list !== null && !own ? html`<p class="panel">${t("compare.none")} <code>pocketserve convert</code></p>` : nothing}
    ${own ? chooser(usable, own) : nothing}
    ${compared.failure ? problem(compared.failure) : nothing}
    ${bench.metadata ? html`<section class="panel" aria-label=${t("try.input")}>${bench.view()}</section>` : nothing}
    ${own ? html`<div class="sides">${compared.versions.map((version) => side(own, version))}</div>` : nothing}`;
}

export function retryCompare() {
  const own = models.list?.find(({ name }) => name === compared.model);
  if (compared.failure && !bench.metadata && own) open(own);
}

function chooser(usable, own) {
  return html`<div class="choosers"><label>${t("model")}
    <select @change=${(event) => { location.hash = `compare/${encodeURIComponent(event.target.value)}`; }}>
      ${usable.map(({ name }) => html`<option value=${name} ?selected=${name === own.name}>${name}</option>`)}</select></label></div>
    <fieldset class="choices"><legend>${t("compare.versions")}</legend>
    ${available(own).map(({ version }) => html`<label class="tick"><input type="checkbox" .checked=${compared.versions.includes(version)}
      ?disabled=${!compared.versions.includes(version) && compared.versions.length >= MOST}
      @change=${(event) => pick(version, event.target.checked)}>${version}</label>`)}</fieldset>`;
}

function pick(version, on) {
  compared.versions = on ? [...compared.versions, version] : compared.versions.filter((each) => each !== version);
  compared.results.delete(version);
  bench.again();
  update();
}

async function open(model) {
  leaveCompare();
  const first = defaultOf(model).version;
  const others = available(model).map(({ version }) => version).filter((version) => version !== first);
  Object.assign(compared, { model: model.name, versions: [first, ...others].slice(0, 2) });
  try {
    const metadata = await askMetadata(model.name, compared.versions[0]);
    if (compared.model === model.name) bench.open(metadata);
  } catch (failure) {
    if (compared.model === model.name) compared.failure = failure;
  }
  update();
}

function side(model, version) {
  const result = compared.results.get(version);
  const entry = model.versions.find((each) => each.version === version);
  return html`<section class="panel" data-version=${version}><h2>${version}</h2>
    <dl><div><dt>${t("fact.size")}</dt><dd>${bytes(entry?.file_bytes)}</dd></div>
      <div><dt>${t("fact.memory")}</dt><dd>${bytes(entry && memoryOf(entry))}</dd></div>
      <div><dt>${t("compare.time")}</dt><dd>${result?.times.length ? milliseconds(middle(result.times)) : "–"}</dd></div>
      <div><dt>${t("compare.agreement")}</dt><dd>${agreement(version)}</dd></div></dl>
    ${result?.failure ? problem(result.failure) : nothing}
    ${result?.answer ? answerView(result.answer, bench.sample) : nothing}</section>`;
}

const middle = (times) => [...times].sort((a, b) => a - b)[times.length >> 1];

/** How a version's answer stands to the first one's. */
function agreement(version) {
  const [first, own] = [compared.versions[0], version].map((each) => compared.results.get(each)?.answer);
  if (version === compared.versions[0]) return t("compare.first");
  if (!first || !own) return "–";
  const [left, right] = [first.predictions[0], own.predictions[0]];
  if (left?.value !== undefined && right?.value !== undefined) return `± ${measure(Math.abs(left.value - right.value))}`;
  return t(summary(first) === summary(own) ? "compare.same" : "compare.differs");
}

/**
 * Ask every version, one after the other: side by side they would take the cores from each other. It ends where
 * another input, choice or model has taken the sample's place.
 */
async function ask(sample) {
  let last = null;
  const { model, versions } = compared;
  const turn = ++compared.turn;
  const isShown = () => compared.turn === turn && bench.sample === sample && compared.model === model;
  const fresh = versions.filter((version) => !compared.results.has(version));
  for (const version of versions) {
    last = (await askOne(model, version, sample, isShown)) ?? last;
    if (!isShown()) return last;
  }
  const first = compared.results.get(compared.versions[0])?.answer;
  update();
  if (first) {
    sample.draw?.(first);
    say(compared.versions.map((version) => `${version}: ${agreement(version)}`).join("; "));
  }
  if (fresh.length) await refreshModels().then(update); // now they are loaded, and their memory is known
  return last;
}

async function askOne(model, version, sample, isShown) {
  const result = compared.results.get(version) ?? { times: [] };
  compared.results.set(version, result);
  try {
    const answer = await predict(model, version, bench, sample);
    if (!isShown()) return null;
    Object.assign(result, { answer, failure: null });
    result.times.push(answer.timing_ms.infer ?? 0);
    result.times.splice(0, result.times.length - KEPT);
  } catch (failure) {
    if (isShown()) result.failure = failure;
    return failure;
  }
  return null;
}
