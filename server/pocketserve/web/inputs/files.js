// Files: chosen, dropped or pasted. A picture is shown, with the answer over it.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { bytes } from "../format.js";
import { element, update } from "../page.js";
import { Stage } from "../answers/stage.js";
import { saveButtons } from "./saving.js";
import { t } from "../words.js";

const READABLE = /^image\/(jpeg|png|webp|gif|bmp)$/; // by every server; what else a browser shows goes as JPEG
const LARGE = 2_000_000; // pixels: larger photos are sent in the size that the model needs
const LEAST_SIDE = 1024; // pixels of the longer side that is sent
const QUALITY = 0.92;
const THUMBNAIL = 640; // pixels of the longer side of what the history keeps

/** A button that chooses one file; files can be dropped and pasted anywhere. */
export function fileField(accept, label, take, more = {}) {
  const choose = (event) => {
    const [chosen] = event.target.files;
    event.target.value = ""; // so that the same file can be chosen again
    if (chosen) take(chosen);
  };
  return html`<label class="drop ${more.className ?? ""}"><span>${label}</span>
    <input type="file" accept=${accept} capture=${more.capture ?? nothing} @change=${choose}></label>`;
}

/** Take files that are dropped on the page or pasted; returns a function that ends it. */
export function takeFiles(type, take) {
  const ends = new AbortController();
  const { signal } = ends;
  const of = (list) => [...(list ?? [])].find((each) => each.type.startsWith(type));
  addEventListener("dragover", (event) => event.preventDefault(), { signal });
  addEventListener("drop", (event) => {
    event.preventDefault();
    const dropped = of(event.dataTransfer?.files);
    if (dropped) take(dropped);
  }, { signal });
  addEventListener("paste", (event) => {
    const pasted = of(event.clipboardData?.files);
    if (pasted) take(pasted);
  }, { signal });
  return () => ends.abort();
}

export const picture = { name: "picture", create: (bench) => new PictureInput(bench) };

class PictureInput {
  constructor(bench) {
    this.bench = bench;
    this.image = element("img", { alt: t("picture.alt"), className: "shown" });
    this.stage = new Stage(this.image);
    this.address = "";
    this.chosen = null;
    this.isWhole = false; // whether large photos are sent as they are
    this.release = takeFiles("image/", (file) => this.take(file));
  }

  stop() {
    this.release();
    URL.revokeObjectURL(this.address);
  }

  async take(chosen) {
    URL.revokeObjectURL(this.address);
    this.chosen = chosen;
    this.address = URL.createObjectURL(chosen);
    this.stage.clear();
    this.image.src = this.address;
    await this.image.decode().catch(() => {}); // a picture that the browser cannot show, the server may read
    this.stage.fit(this.image.naturalWidth, this.image.naturalHeight);
    await this.send();
  }

  async send() {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    const side = this.sideToSend(width, height);
    const body = side === 0 ? this.chosen : await this.drawn(side / Math.max(width, height));
    const scale = side === 0 ? 1 : side / Math.max(width, height);
    await this.bench.submit({
      body,
      query: {},
      name: this.chosen.name || "picture.png",
      draw: (answer) => this.draw(answer, Math.round(width * scale), Math.round(height * scale)),
      clear: () => this.stage.clear(),
    });
    update();
  }

  /** Pixels of the longer side of a copy that is sent instead of the file; 0 for the file itself. */
  sideToSend(width, height) {
    if (!width) return 0;
    const longest = Math.max(width, height);
    const wanted = Math.max(LEAST_SIDE, 2 * sideOf(this.bench.metadata));
    if (this.isLarge() && !this.isWhole && wanted < longest) return wanted;
    return READABLE.test(this.chosen.type) ? 0 : longest;
  }

  isLarge() {
    return this.image.naturalWidth * this.image.naturalHeight > LARGE;
  }

  drawn(scale) {
    const width = Math.round(this.image.naturalWidth * scale);
    const height = Math.round(this.image.naturalHeight * scale);
    const canvas = element("canvas", { width, height });
    const pen = canvas.getContext("2d", { alpha: false });
    pen.fillStyle = "#fff"; // behind transparent pictures
    pen.fillRect(0, 0, width, height);
    pen.imageSmoothingQuality = "high";
    pen.drawImage(this.image, 0, 0, width, height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", QUALITY); });
  }

  draw(answer, width, height) {
    return width ? this.stage.draw(answer, this.bench.metadata.card, width, height) : undefined;
  }

  /** A small copy of the picture with the answer drawn on it. */
  thumbnail() {
    return this.stageView() ? this.stage.picture(THUMBNAIL) : null;
  }

  stageView() {
    return this.address && this.image.naturalWidth ? this.stage.node : null;
  }

  view() {
    const take = (file) => this.take(file);
    return html`<div class="actions files">
      ${fileField("image/*", t("picture.take"), take, { className: "on-touch", capture: "environment" })}
      ${fileField("image/*", t("picture.choose"), take)}
      ${this.stageView() ? saveButtons(this.stage) : nothing}</div>
      <p class="help">${this.chosen ? `${this.chosen.name}, ${bytes(this.chosen.size)}` : t("picture.help")}</p>
      ${this.chosen && this.isLarge() ? this.wholeField() : nothing}`;
  }

  wholeField() {
    const change = (event) => { this.isWhole = event.target.checked; this.send(); };
    return html`<label class="tick"><input type="checkbox" .checked=${this.isWhole} @change=${change}>${t("picture.whole")}</label>`;
  }
}

const sideOf = (metadata) => Math.max(0, ...metadata.inputs.flatMap((input) => input.shape));

export const file = { name: "file", create: (bench) => new FileInput(bench) };

class FileInput {
  constructor(bench) {
    this.bench = bench;
    this.chosen = null;
    this.release = takeFiles("", (chosen) => this.take(chosen));
  }

  stop() {
    this.release();
  }

  take(chosen) {
    this.chosen = chosen;
    this.bench.submit({ body: chosen, query: {}, name: chosen.name });
  }

  view() {
    return html`${fileField("", t("file.choose"), (chosen) => this.take(chosen))}
      ${this.chosen ? html`<p>${this.chosen.name}, ${bytes(this.chosen.size)}</p>` : nothing}`;
  }
}
