// An answer as people read it, by what its entries hold; whatever is unknown is shown as JSON.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { isolated, measure, milliseconds, number, percent } from "../format.js";
import { csvFile, download } from "../inputs/saving.js";
import { update } from "../page.js";
import { t } from "../words.js";
import { colourOf, isBackground } from "./overlay.js";
import { transcriptView } from "./transcript.js";

const MOST = 100; // entries that are listed
const SHOWN_NUMBERS = 12;
const MOST_NAMES = 3; // in a headline
const LONGEST_JSON = 60; // characters

const shown = { alone: null }; // the entry whose box is drawn without the others

/** What the status says of an answer: its first entry, without numbers that change with each frame. */
export function summary(answer) {
  const first = answer.predictions[0];
  if (!first) return t("answer.nothing");
  if (first.value !== undefined) return `${first.name ?? ""} ${shownValue(first.value)} ${first.unit ?? ""}`.trim();
  return String(first.answer ?? answer.text ?? first.label ?? first.name ?? t("answer.there"));
}

/** The best answer in few words: `{name, value}`, such as a label and its score. */
export function headline(answer, sample) {
  const entries = ordered(answer.predictions);
  const first = entries[0];
  if (!first) return { name: t("answer.nothing"), value: "" };
  if (isTranscript(answer)) return { name: answer.text, value: "" };
  if (first.value !== undefined) return { name: shownValue(first.value), value: first.unit ?? "" };
  if (first.data && first.shape) return { name: String(first.name ?? ""), value: `${first.datatype} [${first.shape.join(", ")}]` };
  if (first.box && entries.length > 1) return { name: counted(entries, sample), value: "" };
  const share = first.score ?? first.share;
  return { name: String(first.answer ?? nameOf(first, sample)), value: share === undefined ? "" : percent(share) };
}

const isTranscript = ({ text, predictions }) => text !== undefined && predictions.every((part) => part.start !== undefined);

