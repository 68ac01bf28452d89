// Forms of texts: a text, several, a pair, a question with its context, a query with texts, items.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { t } from "../words.js";

const lines = (value) => value.split("\n").map((line) => line.trim()).filter(Boolean);
const json = (value) => ({ body: JSON.stringify(value), json: value, query: {}, name: "input.json" });

/** An item by its number or by its title. */
const item = (entry) => (/^\d+$/.test(entry) ? Number(entry) : entry);

class TextForm {
  /** `fields`: [name, rows]; `make(values)` -> sample. */
  constructor(bench, fields, make) {
    Object.assign(this, { bench, fields, make });
  }

  stop() {}

  submit(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target));
    this.bench.submit(this.make(values));
  }

  view() {
    return html`<form @submit=${(event) => this.submit(event)} @keydown=${submitByKey}>
      ${this.fields.map(([name, rows]) => field(name, rows))}
      <button class="primary">${t("ask")}</button></form>`;
  }
}

/** Ctrl+Enter asks, as Enter makes a new line. */
function submitByKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
}

function field(name, rows) {
  const help = t(`text.${name}.help`);
  return html`<label>${t(`text.${name}`)}
    <textarea name=${name} rows=${rows} required dir="auto"></textarea></label>
    ${help ? html`<p class="help">${help}</p>` : nothing}`;
}

const kind = (name, fields, make) => ({ name, create: (bench) => new TextForm(bench, fields, make) });

export const text = kind("text", [["text", 4]], ({ text: value }) => (
  { body: new Blob([value], { type: "text/plain;charset=utf-8" }), query: {}, name: "text.txt", text: value }));
export const texts = kind("texts", [["texts", 5]], (values) => json(lines(values.texts)));
export const pair = kind("pair", [["text", 3], ["textPair", 3]], (values) => (
  json({ text: values.text, text_pair: values.textPair })));
/** Pairs of one text with each of several, as rerankers take a query and documents. */
export const pairs = kind("pairs", [["query", 2], ["texts", 5]], (values) => (
  json(lines(values.texts).map((line) => ({ text: values.query, text_pair: line })))));
export const query = kind("query", [["query", 2], ["texts", 5]], (values) => json({ query: values.query, texts: lines(values.texts) }));
export const question = kind("question", [["question", 2], ["context", 6]], (values) => (
  json({ question: values.question, context: values.context })));
export const items = kind("items", [["items", 4]], (values) => json(lines(values.items).map(item)));
