// The request that was tried, for other languages. The token is never in it.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { say, update } from "../page.js";
import { predictPath } from "../predict.js";
import { t } from "../words.js";

const USUAL_PORT = "8470";
const LANGUAGES = { curl, python, java, kotlin };
const NAMES = { curl: "curl", python: "Python", java: "Java", kotlin: "Kotlin" };
const chosen = { language: "curl", copied: false };

export function snippetsView(model, version, bench) {
  const sample = bench.sample ?? { query: {}, name: "input", body: "" };
  const text = LANGUAGES[chosen.language](request(model, version, bench, sample));
  return html`<section class="panel" aria-labelledby="take-title"><h2 id="take-title">${t("take.title")}</h2>
    <div class="choices" role="group" aria-labelledby="take-title">${Object.keys(LANGUAGES).map((language) => html`<button
      aria-pressed=${language === chosen.language} data-language=${language}
      @click=${() => { Object.assign(chosen, { language, copied: false }); update(); }}>${NAMES[language]}</button>`)}</div>
    <pre class="snippet" tabindex="0"><code>${text}</code></pre>
    <button @click=${() => copy(text)}>${t(chosen.copied ? "take.copied" : "take.copy")}</button>
    ${bench.sample ? nothing : html`<p class="help">${t("take.help")}</p>`}</section>`;
}

async function copy(text) {
  await navigator.clipboard.writeText(text);
  chosen.copied = true;
  say(t("take.copied"));
  update();
}

/** What was asked: the file's name where it was a file, else the text itself. A stream is the page's own. */
function request(model, version, bench, sample) {
  const { stream, ...query } = bench.query(sample);
  const inline = sample.json !== undefined ? JSON.stringify(sample.json) : sample.text;
  return { model, version, query, inline, file: sample.name };
}

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const quoted = (text) => JSON.stringify(text);

function curl({ model, version, query, inline, file }) {
  const body = inline === undefined ? `-T ${shell(file)}` : `--data-raw ${shell(inline)}`;
  return `curl -H "Authorization: Bearer $(pocketserve token)" \\\n  ${body} \\\n  ${shell(location.origin + predictPath(model, version, query))}`;
}

function python({ model, version, query, inline, file }) {
  const options = [
    version ? `version=${quoted(version)}` : "",
    Object.keys(query).length ? `parameters=${pythonDict(query)}` : "",
  ].filter(Boolean).map((text) => `, ${text}`).join("");
  const data = inline === undefined ? `Path(${quoted(file)})` : pythonData(inline);
  return `${inline === undefined ? "from pathlib import Path\n" : ""}from pocketserve_client import Client

with Client(${location.port === USUAL_PORT ? "" : quoted(location.origin)}) as client:
    answer = client.predict(${quoted(model)}, ${data}${options})
    print(answer["predictions"])`;
}

const pythonDict = (query) => `{${Object.entries(query).map(([name, value]) => `${quoted(name)}: ${pythonValue(value)}`).join(", ")}}`;

/** A parameter as its own type: texts of a form hold numbers, too. */
const pythonValue = (value) => (value !== "" && Number.isFinite(Number(value)) ? String(Number(value)) : quoted(value));

/** JSON of the page's own making is Python's, but for true, false and null, which it does not hold. */
const pythonData = (inline) => (/^[[{]/.test(inline) ? inline : quoted(inline));

function build(last) {
  const way = location.port === USUAL_PORT ? ".transport(Transport.SOCKET)" : `.transport(Transport.HTTP).httpPort(${location.port})`;
  return `PocketServe.builder()${way}.token(token).build()${last}`;
}

function optionCalls(version, query) {
  const parts = Object.entries(query).map(([name, value]) => `.parameter(${quoted(name)}, ${quoted(String(value))})`);
  return `${version ? `.version(${quoted(version)})` : ""}${parts.join("")}`;
}

function java({ model, version, query, inline, file }) {
  const bytes = inline === undefined
    ? `Files.readAllBytes(Paths.get(${quoted(file)}))` : `${quoted(inline)}.getBytes(StandardCharsets.UTF_8)`;
  return `byte[] input = ${bytes};
PredictOptions options = new PredictOptions()${optionCalls(version, query)};
try (PocketServe server = ${build("")}) {
    Prediction answer = server.predict(${quoted(model)}, input, ${quoted(typeOf(inline))}, options);
    System.out.println(answer.getJson().get("predictions"));
}`;
}

function kotlin({ model, version, query, inline, file }) {
  const literal = (text) => quoted(text).replaceAll("$", "\\$");
  const bytes = inline === undefined ? `File(${literal(file)}).readBytes()` : `${literal(inline)}.toByteArray()`;
  return `val input = ${bytes}
val options = PredictOptions()${optionCalls(version, query)}
${build("")}.use { server ->
    val answer = server.predict(${quoted(model)}, input, ${quoted(typeOf(inline))}, options)
    println(answer.json["predictions"])
}`;
}

const typeOf = (inline) => (inline === undefined ? "application/octet-stream" : /^[[{]/.test(inline) ? "application/json" : "text/plain");
