// A request in the languages that it may be taken to. The token is never in it.
import { predictPath } from "./predict.js";

const USUAL_PORT = "8470";

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const quoted = (text) => JSON.stringify(text);

export function curl({ model, version, query, inline, file }) {
  const body = inline === undefined ? `-T ${shell(file)}` : `--data-raw ${shell(inline)}`;
  return `curl -H "Authorization: Bearer $(pocketserve token)" \\\n  ${body} \\\n  ${shell(location.origin + predictPath(model, version, query))}`;
}

export function python({ model, version, query, inline, file }) {
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

/** Kotlin's texts know templates, and no form feed. */
const kotlinText = (text) => quoted(text).replace(/\\f|\\.|\$/g, (part) => ({ "\\f": "\\u000c", $: "\\$" })[part] ?? part);

function build() {
  const way = location.port === USUAL_PORT ? ".transport(Transport.SOCKET)" : `.transport(Transport.HTTP).httpPort(${location.port})`;
  return `PocketServe.builder()${way}.token(token).build()`;
}

function optionCalls(version, query, literal) {
  const parts = Object.entries(query).map(([name, value]) => `.parameter(${literal(name)}, ${literal(String(value))})`);
  return `${version ? `.version(${literal(version)})` : ""}${parts.join("")}`;
}

export function java({ model, version, query, inline, file }) {
  const bytes = inline === undefined
    ? `Files.readAllBytes(Paths.get(${quoted(file)}))` : `${quoted(inline)}.getBytes(StandardCharsets.UTF_8)`;
  return `// Gradle, imports and the token: docs/android-java.md
byte[] input = ${bytes};
PredictOptions options = new PredictOptions()${optionCalls(version, query, quoted)};
try (PocketServe server = ${build()}) {
    Prediction answer = server.predict(${quoted(model)}, input, ${quoted(typeOf(inline))}, options);
    System.out.println(answer.getJson().get("predictions"));
}`;
}

export function kotlin({ model, version, query, inline, file }) {
  const bytes = inline === undefined ? `File(${kotlinText(file)}).readBytes()` : `${kotlinText(inline)}.toByteArray()`;
  return `// Gradle, imports and the token: docs/android.md
val input = ${bytes}
val options = PredictOptions()${optionCalls(version, query, kotlinText)}
${build()}.use { server ->
    val answer = server.predict(${kotlinText(model)}, input, ${quoted(typeOf(inline))}, options)
    println(answer.json["predictions"])
}`;
}

const typeOf = (inline) => (inline === undefined ? "application/octet-stream" : /^[[{]/.test(inline) ? "application/json" : "text/plain");
