// Several versions of a model side by side, on the same input or on the live camera.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { answerView, summary } from "../answers/answer.js";
import { Bench } from "../inputs/bench.js";
import { bytes, measure, milliseconds } from "../format.js";
import { available, defaultOf, memoryOf, models, natural, refreshModels } from "./models.js";
import { say, update } from "../page.js";
import { askMetadata, predict } from "../predict.js";
import { problem } from "../problems.js";
import { t } from "../words.js";

export const part = { view: compareView, leave: leaveCompare, back: retryCompare };

const MOST = 4; // versions: more are not seen side by side
const UNFOLDED = 8; // versions: more would fill a phone's screen
const KEPT = 30; // answers over which times are taken
const ROUNDS = 11; // of questions about one input; the first time of each version does not count
const ENOUGH = 6; // times before a median is shown

const bench = new Bench(ask);
const compared = { turn: 0, model: "", versions: [], results: new Map(), failure: null };

function leaveCompare() {
  bench.close();
  Object.assign(compared, { model: "", versions: [], failure: null });
  compared.results.clear();
}

function compareView([model = ""]) {
  const usable = (models.list ?? []).filter((each) => available(each).length > 1);
  const name = model || usable[0]?.name || "";
  const own = usable.find((each) => each.name === name);
  if (own && name !== compared.model) open(own);
  return html`<h1>${t("part.compare")}</h1>
    ${models.list === null ? html`<p class="waiting">${t("loading")}</p>` : nothing}
    ${models.list !== null && !own ? html`<p class="panel">${t("compare.none")} <code>pocketserve convert</code></p>` : nothing}
    ${own ? chooser(usable, own) : nothing}
    ${compared.failure ? problem(compared.failure) : nothing}
    ${bench.metadata ? html`<section class="panel" aria-label=${t("try.input")}>${bench.stageView() ?? nothing}${bench.view()}</section>` : nothing}
    ${own ? html`<div class="sides">${compared.versions.map((version) => side(own, version))}</div>` : nothing}`;
}

function retryCompare() {
  const own = models.list?.find(({ name }) => name === compared.model);
  if (compared.failure && !bench.metadata && own) open(own);
}

function chooser(usable, own) {
  return html`<div class="choosers"><label>${t("model")}
    <select @change=${(event) => { location.hash = `compare/${encodeURIComponent(event.target.value)}`; }}>
      ${usable.map(({ name }) => html`<option value=${name} ?selected=${name === own.name}>${name}</option>`)}</select></label></div>
    ${versionChoice([...available(own)].sort(natural))}`;
}

/** A box for each version; many of them fold behind the names of the chosen ones. */
function versionChoice(versions) {
  const boxes = html`<fieldset class="choices"><legend>${t("compare.versions")}</legend>
    ${versions.map(({ version }) => html`<label class="tick"><input type="checkbox" .checked=${compared.versions.includes(version)}
      ?disabled=${!compared.versions.includes(version) && compared.versions.length >= MOST}
      @change=${(event) => pick(version, event.target.checked)}>${version}</label>`)}</fieldset>`;
  if (versions.length <= UNFOLDED) return boxes;
  return html`<details class="versions"><summary>${t("compare.versions")}: ${compared.versions.join(", ")}</summary>${boxes}</details>`;
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
  const others = [...available(model)].sort(natural).map(({ version }) => version).filter((version) => version !== first);
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
      <div><dt>${t("compare.time")}</dt><dd>${timeOf(result)}</dd></div>
      <div><dt>${t("compare.speed")}</dt><dd>${speedOf(version)}</dd></div>
      <div><dt>${t("compare.agreement")}</dt><dd>${agreement(version)}</dd></div></dl>
    ${result?.failure ? problem(result.failure) : nothing}
    ${result?.answer ? answerView(result.answer, undrawn(bench.sample)) : nothing}</section>`;
}

/** A sample without its picture, over which only the first version's whole answer is drawn. */
const undrawn = (sample) => sample && { ...sample, draw: undefined };

/** The median with its 95 % interval, and the number of times. */
function timeOf(result) {
  const count = result?.times.length ?? 0;
  if (count < ENOUGH) return t("compare.few", { count, enough: ENOUGH });
  const { low, middle, high } = medianOf(result.times);
  return `${milliseconds(middle)} (${milliseconds(low)} – ${milliseconds(high)}, n = ${count})`;
}

/** The median of times and its 95 % interval, by order statistics. */
function medianOf(times) {
  const sorted = [...times].sort((one, other) => one - other);
  const count = sorted.length;
  const rank = Math.max(0, Math.floor((count - 1.96 * Math.sqrt(count)) / 2));
  return { low: sorted[rank], middle: sorted[count >> 1], high: sorted[count - 1 - rank] };
}

/** How fast a version is beside the first one; nothing is said where the intervals overlap. */
function speedOf(version) {
  if (version === compared.versions[0]) return t("compare.first");
  const results = [compared.versions[0], version].map((each) => compared.results.get(each));
  if (results.some((result) => (result?.times.length ?? 0) < ENOUGH)) return "–";
  const [first, own] = results.map(({ times }) => medianOf(times));
  if (own.low <= first.high && first.low <= own.high) return t("compare.equal");
  const factor = own.middle < first.middle ? first.middle / own.middle : own.middle / first.middle;
  const key = own.middle < first.middle ? "compare.faster" : "compare.slower";
  return t(key, { factor: measure(Number(factor.toPrecision(2))) });
}

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
 * Ask every version in turn: at the same time they would take the cores from each other. A still input is asked
 * several times. It ends when another input, choice or model is shown.
 */
async function ask(sample) {
  const { model } = compared;
  const turn = ++compared.turn;
  const isShown = () => compared.turn === turn && bench.sample === sample && compared.model === model;
  const fresh = compared.versions.filter((version) => !compared.results.has(version));
  const rounds = sample.live ? 1 : ROUNDS;
  let failure = null;
  for (let round = 0; round < rounds && failure === null && isShown(); round += 1) {
    failure = await askAll(sample, isShown);
    if (round === 0 && isShown()) showFirst(sample);
    update();
  }
  if (fresh.length && isShown()) await refreshModels().then(update); // now they are loaded, and their memory is known
  return failure;
}

/** Ask each version once; returns the last failure, if there was one. */
async function askAll(sample, isShown) {
  const { model, versions } = compared;
  let last = null;
  for (const version of versions) {
    last = (await askOne(model, version, sample, isShown)) ?? last;
    if (!isShown()) break;
  }
  return last;
}

function showFirst(sample) {
  const first = compared.results.get(compared.versions[0])?.answer;
  if (first) {
    sample.draw?.(first);
    say(compared.versions.map((version) => `${version}: ${agreement(version)}`).join("; "));
  }
}

async function askOne(model, version, sample, isShown) {
  const result = compared.results.get(version) ?? { times: [], isWarm: false };
  compared.results.set(version, result);
  try {
    const answer = await predict(model, version, bench, sample);
    if (!isShown()) return null;
    Object.assign(result, { answer, failure: null });
    if (result.isWarm) result.times.push(answer.timing_ms.infer ?? 0);
    result.isWarm = true;
    result.times.splice(0, result.times.length - KEPT);
  } catch (failure) {
    if (isShown()) result.failure = failure;
    return failure;
  }
  return null;
}
