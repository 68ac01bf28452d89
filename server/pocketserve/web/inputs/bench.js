// Where an input is made for a model: the kinds of input that it takes, one of them open, and its options.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { camera } from "./camera.js";
import { captions } from "./captions.js";
import { drawing } from "./drawing.js";
import { file, picture } from "./files.js";
import { microphone, soundFile } from "./sound.js";
import { rows } from "./rows.js";
import { Samples } from "./samples.js";
import { tensors } from "./tensors.js";
import { items, pair, pairs, query, question, text, texts } from "./texts.js";
import { optionsView, queryOf } from "./options.js";
import { update } from "../page.js";
import { t } from "../words.js";

const INPUTS = {
  picture: [picture, camera, drawing], sound: [microphone, captions, soundFile], text: [text], texts: [texts], query: [query],
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
    this.samples?.close();
    Object.assign(this, { metadata: null, samples: null, kinds: [], kind: null, input: null, sample: null, options: {} });
  }

  /** End what records; the sample stays. */
  pause() {
    this.input?.pause?.();
    if (this.sample?.live) this.sample = null;
  }

  /** Whether there is a sample or a stream that another model could be asked about. */
  holdsInput() {
    return this.sample !== null || Boolean(this.input?.stream);
  }

  /** Drop the options, which another model may not know. */
  forgetOptions() {
    this.options = {};
  }

  /** Begin with a model's metadata; the input stays where the model takes it. */
  open(metadata) {
    const before = this.metadata;
    this.metadata = metadata;
    this.samples?.close();
    this.samples = new Samples(metadata);
    this.kinds = kindsOf(metadata);
    const isKept = this.kinds.includes(this.kind) && (!ofOneModel(this.kind) || sameInputs(before, metadata));
    if (isKept) {
      update();
      return;
    }
    const first = this.kinds.includes(drawing) && isTiny(metadata) ? drawing : this.kinds[0];
    this.choose(first);
  }

  choose(kind) {
    this.input?.stop();
    this.sample = null;
    this.kind = kind;
    this.input = kind?.create(this) ?? null;
    update();
  }

  /** Ask about a file that came with the model. */
  async take(file) {
    const kind = { image: picture, audio: soundFile }[file.type.split("/")[0]];
    if (kind && this.kinds.includes(kind)) {
      if (this.kind !== kind) this.choose(kind);
      this.input.take(file);
      return;
    }
    const content = await file.text();
    const json = file.type === "application/json" ? { json: JSON.parse(content) } : { text: content };
    this.submit({ body: file, query: {}, name: file.name, ...json });
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

  /** Ask about the same input again, in the form that the model needs. */
  again() {
    if (!this.sample || this.sample.live) return;
    if (this.input.send) this.input.send();
    else this.submit(this.sample);
  }

  /** What the answer is drawn over; null where there is nothing to see. */
  stageView() {
    return this.input?.stageView?.() ?? null;
  }

  samplesView() {
    return this.samples.view((file) => this.take(file));
  }

  /** `withSamples`: whether the samples are not shown elsewhere. */
  view(withSamples = true) {
    if (!this.kind) return html`<p class="notice">${t("input.none")}</p>`;
    return html`${this.kinds.length > 1 ? this.choices() : nothing}
      ${withSamples ? this.samplesView() : nothing}
      ${this.input.view()} ${optionsView(this)}`;
  }

  choices() {
    return html`<div class="choices" role="group" aria-label=${t("input.kinds")}>${this.kinds.map(
      (kind) => html`<button aria-pressed=${kind === this.kind} data-kind=${kind.name}
        @click=${() => this.choose(kind)}>${t(`input.${kind.name}`)}</button>`,
    )}</div>`;
  }
}

/** The kinds of input that a model takes; drawings only where they are likely to be understood. */
function kindsOf(metadata) {
  const kinds = metadata.card.accepts.flatMap((word) => INPUTS[word] ?? []);
  const hears = metadata.card.task === "speech-to-text";
  const isFit = (kind) => (kind === drawing ? isTiny(metadata) || isGrey(metadata) : kind !== captions || hears);
  return kinds.filter(isFit);
}

const isGrey = ({ inputs }) => inputs.some(({ shape }) => shape.length === 4 && (shape[1] === 1 || shape[3] === 1));

/** Whether a form is made of the model's own features or tensors. */
const ofOneModel = (kind) => [rows, items, tensors, file].includes(kind);

function sameInputs(one, other) {
  const described = ({ inputs, card }) => JSON.stringify([inputs, card.features ?? null]);
  return one !== null && one.name === other.name && described(one) === described(other);
}

function isTiny(metadata) {
  const sizes = metadata.inputs.flatMap((input) => input.shape);
  return metadata.card.task === "image-classification" && Math.max(...sizes) <= TINY;
}