/** How many objects there are, with the names of the most frequent: "20 objects: 9 × 3, 4 × 7". */
function counted(entries, sample) {
  const counts = new Map();
  for (const entry of entries) {
    const name = nameOf(entry, sample);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const frequent = [...counts].sort((one, other) => other[1] - one[1]).slice(0, MOST_NAMES);
  const names = frequent.map(([name, count]) => `${count} × ${isolated(name)}`).join(", ");
  return t("answer.objects", { count: entries.length, names: counts.size > MOST_NAMES ? `${names}, …` : names });
}

/** The entries with what was not found last. */
const ordered = (entries) => [...entries.filter((entry) => !isBackground(entry)), ...entries.filter(isBackground)];

/** An answer with the time that it took; `sample` is what it was given to. */
export function answerView(answer, sample) {
  const entries = answer.predictions;
  if (isTranscript(answer)) return html`<div class="answer">${transcriptView(answer)}${timing(answer)}</div>`;
  return html`<div class="answer">${entries.length ? entriesView(answer, sample) : html`<p class="best">${t("answer.nothing")}</p>`}
    ${answer.assumed ? html`<p class="caption">${t("answer.assumed", { settings: answer.assumed.join(", ") })}</p>` : nothing}
    ${timing(answer)}</div>`;
}

function entriesView(answer, sample) {
  const entries = ordered(answer.predictions).slice(0, MOST);
  const first = entries[0];
  if (first.answer !== undefined) return spans(entries, sample);
  if (first.value !== undefined) return entries.some(({ row }) => row > 0) ? valueTable(entries) : values(entries);
  if (first.embedding) return vectors(entries);
  if (first.data) return tensorList(entries);
  if (first.share !== undefined) return bars(answer, entries, ({ share }) => share);
  if (first.start !== undefined) return stretches(entries);
  if (first.score !== undefined) return bars(answer, entries, ({ score }) => score, sample);
  return html`<pre class="json" tabindex="0">${JSON.stringify(answer.predictions, null, 1)}</pre>`;
}

function bars(answer, entries, shareOf, sample) {
  const { name, value } = headline(answer, sample);
  return html`<p class="best"><bdi>${name}</bdi> <span class="unit">${value}</span></p>
    <ul class="bars">${entries.map((entry) => html`<li>
      ${rowName(entry, answer, sample)}
      <meter min="0" max="1" .value=${shareOf(entry)} aria-label=${nameOf(entry, sample)}></meter>
      <span class="value">${percent(shareOf(entry))}</span></li>`)}</ul>`;
}

/** A row's name; where boxes are drawn over a picture, a button that shows one alone. */
function rowName(entry, answer, sample) {
  const name = html`${swatch(entry)}<bdi>${nameOf(entry, sample)}</bdi>`;
  const isOneOfMany = entry.box && answer.predictions.length > 1;
  if (!isOneOfMany || !sample?.draw || sample.live) return html`<span class="name">${name}</span>`;
  return html`<button class="name" aria-pressed=${shown.alone === entry} @click=${() => showAlone(entry, answer, sample)}>${name}</button>`;
}

/** Draw one entry alone, or all of them again. */
function showAlone(entry, answer, sample) {
  shown.alone = shown.alone === entry ? null : entry;
  sample.draw(shown.alone ? { ...answer, predictions: [entry] } : answer);
  update();
}

/** The colour in which a box or a part of a mask is drawn. */
function swatch(entry) {
  if (!entry.box && entry.share === undefined) return nothing;
  return html`<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" fill=${colourOf(entry.index ?? 0)}></rect></svg>`;
}

function nameOf(entry, sample) {
  if (entry.label !== undefined) return entry.row === undefined && entry.input === undefined ? entry.label : `${entry.row ?? entry.input}: ${entry.label}`;
  const name = sample?.json?.texts?.[entry.index] ?? entry.index ?? entry.name;
  if (name !== undefined) return String(name);
  if (entry.start !== undefined && entry.end !== undefined) return `${number(entry.start)} – ${number(entry.end)} s`;
  return JSON.stringify(entry).slice(0, LONGEST_JSON); // an entry of a task of the model's own
}

const shownValue = (value) => (typeof value === "number" ? measure(value) : String(value));

function values(entries) {
  return html`${entries.map((entry) => html`<p class="best">${shownValue(entry.value)} <span class="unit">${entry.unit ?? ""}</span>
    <span class="caption">${(entry.name ?? "").replaceAll("_", " ")}</span></p>`)}`;
}

/** The answers to several rows. */
function valueTable(entries) {
  return html`<div class="actions"><button data-save="rows" @click=${() => download(valueFile(entries), "answer.csv")}>${t("history.csv")}</button></div>
    <div class="scroll" tabindex="0" role="group" aria-label=${t("try.answer")}><table>
    <thead><tr><th scope="col">${t("answer.row")}</th><th scope="col">${(entries[0].name ?? "").replaceAll("_", " ")}</th></tr></thead>
    <tbody>${entries.map(({ row, value, unit, name }) => html`<tr><th scope="row">${row + 1}</th>
      <td class="best">${shownValue(value)} <span class="unit">${unit ?? ""} ${name === entries[0].name ? "" : name}</span></td></tr>`)}</tbody>
    </table></div>`;
}

function valueFile(entries) {
  const rows = entries.map(({ row, name, value, unit }) => [row + 1, name, value, unit]);
  return csvFile([["row", "name", "value", "unit"], ...rows]);
}

/** Answers in a context: the likeliest is marked in it. */
function spans(entries, sample) {
  const best = entries[0];
  const signs = [...(sample?.json?.context ?? "")]; // places are counted in code points
  const part = (from, to) => signs.slice(from, to).join("");
  return html`<p class="best"><bdi>${best.answer}</bdi> <span class="unit">${percent(best.score)}</span></p>
    ${signs.length ? html`<p class="context" dir="auto">${part(0, best.start)}<mark>${part(best.start, best.end)}</mark>${part(best.end)}</p>` : nothing}
    <ul class="bars">${entries.map((entry) => html`<li><span class="name">${entry.answer}</span>
      <meter min="0" max="1" .value=${entry.score} aria-label=${entry.answer}></meter><span class="value">${percent(entry.score)}</span></li>`)}</ul>`;
}

function vectors(entries) {
  return html`${entries.map(({ index, embedding }) => html`<p><strong>${index}</strong>: ${t("answer.vector", { count: embedding.length })}
    <code class="numbers">${numbers(embedding)}</code></p>`)}`;
}

function tensorList(entries) {
  return html`${entries.map(({ name, datatype, shape, data }) => html`<p><code>${name}</code> ${datatype} [${shape.join(", ")}]<br>
    <code class="numbers">${numbers(data.flat(Infinity))}</code></p>`)}`;
}

function numbers(list) {
  const shown = list.slice(0, SHOWN_NUMBERS).map(shownValue);
  return shown.join("  ") + (list.length > SHOWN_NUMBERS ? "  …" : "");
}

function stretches(entries) {
  return html`<table><thead><tr><th scope="col">${t("answer.what")}</th><th scope="col">${t("answer.from")}</th>
    <th scope="col">${t("answer.to")}</th><th scope="col">${t("answer.score")}</th></tr></thead>
    <tbody>${entries.map((entry) => html`<tr><th scope="row">${entry.label ?? ""}</th><td>${number(entry.start)} s</td>
      <td>${number(entry.end)} s</td><td>${percent(entry.score)}</td></tr>`)}</tbody></table>`;
}

function timing({ version, timing_ms: times, round_trip_ms: whole }) {
  return html`<p class="timing">${version} · ${t("answer.infer")} ${milliseconds(times.infer ?? 0)}
    ${whole === undefined ? nothing : html` · ${t("answer.whole")} ${milliseconds(whole)}`}</p>`;
}
