// The live camera: always the newest frame, one request under way.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { milliseconds, number } from "../format.js";
import { element, update } from "../page.js";
import { Stage } from "../answers/stage.js";
import { Capture } from "./capture.js";
import { saveButtons } from "./saving.js";
import { t } from "../words.js";

const SIDE = 320; // pixels of the longer side that is sent; a model of larger pictures gets its own size
const LARGEST_SIDE = 640;
const QUALITY = 0.8;
const RETRY_MS = 1000;
const STALE_MS = 1000; // an answer that is older is not drawn over the live picture
const GOES_ON = new Set(["SUPERSEDED", "QUEUE_FULL", "LOW_POWER", "MODEL_NOT_READY", "DEADLINE_EXCEEDED"]);

export const camera = { name: "camera", create: (bench) => new CameraInput(bench) };

class CameraInput {
  constructor(bench) {
    this.bench = bench;
    this.video = element("video", { className: "shown", muted: true, playsInline: true, attributes: { "aria-label": t("camera.alt") } });
    this.stage = new Stage(this.video);
    this.capture = new Capture();
    this.fault = "";
    this.isFrozen = false; // the picture stands still, to be looked at or saved
    this.hasTorch = false;
    this.isLit = false;
    this.facing = "environment";
    this.name = `page-${Math.random().toString(36).slice(2)}`; // of this tab: two tabs do not supersede each other
    this.tempo = new Tempo();
  }

  get stream() {
    return this.capture.stream;
  }

  stop() {
    clearTimeout(this.staleTimer);
    this.capture.stop();
    this.stage.clear();
    Object.assign(this, { isFrozen: false, isLit: false });
    if (this.isFull()) document.exitFullscreen();
    this.wake?.();
  }

  pause() {
    this.stop();
  }

  async start() {
    this.fault = faultBefore();
    if (!this.fault) await this.open();
    update();
  }

  async open() {
    const wish = { facingMode: this.facing, width: { ideal: 640 }, height: { ideal: 480 } };
    const asked = this.capture.open({ video: wish, audio: false });
    this.wake?.(); // the loop of the stream before, which has ended
    const stream = await asked.catch((error) => { this.fault = mediaFault(error); return null; });
    if (stream !== null) await this.play(stream);
  }

  async play(stream) {
    stream.getVideoTracks()[0].onended = () => this.lose();
    this.video.srcObject = stream;
    await this.video.play();
    this.stage.fit(this.video.videoWidth, this.video.videoHeight);
    this.hasTorch = Boolean(stream.getVideoTracks()[0].getCapabilities?.().torch);
    this.tempo = new Tempo();
    this.noteFrames(stream);
    this.loop(stream);
  }

  lose() {
    this.stop();
    this.fault = "NotFoundError";
    update();
  }

  /** Hold the picture with its answer, or go on. */
  freeze() {
    this.isFrozen = !this.isFrozen;
    if (this.isFrozen) {
      clearTimeout(this.staleTimer);
      this.video.pause();
    } else {
      this.video.play();
      this.wake?.();
    }
    update();
  }

  async light() {
    this.isLit = !this.isLit;
    await this.stream.getVideoTracks()[0].applyConstraints({ advanced: [{ torch: this.isLit }] }).catch(() => {});
    update();
  }

  turn() {
    this.facing = this.facing === "environment" ? "user" : "environment";
    this.open().then(update);
  }

  noteFrames(stream) {
    this.frame = 0;
    const note = () => {
      if (this.stream !== stream) return;
      this.frame += 1;
      this.wake?.();
      this.video.requestVideoFrameCallback(note);
    };
    this.video.requestVideoFrameCallback(note);
  }

  async loop(stream) {
    let sent = 0;
    while (this.stream === stream) {
      const isIdle = () => document.hidden || this.isFrozen || this.frame === sent;
      if (isIdle()) await this.newer();
      if (this.stream !== stream || isIdle()) continue;
      sent = this.frame;
      await this.send();
    }
  }

  /** Wait for a newer frame, or for the end. A hidden page has none: it waits without work. */
  newer() {
    return new Promise((resolve) => { this.wake = resolve; });
  }

  async send() {
    const began = performance.now();
    const { body, width, height } = this.grab();
    const draw = (answer) => this.draw(answer, width, height);
    const failure = await this.bench.submit(
      { body, query: { stream: this.name }, name: "photo.jpg", live: true, draw },
    );
    if (!failure) this.tempo.note(performance.now() - began);
    else if (GOES_ON.has(failure.code)) await pause(failure);
    else this.stop();
    update();
  }

  draw(answer, width, height) {
    if (!this.stream) return;
    this.stage.draw(answer, this.bench.metadata.card, width, height);
    clearTimeout(this.staleTimer);
    if (!this.isFrozen) this.staleTimer = setTimeout(() => this.forget(), STALE_MS);
  }

  /** Take away an answer that the picture has left behind. */
  forget() {
    this.stage.clear();
    this.tempo = new Tempo();
    update();
  }

