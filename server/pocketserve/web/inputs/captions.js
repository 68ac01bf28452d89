// Live captions: the growing sound is sent again and again, and words are fixed once two answers agree.
import { html } from "../vendor/lit-html/lit-html.js";
import { update } from "../page.js";
import { t } from "../words.js";
import { Agreement, wordsOf } from "./agreement.js";
import { samplesOf, RATE } from "./decoding.js";
import { MicrophoneInput } from "./sound.js";

const SLICE_MS = 500; // of sound between two looks
const LEAST_S = 1; // of new sound before the model is asked
const CUT_S = 15; // a longer window loses the sentences that are fixed
const LARGEST_S = 28; // of sound in one request: one window of most models
const LONGEST_MS = 300_000;
const GOES_ON = new Set(["SUPERSEDED", "QUEUE_FULL", "LOW_POWER", "MODEL_NOT_READY", "DEADLINE_EXCEEDED"]);

export const captions = { name: "captions", create: (bench) => new CaptionsInput(bench) };

class CaptionsInput extends MicrophoneInput {
  longestMs = LONGEST_MS;
  sliceMs = SLICE_MS;

  begin(stream) {
    Object.assign(this, { words: new Agreement(), base: 0, until: 0, isAsking: false });
    super.begin(stream);
  }

  /** Ask about what was recorded so far, unless the last answer is still to come. */
  async listen(blob, isLast = false) {
    if (this.isAsking && !isLast) return;
    this.isAsking = true;
    const samples = await samplesOf(blob).catch(() => null); // a part may end inside a frame
    if (samples !== null && (isLast || samples.length / RATE - this.until >= LEAST_S)) await this.ask(samples);
    this.isAsking = false;
    if (isLast) this.words.finish();
    update();
  }

  async ask(samples) {
    this.until = samples.length / RATE;
    const body = new Blob([samples.subarray(Math.round(this.base * RATE))]);
    const query = { format: "float32", rate: RATE };
    const failure = await this.bench.submit(
      { body, query, name: "samples.f32", live: true, draw: (answer) => this.take(answer) },
    );
    if (failure && !GOES_ON.has(failure.code)) this.end();
  }

  take(answer) {
    this.words.take(wordsOf(answer.text));
    const seconds = this.until - this.base;
    if (seconds > CUT_S) this.base += this.words.cut(answer.predictions);
    if (this.until - this.base > LARGEST_S) {
      this.words.finish();
      this.base = this.until;
    }
  }

  finish(blob) {
    if (this.bench.input === this && blob.size) this.listen(blob, true);
  }

  view() {
    const { done, fixed, open } = this.words ?? new Agreement();
    return html`<p class="help">${t("captions.help")}</p>
      ${this.problem()}
      ${this.recordButton("captions.start", "captions.stop")}
      <p class="captions" dir="auto"><span class="agreed">${[...done, ...fixed].join(" ")}</span>
        <span class="open">${open.join(" ")}</span></p>`;
  }
}
