// What was said, with times, and files of it.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { number } from "../format.js";
import { download } from "../inputs/saving.js";
import { t } from "../words.js";

const FILES = { txt: "text/plain", srt: "application/x-subrip", vtt: "text/vtt" };

export function transcriptView({ text, language, duration, predictions }) {
  return html`<p class="transcript" dir="auto" lang=${language ?? nothing}>${text || t("answer.nothing")}</p>
    <p class="caption">${[language, duration === undefined ? "" : `${number(duration, 1)} s`].filter(Boolean).join(" · ")}</p>
    <div class="actions">${Object.keys(FILES).map((kind) => html`<button data-file=${kind}
      @click=${() => save(kind, text, predictions)}>${t("transcript.save", { kind })}</button>`)}</div>
    <details><summary>${t("transcript.times")}</summary><div class="scroll" tabindex="0" role="group" aria-label=${t("transcript.times")}>
      <table><thead><tr><th scope="col">${t("answer.from")}</th><th scope="col">${t("answer.to")}</th><th scope="col">${t("answer.what")}</th></tr></thead>
      <tbody>${predictions.map((part) => html`<tr><td>${clockOf(part.start, ".")}</td><td>${clockOf(part.end, ".")}</td>
        <th scope="row" dir="auto">${part.text.trim()}</th></tr>`)}</tbody></table></div></details>`;
}

function save(kind, text, parts) {
  const content = kind === "txt" ? `${text}\n` : subtitles(kind, parts);
  download(new Blob([content], { type: `${FILES[kind]};charset=utf-8` }), `transcript.${kind}`);
}

/** Segments as subtitles: SubRip, or WebVTT. */
export function subtitles(kind, parts) {
  const mark = kind === "srt" ? "," : ".";
  const cues = parts.map(({ start, end, text }, index) => {
    const times = `${clockOf(start, mark)} --> ${clockOf(end, mark)}`;
    return `${kind === "srt" ? `${index + 1}\n` : ""}${times}\n${cueText(kind, text)}\n`;
  });
  return `${kind === "vtt" ? "WEBVTT\n\n" : ""}${cues.join("\n")}`;
}

/** A cue's text; an arrow or an empty line would end it, and WebVTT has markup. */
function cueText(kind, text) {
  const line = text.split(/\s+/).filter(Boolean).join(" ").replace(/-{2,}>/g, "->");
  if (kind !== "vtt") return line;
  return line.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Seconds as hours, minutes, seconds and milliseconds. */
function clockOf(seconds, mark) {
  const whole = Math.round(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const [minutes, rest] = [Math.floor(whole / 60_000), whole % 60_000];
  const thousandths = String(rest % 1000).padStart(3, "0");
  return `${two(Math.floor(minutes / 60))}:${two(minutes % 60)}:${two(Math.floor(rest / 1000))}${mark}${thousandths}`;
}