  grab() {
    const { videoWidth, videoHeight } = this.video;
    const scale = Math.min(1, sideFor(this.bench.metadata) / Math.max(videoWidth, videoHeight));
    const [width, height] = [videoWidth, videoHeight].map((side) => Math.max(1, Math.round(side * scale)));
    if (this.canvas?.width !== width || this.canvas.height !== height) this.canvas = element("canvas", { width, height });
    this.canvas.getContext("2d", { alpha: false, willReadFrequently: true }).drawImage(this.video, 0, 0, width, height);
    return { body: jpegOf(this.canvas), width, height };
  }

  view() {
    if (this.fault) return html`<div class="problem" role="alert" data-code=${this.fault}><strong>${t(`media.${this.fault}.title`)}</strong>
      <p>${t(`media.${this.fault}.help`)}</p></div>${this.startButton()}`;
    if (!this.stream) return html`<p class="help">${t("camera.help")}</p>${this.startButton()}`;
    return html`<p class="tempo" aria-hidden="true">${this.tempo.text()}</p>
      ${this.isFull() ? nothing : this.controls()}`;
  }

  controls() {
    return html`<div class="actions"><button @click=${() => { this.stop(); update(); }}>${t("camera.stop")}</button>
      <button aria-pressed=${this.isFrozen} @click=${() => this.freeze()}>${t("camera.freeze")}</button>
      <button @click=${() => this.turn()}>${t("camera.turn")}</button>
      ${this.hasTorch ? html`<button aria-pressed=${this.isLit} @click=${() => this.light()}>${t("camera.torch")}</button>` : nothing}
      ${document.fullscreenEnabled ? html`<button aria-pressed=${this.isFull()} @click=${() => this.fill()}>${t("camera.full")}</button>` : nothing}
      ${this.isFrozen ? saveButtons(this.stage) : nothing}</div>
      ${this.thresholdField()}`;
  }

  /** The lowest score that is shown, by hand. */
  thresholdField() {
    const schema = this.bench.metadata.card.parameters?.threshold;
    if (!schema) return nothing;
    const { options } = this.bench;
    const value = options.threshold ?? schema.default ?? 0;
    const change = (event) => { options.threshold = event.target.value; update(); };
    return html`<label>${t("option.threshold")} ${number(Number(value))}
      <input type="range" min="0" max="1" step="0.05" .value=${String(value)} @input=${change}></label>`;
  }

  /** The stage; on the full screen with the controls, which would be out of sight. */
  stageView() {
    if (!this.stream) return null;
    return html`<div class="live" @fullscreenchange=${() => update()}>${this.stage.node}
      ${this.isFull() ? html`<div class="deck">${this.controls()}</div>` : nothing}</div>`;
  }

  isFull() {
    return document.fullscreenElement?.contains(this.stage.node) ?? false;
  }

  /** Fill the screen, or leave it. */
  fill() {
    if (this.isFull()) document.exitFullscreen();
    else this.stage.node.parentElement.requestFullscreen();
  }

  startButton() {
    return html`<button class="primary" @click=${() => this.start()}>${t("camera.start")}</button>${nothing}`;
  }
}

function sideFor(metadata) {
  const sizes = metadata.inputs.flatMap((input) => input.shape);
  return Math.min(LARGEST_SIDE, Math.max(SIDE, ...sizes));
}

/** The picture as a file, at once: what makes a Blob of a canvas waits until the browser has nothing else to do. */
function jpegOf(canvas) {
  const base64 = canvas.toDataURL("image/jpeg", QUALITY).split(",")[1];
  return new Blob([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], { type: "image/jpeg" });
}

/** Why there can be no camera or microphone here, before it is asked for; "" where there can. */
export function faultBefore() {
  if (!isSecureContext) return "insecure";
  return navigator.mediaDevices ? "" : "NotFoundError";
}

/** The name of what went wrong, one of those that have words. */
export function mediaFault(error) {
  const known = { NotAllowedError: "NotAllowedError", SecurityError: "NotAllowedError", NotReadableError: "NotReadableError" };
  return known[error.name] ?? "NotFoundError";
}

const pause = (failure) => new Promise((resolve) => {
  setTimeout(resolve, failure.code === "SUPERSEDED" ? 0 : 1000 * failure.retryAfterS || RETRY_MS);
});

/** Answers a second, and milliseconds from frame to answer, over the last answers. */
class Tempo {
  constructor() {
    this.answers = [];
  }

  note(ms) {
    this.answers.push({ at: performance.now(), ms });
    this.answers.splice(0, this.answers.length - 30);
  }

  text() {
    const [first, last] = [this.answers[0], this.answers.at(-1)];
    if (!first || first === last) return t("camera.waiting");
    const rate = (1000 * (this.answers.length - 1)) / (last.at - first.at);
    const middle = this.answers.map(({ ms }) => ms).sort((a, b) => a - b)[this.answers.length >> 1];
    return `${number(rate, 0)} ${t("camera.rate")} · ${milliseconds(middle)}`;
  }
}
