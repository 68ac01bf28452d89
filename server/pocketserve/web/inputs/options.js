// The request parameters that a model's task reads, as fields, made from their JSON Schemas.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { t, has } from "../words.js";

/** Those that the inputs set themselves, and those that are of no use on a page that draws answers itself. */
const OWN = new Set([
  "annotate", "mask", "format", "width", "height", "rotation", "row_stride", "uv_row_stride", "pixel_stride",
  "rate", "channels", "region",
]);

/** The parameters that were chosen, and a mask where there is one. */
export function queryOf(bench) {
  const masked = "mask" in (bench.metadata.card.parameters ?? {}) ? { mask: "png" } : {};
  return { ...masked, ...bench.options };
}

export function optionsView(bench) {
  const schemas = Object.entries(bench.metadata.card.parameters ?? {}).filter(([name]) => !OWN.has(name));
  if (schemas.length === 0) return nothing;
  return html`<details class="options"><summary>${t("options")}</summary>
    <div class="fields">${schemas.map(([name, schema]) => field(bench, name, schema))}</div></details>`;
}

function field(bench, name, schema) {
  const change = (event) => set(bench, name, event.target);
  const label = has(`option.${name}`) ? t(`option.${name}`) : name;
  return html`<label>${label} <code>${name}</code>
    ${schema.enum ? choice(schema, change) : entry(schema, change)}
    ${schema.description ? html`<span class="help" lang="en">${schema.description}</span>` : nothing}</label>`;
}

function choice(schema, change) {
  return html`<select @change=${change}><option value="">–</option>
    ${schema.enum.map((value) => html`<option value=${value}>${value}</option>`)}</select>`;
}

function entry(schema, change) {
  if (schema.type === "string") return html`<input type="text" autocapitalize="off" @change=${change}>`;
  return html`<input type="number" step=${schema.type === "integer" ? 1 : "any"} min=${schema.minimum ?? nothing}
    max=${schema.maximum ?? nothing} placeholder=${schema.default ?? ""} @change=${change}>`;
}

function set(bench, name, input) {
  if (!input.reportValidity()) return;
  if (input.value === "") delete bench.options[name];
  else bench.options[name] = input.value;
  bench.again();
}
