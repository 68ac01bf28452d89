// Where an input is made for a model: the kinds of input that it takes, one of them open, and its options.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { camera } from "./camera.js";
import { drawing } from "./drawing.js";
import { file, picture } from "./files.js";
import { microphone, soundFile } from "./sound.js";
import { rows } from "./rows.js";
import { tensors } from "./tensors.js";
import { items, pair, pairs, query, question, text, texts } from "./texts.js";
import { optionsView, queryOf } from "./options.js";
import { update } from "../page.js";
import { t } from "../words.js";

const INPUTS = {
  picture: [picture, camera, drawing], sound: [microphone, soundFile], text: [text], texts: [texts], query: [query],
  pair: [pair, pairs],
  question: [question], rows: [rows], items: [items], tensors: [tensors], file: [file],
};
const TINY = 64; // pixels: a model of such pictures knows drawings

/**
 * An input is `{body, query, name, preview, json, live}`: bytes to send, its own parameters, a file's name for
 * examples, an element to draw on, the value where it is JSON, and whether it is a frame of a camera.
 */
export class Bench {
  /** `run(sample)` asks the model; it resolves once the answer is seen, with the failure if there was one. */
  constructor(run) {
    this.answer = run;
    this.close();
  }

  close() {
    this.input?.stop();
    Object.assign(this, { metadata: null, kinds: [], kind: null, input: null, sample: null, options: {} });
  }

  /** Begin with a model's metadata; the kind of input stays where the model takes it. */
  open(metadata) {
    const kept = this.kind?.name;
    this.close();
    this.metadata = metadata;
    this.kinds = metadata.card.accepts.flatMap((word) => INPUTS[word] ?? []);
    const first = isTiny(metadata) && this.kinds.includes(drawing) ? drawing : this.kinds[0];
    this.choose(this.kinds.find((kind) => kind.name === kept) ?? first);
  }

  choose(kind) {
    this.input?.stop();
    this.sample = null;
    this.kind = kind;
    this.input = kind?.create(this) ?? null;
    update();
  }

  /** The parameters of a request for a sample. */
  query(sample) {
    return { ...sample.query, ...queryOf(this) };
  }

  /** Ask about a sample; returns the failure, if there was one. */
  submit(sample) {
    this.sample = sample;
    return this.answer(sample);
  }

  again() {
    if (this.sample && !this.sample.live) this.submit(this.sample);
  }

  view() {
    if (!this.kind) return html`<p class="notice">${t("input.none")}</p>`;
    return html`${this.kinds.length > 1 ? this.choices() : nothing}
      ${this.input.view()} ${optionsView(this)}`;
  }

  choices() {
    return html`<div class="choices" role="group" aria-label=${t("input.kinds")}>${this.kinds.map(
      (kind) => html`<button aria-pressed=${kind === this.kind} data-kind=${kind.name}
        @click=${() => this.choose(kind)}>${t(`input.${kind.name}`)}</button>`,
    )}</div>`;
  }
}

function isTiny(metadata) {
  const sizes = metadata.inputs.flatMap((input) => input.shape);
  return metadata.card.task === "image-classification" && Math.max(...sizes) <= TINY;
}
