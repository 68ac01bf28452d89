// Live captions: each new piece of sound is a step of a sequence, and the server says which words are final.
import { html } from "../vendor/lit-html/lit-html.js";
import { update } from "../page.js";
import { t } from "../words.js";
import { CaptionWords } from "./captionwords.js";
import { samplesOf, RATE } from "./decoding.js";
import { MicrophoneInput } from "./sound.js";

const SLICE_MS = 500; // of sound between two looks
const LONGEST_MS = 300_000;
const PAUSES_MS = [500, 1000, 2000, 4000]; // before the last step is sent again
const GOES_ON = new Set(["QUEUE_FULL", "LOW_POWER", "MODEL_NOT_READY", "DEADLINE_EXCEEDED", "INVALID_REQUEST"]);

export const captions = { name: "captions", create: (bench) => new CaptionsInput(bench) };

/** The state of one recording. */
const newRun = () => ({ words: new CaptionWords(), sent: 0, isSending: false, waiting: null });

class CaptionsInput extends MicrophoneInput {
  longestMs = LONGEST_MS;
  sliceMs = SLICE_MS;
  run = newRun();

  begin(stream) {
    this.run = newRun();
    super.begin(stream);
  }

  /** Whether a recording is still the newest one; the steps of an older one end. */
  isCurrent(run) {
    return this.run === run && this.bench.input === this;
  }

  /** Send the sound since the last step; while one is under way, the newest recording waits. */
  async listen(blob, isLast = false) {
    const { run } = this;
    run.waiting = { blob, isLast };
    if (run.isSending) return;
    run.isSending = true;
    while (run.waiting !== null && this.isCurrent(run)) {
      const { blob: recording, isLast: isEnd } = run.waiting;
      run.waiting = null;
      const samples = await samplesOf(recording).catch(() => null); // a part may end inside a frame
      if (samples === null) continue;
      if (isEnd) await this.sendLast(run, samples);
      else await this.send(run, samples, false);
    }
    run.isSending = false;
    update();
  }

  /** Send the last step. No later one would send its sound again, so a failed one is repeated. */
  async sendLast(run, samples) {
    for (const pause of PAUSES_MS) {
      if (!(await this.send(run, samples, true))) return;
      await new Promise((done) => setTimeout(done, pause));
    }
    await this.send(run, samples, true);
  }

  /** Send a step; returns whether it failed and can be repeated. */
  async send(run, samples, isLast) {
    if (!this.isCurrent(run)) return false;
    const piece = samples.subarray(run.sent);
    if (!piece.length && !isLast) return false;
    const query = { format: "float32", rate: RATE, ...run.words.step(isLast) };
    const draw = (answer) => run.words.take(answer);
    const failure = await this.bench.submit({ body: new Blob([piece]), query, name: "samples.f32", live: true, draw });
    if (!this.isCurrent(run)) return false;
    if (!failure) {
      run.sent = samples.length;
      return false;
    }
    run.sent = Math.round(run.words.restart() * RATE);
    const goesOn = GOES_ON.has(failure.code);
    if (!goesOn) this.end();
    return goesOn;
  }

  finish(blob, recorder) {
    const isNewest = recorder === this.recorder; // a stopped one may end after the next has begun
    if (isNewest && this.bench.input === this && blob.size) this.listen(blob, true);
  }

  view() {
    return html`<p class="help">${t("captions.help")}</p>
      ${this.problem()}
      ${this.recordButton("captions.start", "captions.stop")}
      <p class="captions" dir="auto"><span class="agreed">${this.run.words.text}</span>
        <span class="open">${this.run.words.open}</span></p>`;
  }
}
