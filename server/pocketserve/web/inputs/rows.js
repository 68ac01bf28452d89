// A row of a table as a form, from the model's features; tables of many rows as lines.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { number } from "../format.js";
import { t } from "../words.js";

export const rows = { name: "rows", create: (bench) => new RowsInput(bench) };

class RowsInput {
  constructor(bench) {
    this.bench = bench;
    this.features = bench.metadata.card.features ?? [];
  }

  stop() {}

  submitRow(event) {
    event.preventDefault();
    const values = new FormData(event.target);
    const row = this.features.map(({ name, type }) => [name, type === "number" ? Number(values.get(name)) : values.get(name)]);
    const value = Object.fromEntries(row);
    this.bench.submit({ body: JSON.stringify(value), json: value, query: {}, name: "row.json" });
  }

  submitLines(event) {
    event.preventDefault();
    const body = new FormData(event.target).get("lines");
    this.bench.submit({ body, query: {}, name: "rows.csv", text: body });
  }

  view() {
    return html`${this.features.length ? this.form() : nothing}
      ${this.features.length ? html`<details><summary>${t("rows.many")}</summary>${this.lines()}</details>` : this.lines()}`;
  }

  form() {
    return html`<form @submit=${(event) => this.submitRow(event)}>
      <div class="fields">${this.features.map(field)}</div><button class="primary">${t("ask")}</button></form>`;
  }

  lines() {
    return html`<form @submit=${(event) => this.submitLines(event)}>
      <label>${t("rows.lines")}<textarea name="lines" rows="4" required
        placeholder=${this.features.map(({ name }) => name).join(",")}></textarea></label>
      <button class=${this.features.length ? "" : "primary"}>${t("ask")}</button></form>`;
  }
}

/** Values outside the usual range are answered, too: the range helps, it does not forbid. */
function field({ name, unit, type, minimum, maximum }) {
  const ranged = minimum !== undefined && maximum !== undefined;
  const numeric = type === "number";
  return html`<label>${name.replaceAll("_", " ")}${unit ? html` <span class="unit">${unit}</span>` : nothing}
    <input name=${name} type=${numeric ? "number" : "text"} step="any" required inputmode=${numeric ? "decimal" : "text"}
      .value=${ranged ? String(middle(minimum, maximum)) : ""}>
    ${ranged ? html`<span class="help">${t("rows.range", { low: number(minimum), high: number(maximum) })}</span>` : nothing}</label>`;
}

const FEW = 3; // whole numbers in a range: then they are codes, whose middle means nothing

/** A value to begin with: the middle of a range, the first of a few codes. */
function middle(low, high) {
  const isCode = Number.isInteger(low) && Number.isInteger(high) && high - low <= FEW;
  return isCode ? low : Number(((low + high) / 2).toPrecision(3));
}
