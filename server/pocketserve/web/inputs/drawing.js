// A pad to draw on with a finger, a pen or a mouse. A short while after the last stroke the model is asked.
import { html } from "../vendor/lit-html/lit-html.js";
import { element, update } from "../page.js";
import { t } from "../words.js";

const SIDE = 280;
const STROKE = 22;
const PAUSE_MS = 350;

export const drawing = { name: "drawing", create: (bench) => new DrawingInput(bench) };

class DrawingInput {
  constructor(bench) {
    this.bench = bench;
    this.canvas = element("canvas", { className: "pad", width: SIDE, height: SIDE, attributes: { role: "img", "aria-label": t("drawing.alt") } });
    this.pen = this.canvas.getContext("2d");
    this.timer = 0;
    for (const kind of ["pointerdown", "pointermove", "pointerup"]) {
      this.canvas.addEventListener(kind, (event) => this[kind](event));
    }
    this.clear();
  }

  stop() {
    clearTimeout(this.timer);
  }

  clear() {
    this.stop();
    this.pen.fillStyle = "#fff";
    this.pen.fillRect(0, 0, SIDE, SIDE);
    Object.assign(this.pen, { strokeStyle: "#000", lineWidth: STROKE, lineCap: "round", lineJoin: "round" });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  }

  pointerdown(event) {
    event.preventDefault();
    this.stop();
    this.canvas.setPointerCapture(event.pointerId);
    this.pen.beginPath();
    this.pen.moveTo(...this.place(event));
    this.pointermove(event);
  }

  pointermove(event) {
    if (!event.buttons) return;
    this.pen.lineTo(...this.place(event));
    this.pen.stroke();
  }

  pointerup() {
    this.stop();
    this.timer = setTimeout(() => this.send(), PAUSE_MS);
  }

  send() {
    this.canvas.toBlob((body) => this.bench.submit({ body, query: {}, name: "drawing.png" }), "image/png");
  }

  thumbnail() {
    return new Promise((resolve) => { this.canvas.toBlob(resolve, "image/jpeg"); });
  }

  stageView() {
    const empty = () => { this.clear(); this.bench.sample = null; update(); };
    return html`<div class="drawing">${this.canvas}
      <div class="actions"><button @click=${empty}>${t("drawing.clear")}</button></div></div>`;
  }

  view() {
    return html`<p class="help">${t("drawing.help")}</p>`;
  }
}
