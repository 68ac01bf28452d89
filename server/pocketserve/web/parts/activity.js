// What the server does: charts over the last minutes, with a table beside each.
import { html } from "../vendor/lit-html/lit-html.js";
import { lineChart } from "./chart.js";
import { bytes, clock, measure } from "../format.js";
import { quantiles, rates, total } from "../metrics.js";
import { watched } from "../watch.js";
import { t } from "../words.js";

export const part = { view: activityView, leave: () => {}, back: () => {} };

const ROWS = 10; // of the tables: the newest samples
const plain = (value) => (value === null || value === undefined ? "–" : measure(value));
const gauge = (name, labels) => (samples) => samples.map(({ values }) => (name in values ? total(values, name, labels) : null));

const CHARTS = [
  { name: "requests", shown: plain, lines: {
    success: (samples) => rates(samples, { outcome: "success" }), others: (samples) => othersOf(samples) } },
  { name: "latency", shown: plain, lines: {
    p50: (samples) => quantiles(samples, 0.5), p90: (samples) => quantiles(samples, 0.9), p99: (samples) => quantiles(samples, 0.99) } },
  { name: "queue", shown: plain, lines: { waiting: gauge("pocketserve_queue_length", {}) } },
  { name: "memory", shown: bytes, lines: {
    models: gauge("pocketserve_models_memory_bytes", {}), process: gauge("process_resident_memory_bytes", {}) } },
  { name: "power", shown: plain, lines: {
    low: gauge("pocketserve_low_power", {}), charge: gauge("pocketserve_battery_charge_ratio", {}) } },
];

function othersOf(samples) {
  const [all, success] = [rates(samples, {}), rates(samples, { outcome: "success" })];
  return all.map((rate, index) => (rate === null || success[index] === null ? null : Math.max(0, rate - success[index])));
}

function activityView() {
  const { samples } = watched;
  return html`<h1>${t("part.activity")}</h1>
    ${facts(samples.at(-1))}
    <div class="charts">${CHARTS.map((chart) => chartView(chart, samples))}</div>`;
}

function facts(sample) {
  if (!sample) return html`<p class="waiting">${t("loading")}</p>`;
  const { values } = sample;
  const low = (values.pocketserve_low_power ?? []).filter(({ value }) => value).map(({ labels }) => labels.reason);
  const rows = [
    ["version", values.pocketserve_info?.[0]?.labels.version ?? "–"],
    ["cores", plain(total(values, "pocketserve_usable_cores"))],
    ["budget", bytes(total(values, "pocketserve_memory_budget_bytes"))],
    ["power", low.length ? `${t("power.low")} (${low.join(", ")})` : t("power.full")],
  ];
  return html`<dl class="panel">${rows.map(([name, value]) => html`<div><dt>${t(`fact.${name}`)}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function chartView(chart, samples) {
  const all = Object.entries(chart.lines).map(([name, line]) => [name, line(samples)]);
  const measured = all.filter(([, line]) => line.some((value) => value !== null)); // a desktop has no charge
  const lines = measured.length ? measured : all;
  const title = t(`chart.${chart.name}`);
  return html`<section class="panel"><h2>${title}</h2>
    <ul class="legend">${lines.map(([name, line], index) => html`<li class="line-${index}">${t(`line.${name}`)} <strong>${chart.shown(line.at(-1))}</strong></li>`)}</ul>
    ${lineChart(samples.map(({ time }) => time), lines.map(([, line]) => line), chart.shown)}
    <details><summary>${t("chart.table")}</summary>${table(chart, samples, lines)}</details></section>`;
}

function table(chart, samples, lines) {
  const newest = samples.map((sample, index) => index).slice(-ROWS).reverse();
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${t(`chart.${chart.name}`)}><table>
    <thead><tr><th scope="col">${t("chart.time")}</th>
    ${lines.map(([name]) => html`<th scope="col">${t(`line.${name}`)}</th>`)}</tr></thead>
    <tbody>${newest.map((index) => html`<tr><th scope="row">${clock(samples[index].time)}</th>
      ${lines.map(([, line]) => html`<td>${chart.shown(line[index])}</td>`)}</tr>`)}</tbody></table></div>`;
}
