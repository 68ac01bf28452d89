// The models: what is there, what is loaded, what is not available and why.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { bytes } from "../format.js";
import { say, update } from "../page.js";
import { problem } from "../problems.js";
import { askJson } from "../server.js";
import { watched } from "../watch.js";
import { has, t } from "../words.js";

const FRAMEWORK = /^no framework for \S+ models is installed: (.*)$/;
const FILTERED_FROM = 9; // models: fewer are seen at a glance

export const models = { list: null, failure: null, memory: {}, busy: "", faults: {}, filter: "" };

/** Tasks by model: of files that name none, the server knows the task only while they are loaded. */
const knownTasks = new Map();

const inOrder = new Intl.Collator(undefined, { numeric: true });

/** Order versions: the newest number first, names after their letters. */
export function natural(one, other) {
  const isNumber = ({ version }) => /^\d+$/.test(version);
  if (isNumber(one) && isNumber(other)) return Number(other.version) - Number(one.version);
  return inOrder.compare(one.version, other.version);
}

/** Ask for the list; it loads no model. */
export async function refreshModels() {
  try {
    const [entries, counters] = await Promise.all([
      askJson("POST", "/v2/repository/index", "{}", { json: true }), askJson("GET", "/v2/models/stats"),
    ]);
    models.list = groupByModel(entries);
    models.memory = Object.fromEntries(counters.model_stats.map(memoryEntry));
    models.failure = null;
  } catch (failure) {
    models.failure = failure;
  }
  update();
}

const memoryEntry = ({ name, version, memory_usage: usage }) => [`${name}/${version}`, usage?.[0]?.byte_size];

function groupByModel(entries) {
  const groups = new Map();
  for (const entry of entries) {
    learnTask(entry.name, entry.task);
    entry.task ||= knownTasks.get(entry.name) ?? "";
    if (!groups.has(entry.name)) groups.set(entry.name, { name: entry.name, versions: [] });
    groups.get(entry.name).versions.push(entry);
  }
  for (const { versions } of groups.values()) versions.sort(natural);
  return [...groups.values()].sort((one, other) => inOrder.compare(one.name, other.name));
}

/** Remember the task of a model that is or was loaded. */
export function learnTask(name, task) {
  if (task) knownTasks.set(name, task);
}

/** The versions that can be asked; one that was unloaded is loaded for that. */
export const available = (model) => model.versions.filter((version) => version.state !== "UNAVAILABLE" || isStopped(version));
export const defaultOf = (model) => model.versions.find((version) => version.default) ?? model.versions[0];
export const taskName = (task) => (has(`task.${task}`) ? t(`task.${task}`) : task || t("task.unknown"));

/** The language models, which have a part of their own. */
export const chatModels = () => (models.list ?? []).filter((model) => isChat(model) && available(model).length);
export const isChat = (model) => defaultOf(model).task === "text-generation";

export function modelsView() {
  return html`<h1>${t("part.models")}</h1>
    ${models.failure ? problem(models.failure) : nothing}
    ${models.list === null ? html`<p class="waiting">${t("loading")}</p>` : listView()}`;
}

function listView() {
  if (models.list.length === 0) return html`<p class="panel">${t("models.none")} <code>pocketserve add</code></p>`;
  const fitting = models.list.filter(fits);
  return html`${models.list.length >= FILTERED_FROM ? filterField() : nothing}
    ${fitting.length ? nothing : html`<p class="panel">${t("models.noneFit", { text: models.filter })}
      <button @click=${() => setFilter("")}>${t("models.all")}</button></p>`}
    ${GROUPS.map((group) => groupView(group, fitting.filter((model) => groupOf(model) === group)))}`;
}

const GROUPS = ["loaded", "ready", "unavailable"];

/** Whether a model is in memory, can be asked, or neither. */
function groupOf(model) {
  if (model.versions.some((version) => version.loaded)) return "loaded";
  return available(model).length ? "ready" : "unavailable";
}

function groupView(group, members) {
  if (members.length === 0) return nothing;
  return html`<h2 class="group">${t(`group.${group}`)} (${members.length})</h2>
    <div class="cards">${members.map(card)}</div>`;
}

