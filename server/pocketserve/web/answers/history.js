// The last answers of this tab, with what was asked.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { clock } from "../format.js";
import { csvFile, download } from "../inputs/saving.js";
import { update } from "../page.js";
import { t } from "../words.js";
import { headline } from "./answer.js";

const KEPT = 20;

/** Entries are `{time, model, version, input, answer, name, value, picture, address}`, the newest first. */
const history = { list: [] };

/** Note an answer; `picture` is a small copy of the input with the answer drawn on it, or null. */
export function remember(model, answer, sample, picture) {
  const { name, value } = headline(answer, sample);
  const { version, predictions, text, timing_ms: times } = answer;
  history.list.unshift({
    time: Date.now() / 1000, model, version, input: sample.name, answer: { predictions, text, timing_ms: times }, name, value,
    picture, address: picture ? URL.createObjectURL(picture) : "",
  });
  for (const { address } of history.list.splice(KEPT)) URL.revokeObjectURL(address);
  update();
}

export function historyView() {
  if (history.list.length === 0) return nothing;
  return html`<details class="panel history"><summary>${t("history", { count: history.list.length })}</summary>
    <div class="actions"><button data-export="json" @click=${() => download(new Blob([asJson()], { type: "application/json" }), "answers.json")}>${t("history.json")}</button>
      <button data-export="csv" @click=${() => download(csv(), "answers.csv")}>${t("history.csv")}</button></div>
    <ul class="entries">${history.list.map(entryView)}</ul></details>`;
}

function entryView(entry) {
  return html`<li>${entry.address ? html`<img src=${entry.address} alt=${t("picture.alt")} width="64" height="64">` : nothing}
    <span><bdi class="name">${entry.name}</bdi> ${entry.value}
      <span class="caption">${entry.model} ${entry.version} · ${entry.input} · ${clock(entry.time)}</span></span>
    ${entry.picture ? html`<button class="quiet" @click=${() => download(entry.picture, "answer.jpg")}>${t("picture.save")}</button>` : nothing}</li>`;
}

const timeOf = ({ time }) => new Date(time * 1000).toISOString();

function asJson() {
  const entries = history.list.map((entry) => (
    { time: timeOf(entry), model: entry.model, version: entry.version, input: entry.input, ...entry.answer }));
  return JSON.stringify(entries, null, 2);
}

function csv() {
  const rows = history.list.map((entry) => [timeOf(entry), entry.model, entry.version, entry.input, entry.name, entry.value]);
  return csvFile([["time", "model", "version", "input", "answer", "value"], ...rows]);
}
