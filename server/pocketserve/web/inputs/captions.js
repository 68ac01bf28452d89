// Live captions: each new piece of sound is a step of a sequence, and the server says which words are final.
import { html } from "../vendor/lit-html/lit-html.js";
import { update } from "../page.js";
import { t } from "../words.js";
import { CaptionWords } from "./captionwords.js";
import { samplesOf, RATE } from "./decoding.js";
import { MicrophoneInput } from "./sound.js";

const SLICE_MS = 500; // of sound between two looks
const LONGEST_MS = 300_000;
const GOES_ON = new Set(["QUEUE_FULL", "LOW_POWER", "MODEL_NOT_READY", "DEADLINE_EXCEEDED", "INVALID_REQUEST"]);

export const captions = { name: "captions", create: (bench) => new CaptionsInput(bench) };

class CaptionsInput extends MicrophoneInput {
  longestMs = LONGEST_MS;
  sliceMs = SLICE_MS;
  words = new CaptionWords();

  begin(stream) {
    Object.assign(this, { words: new CaptionWords(), sent: 0, isSending: false, waiting: null });
    super.begin(stream);
  }

  /** Send the sound since the last step; while one is under way, the newest recording waits. */
  async listen(blob, isLast = false) {
    this.waiting = { blob, isLast };
    if (this.isSending) return;
    this.isSending = true;
    while (this.waiting !== null) {
      const { blob: recording, isLast: isEnd } = this.waiting;
      this.waiting = null;
      const samples = await samplesOf(recording).catch(() => null); // a part may end inside a frame
      if (samples !== null) await this.send(samples, isEnd);
    }
    this.isSending = false;
    update();
  }

  async send(samples, isLast) {
    const piece = samples.subarray(this.sent);
    if (!piece.length && !isLast) return;
    const query = { format: "float32", rate: RATE, ...this.words.step(isLast) };
    const draw = (answer) => this.words.take(answer);
    const failure = await this.bench.submit({ body: new Blob([piece]), query, name: "samples.f32", live: true, draw });
    if (!failure) {
      this.sent = samples.length;
      return;
    }
    this.sent = Math.round(this.words.restart() * RATE);
    if (!GOES_ON.has(failure.code)) this.end();
  }

  finish(blob) {
    if (this.bench.input === this && blob.size) this.listen(blob, true);
  }

  view() {
    return html`<p class="help">${t("captions.help")}</p>
      ${this.problem()}
      ${this.recordButton("captions.start", "captions.stop")}
      <p class="captions" dir="auto"><span class="agreed">${this.words.text}</span>
        <span class="open">${this.words.open}</span></p>`;
  }
}