/** Whether a model's name or task has each word of the filter. */
function fits(model) {
  const text = `${model.name} ${taskName(defaultOf(model).task)}`.toLowerCase();
  return models.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function setFilter(text) {
  models.filter = text;
  update();
}

function filterField() {
  return html`<label class="filter">${t("models.filter")}
    <input type="search" .value=${models.filter} @input=${(event) => setFilter(event.target.value)}></label>`;
}

function card(model) {
  const main = defaultOf(model);
  const open = available(model);
  return html`<article class="panel" data-model=${model.name}>
    <h3>${model.name}</h3>
    <p class="chips"><span class="chip">${taskName(main.task)}</span>${stateChip(model)}</p>
    ${facts(main)}
    ${model.versions.length > 1 ? versionTable(model) : nothing}
    ${reasons(model)}
    ${model.versions.filter(isPending).map(({ version, reason }) => html`<p class="help" lang="en">${version}: ${reason}</p>`)}
    ${models.faults[model.name] ? problem(models.faults[model.name]) : nothing}
    <div class="actions">
      ${open.length ? tryLink(model) : nothing}
      ${open.length > 1 && !isChat(model) ? html`<a class="button" href="#compare/${encodeURIComponent(model.name)}">${t("part.compare")}</a>` : nothing}
      ${actions(model).map((action) => actionButton(model, action))}
    </div>
    ${models.busy === model.name ? html`<progress aria-label=${t("models.working")}></progress>` : nothing}
  </article>`;
}

function tryLink(model) {
  const part = isChat(model) ? "chat" : "try";
  return html`<a class="button primary" href="#${part}/${encodeURIComponent(model.name)}">${t(`part.${part}`)}</a>`;
}

function stateChip(model) {
  const state = stateOf(model);
  return html`<span class="chip ${state}">${t(`state.${state}`)}</span>`;
}

function stateOf(model) {
  if (model.versions.some((version) => version.loaded)) return "loaded";
  if (model.versions.some(isQuarantined)) return "quarantine";
  if (model.versions.some(isStopped)) return "stopped";
  return available(model).length ? "ready" : "unavailable";
}

const isQuarantined = (version) => /(^|: )in quarantine: /.test(version.reason); // it stands behind what was tried
const isPending = (version) => /^(pending|is still served as it was loaded): /.test(version.reason); // newer files do not answer yet
const isStopped = (version) => version.reason === "unloaded";

function facts(version) {
  const rows = [
    ["version", `${version.version}`],
    ["size", bytes(version.file_bytes)],
    ...(version.loaded ? [["memory", bytes(memoryOf(version))]] : []),
    ...(deviceOf(version) ? [["device", deviceOf(version)]] : []),
  ];
  return html`<dl>${rows.map(([name, value]) => html`<div><dt>${t(`fact.${name}`)}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Memory of a loaded version in bytes; undefined where it is not loaded or nobody asked yet. */
export function memoryOf(version) {
  return version.loaded ? models.memory[`${version.name}/${version.version}`] : undefined;
}

/** Where a loaded version runs; empty before the server's numbers were read. */
function deviceOf(version) {
  const entries = watched.samples.at(-1)?.values.pocketserve_model_device ?? [];
  const own = entries.find(({ labels }) => labels.model === version.name && labels.version === version.version);
  return version.loaded && own ? `${own.labels.device} · ${own.labels.runtime}` : "";
}

function versionTable(model) {
  return html`<details><summary>${t("versions", { count: model.versions.length })}</summary>
    <div class="scroll" tabindex="0" role="group" aria-label=${t("versions", { count: model.versions.length })}><table>
      <thead><tr><th scope="col">${t("fact.version")}</th><th scope="col">${t("fact.state")}</th>
        <th scope="col">${t("fact.size")}</th></tr></thead>
      <tbody>${model.versions.map((version) => html`<tr>
        <th scope="row">${version.version}${version.default ? html` <span class="mark">${t("default")}</span>` : nothing}</th>
        <td>${t(`state.${versionState(version)}`)}</td><td>${bytes(version.file_bytes)}</td></tr>`)}
      </tbody></table></div></details>`;
}

function versionState(version) {
  if (version.loaded) return "loaded";
  if (isQuarantined(version)) return "quarantine";
  if (isStopped(version)) return "stopped";
  return version.state === "UNAVAILABLE" ? "unavailable" : "ready";
}

/** What is not available, by its cause: several kinds of files often miss one framework. */
function reasons(model) {
  const groups = new Map();
  for (const version of model.versions.filter((each) => each.state === "UNAVAILABLE" && !isStopped(each))) {
    const cause = FRAMEWORK.exec(version.reason)?.[1] ?? version.reason;
    groups.set(cause, [...(groups.get(cause) ?? []), version.version]);
  }
  if (groups.size === 0) return nothing;
  const count = [...groups.values()].flat().length;
  return html`<details class="reasons"><summary>${t("unavailable", { count })}</summary><dl class="causes">
    ${[...groups].map(([cause, names]) => html`<div><dt>${names.join(", ")}</dt><dd lang="en">${cause}</dd></div>`)}
  </dl></details>`;
}

function actions(model) {
  const release = model.versions.some(isQuarantined) ? ["release"] : [];
  if (model.versions.some((version) => version.loaded)) return ["reload", "unload", ...release];
  return available(model).length ? ["load", ...release] : release;
}

function actionButton(model, action) {
  return html`<button ?disabled=${models.busy === model.name} @click=${() => act(model.name, action)}>${t(`action.${action}`)}</button>`;
}

/** Load a model that was unloaded: it answers nothing before. */
export async function loadIfUnloaded(name) {
  const model = models.list?.find((each) => each.name === name);
  if (!model?.versions.some(isStopped)) return;
  await askRepository(name, "load", {});
  await refreshModels();
}

function askRepository(name, action, content) {
  const path = `/v2/repository/models/${encodeURIComponent(name)}/${action}`;
  return askJson("POST", path, JSON.stringify(content), { json: true });
}

async function act(name, action) {
  Object.assign(models, { busy: name });
  delete models.faults[name];
  update();
  const release = action === "release" ? { parameters: { release: true } } : {};
  try {
    await askRepository(name, action === "unload" ? "unload" : "load", release);
    say(t(`done.${action}`, { name }));
  } catch (failure) {
    models.faults[name] = failure;
  }
  models.busy = "";
  await refreshModels();
}
