// Sound: from the microphone or from a file. WAV goes as it is; what else the browser reads goes as its samples.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { number } from "../format.js";
import { element, update } from "../page.js";
import { faultBefore, mediaFault } from "./camera.js";
import { Capture } from "./capture.js";
import { RATE, samplesOf } from "./decoding.js";
import { fileField, takeFiles } from "./files.js";
import { t } from "../words.js";

const LONGEST_MS = 10_000;
const LONGEST_SPEECH_MS = 300_000;
const PLAIN = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };

/** Encoded sound -> a sample of 32-bit floats, one channel. */
async function decode(blob) {
  const query = { format: "float32", rate: RATE };
  return { body: new Blob([await samplesOf(blob)]), query, name: "samples.f32", original: blob };
}

class SoundInput {
  constructor(bench) {
    this.bench = bench;
    this.fault = "";
    this.player = element("audio", { controls: true, attributes: { "aria-label": t("sound.player") } });
  }

  stop() {
    URL.revokeObjectURL(this.player.src);
  }

  async hear(blob, sample) {
    URL.revokeObjectURL(this.player.src);
    this.player.src = URL.createObjectURL(blob);
    this.fault = "";
    try {
      await this.bench.submit(await sample());
    } catch {
      this.fault = "unreadable";
    }
    update();
  }

  heard() {
    return this.player.src ? this.player : nothing;
  }

  problem() {
    if (!this.fault) return nothing;
    return html`<div class="problem" role="alert" data-code=${this.fault}><strong>${t(`media.${this.fault}.title`)}</strong>
      <p>${t(`media.${this.fault}.help`)}</p></div>`;
  }
}

export const soundFile = { name: "soundFile", create: (bench) => new SoundFileInput(bench) };

class SoundFileInput extends SoundInput {
  release = takeFiles("audio/", (chosen) => this.take(chosen));

  stop() {
    super.stop();
    this.release?.();
  }

  async take(chosen) {
    const head = await chosen.slice(0, 4).text();
    const plain = { body: chosen, query: {}, name: chosen.name || "sound.wav" };
    await this.hear(chosen, () => (head === "RIFF" ? plain : decode(chosen)));
  }

  view() {
    return html`${fileField("audio/*", t("sound.choose"), (chosen) => this.take(chosen))}
      ${this.problem()} ${this.heard()}`;
  }
}

export const microphone = { name: "microphone", create: (bench) => new MicrophoneInput(bench) };

export class MicrophoneInput extends SoundInput {
  capture = new Capture();
  longestMs = this.bench.metadata.card.task === "speech-to-text" ? LONGEST_SPEECH_MS : LONGEST_MS;
  sliceMs = undefined; // how often a part of the recording is given; not before its end

  stop() {
    super.stop();
    this.end();
  }

  pause() {
    this.end();
  }

  end() {
    clearInterval(this.timer);
    if (this.recorder?.state === "recording") this.recorder.stop();
    this.capture.stop();
  }

  async record() {
    this.fault = faultBefore();
    if (!this.fault) await this.open();
    update();
  }

  async open() {
    const asked = this.capture.open({ audio: PLAIN });
    const stream = await asked.catch((error) => { this.fault = mediaFault(error); return null; });
    if (stream !== null) this.begin(stream);
  }

  begin(stream) {
    const parts = [];
    const recorder = new MediaRecorder(stream);
    const whole = () => new Blob(parts, { type: recorder.mimeType });
    recorder.ondataavailable = (event) => {
      parts.push(event.data);
      if (recorder.state === "recording") this.listen?.(whole());
    };
    recorder.onstop = () => this.finish(whole(), recorder);
    recorder.start(this.sliceMs);
    this.recorder = recorder;
    this.began = performance.now();
    this.timer = setInterval(() => this.tick(), 250);
  }

  tick() {
    if (performance.now() - this.began > this.longestMs) this.end();
    update();
  }

  finish(blob) {
    if (this.bench.input === this && blob.size) this.hear(blob, () => decode(blob));
  }

  view() {
    return html`<p class="help">${t("sound.help", { seconds: number(this.longestMs / 1000, 0) })}</p>
      ${this.problem()}
      ${this.recordButton("sound.record", "sound.stop")} ${this.heard()}`;
  }

  recordButton(start, end) {
    const busy = this.capture.stream !== null;
    return html`<button class="primary" aria-pressed=${busy} @click=${() => (busy ? this.end() : this.record())}>
        ${t(busy ? end : start)}</button>
      <p class="tempo" aria-hidden="true">${busy ? `${number((performance.now() - this.began) / 1000, 0)} s` : ""}</p>`;
  }
}
