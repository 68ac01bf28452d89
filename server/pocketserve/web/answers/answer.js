// An answer as people read it, by what its entries hold; whatever is unknown is shown as JSON.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { measure, milliseconds, number, percent } from "../format.js";
import { t } from "../words.js";
import { colourOf } from "./overlay.js";

const MOST = 100; // entries that are listed
const SHOWN_NUMBERS = 12;

/** What the status says of an answer: its first entry, without numbers that change with each frame. */
export function summary(answer) {
  const first = answer.predictions[0];
  if (!first) return t("answer.nothing");
  if (first.value !== undefined) return `${first.name} ${measure(first.value)} ${first.unit ?? ""}`;
  return String(first.answer ?? first.label ?? first.name ?? t("answer.there"));
}

/** An answer with the time that it took; `sample` is what it was given to. */
export function answerView(answer, sample) {
  const entries = answer.predictions;
  return html`<div class="answer">${entries.length ? entriesView(answer, sample) : html`<p class="best">${t("answer.nothing")}</p>`}
    ${answer.assumed ? html`<p class="caption">${t("answer.assumed", { settings: answer.assumed.join(", ") })}</p>` : nothing}
    ${timing(answer)}</div>`;
}

function entriesView(answer, sample) {
  const first = answer.predictions[0];
  const entries = answer.predictions.slice(0, MOST);
  if (first.answer !== undefined) return spans(entries, sample);
  if (first.value !== undefined) return values(entries);
  if (first.embedding) return vectors(entries);
  if (first.data) return tensorList(entries);
  if (first.share !== undefined) return bars(entries, ({ share }) => share);
  if (first.start !== undefined) return stretches(entries);
  if (first.score !== undefined) return bars(entries, ({ score }) => score, sample);
  return html`<pre class="json" tabindex="0">${JSON.stringify(answer.predictions, null, 1)}</pre>`;
}

function bars(entries, shareOf, sample) {
  return html`<p class="best">${nameOf(entries[0], sample)} <span class="unit">${percent(shareOf(entries[0]))}</span></p>
    <ul class="bars">${entries.map((entry) => html`<li>
      <span class="name">${swatch(entry)}${nameOf(entry, sample)}</span>
      <meter min="0" max="1" .value=${shareOf(entry)} aria-label=${nameOf(entry, sample)}></meter>
      <span class="value">${percent(shareOf(entry))}</span></li>`)}</ul>`;
}

/** The colour in which a box or a part of a mask is drawn. */
function swatch(entry) {
  if (!entry.box && entry.share === undefined) return nothing;
  return html`<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" fill=${colourOf(entry.index ?? 0)}></rect></svg>`;
}

function nameOf(entry, sample) {
  if (entry.label !== undefined) return entry.row === undefined && entry.input === undefined ? entry.label : `${entry.row ?? entry.input}: ${entry.label}`;
  return sample?.json?.texts?.[entry.index] ?? `${entry.index}`;
}

function values(entries) {
  return html`${entries.map((entry) => html`<p class="best">${measure(entry.value)} <span class="unit">${entry.unit ?? ""}</span>
    <span class="caption">${(entry.name ?? "").replaceAll("_", " ")}</span></p>`)}`;
}

/** Answers in a context: the likeliest is marked in it. */
function spans(entries, sample) {
  const best = entries[0];
  const signs = [...(sample?.json?.context ?? "")]; // places are counted in code points
  const part = (from, to) => signs.slice(from, to).join("");
  return html`<p class="best">${best.answer} <span class="unit">${percent(best.score)}</span></p>
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
  const shown = list.slice(0, SHOWN_NUMBERS).map((value) => (typeof value === "number" ? measure(value) : String(value)));
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
