// The request that was tried, for other languages. The token is never in it.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { download } from "../inputs/saving.js";
import { say, update } from "../page.js";
import { curl, java, kotlin, python } from "../requests.js";
import { t } from "../words.js";

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
    <div class="actions"><button @click=${() => copy(text)}>${t(chosen.copied ? "take.copied" : "take.copy")}</button>
      ${bench.sample ? html`<button @click=${() => download(new Blob([sample.body]), sample.name)}>${t("take.save", { name: sample.name })}</button>` : nothing}</div>
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
