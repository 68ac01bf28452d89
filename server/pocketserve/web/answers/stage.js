// A picture or a video with the answer drawn over it, in one box, so that nothing moves when an answer arrives.
import { element } from "../page.js";
import { headline } from "./answer.js";
import { drawAnswer } from "./overlay.js";

export class Stage {
  /** `shown`: the element that is drawn over. */
  constructor(shown) {
    this.shown = shown;
    this.overlay = element("canvas", { className: "overlay", attributes: { "aria-hidden": "true" } });
    this.caption = element("p", { className: "over", attributes: { "aria-hidden": "true" } });
    this.node = element("div", { className: "stage" });
    this.node.append(shown, this.overlay, this.caption);
  }

  /** Give the box the shape of what is shown. */
  fit(width, height) {
    if (width && height) this.node.style.aspectRatio = `${width} / ${height}`;
  }

  /** Draw an answer whose places are in pixels of a picture of that size. */
  async draw(answer, card, width, height) {
    this.write(answer);
    const longest = Math.max(this.node.clientWidth, this.node.clientHeight) * devicePixelRatio;
    await drawAnswer(this.overlay, answer, card, width, height, longest);
  }

  /** Write the best answer over the picture. */
  write(answer) {
    const { name, value } = headline(answer);
    const label = element("bdi", { textContent: name });
    this.caption.replaceChildren(label, ` ${value}`);
  }

  clear() {
    this.overlay.width = this.overlay.width; // empties it
    this.caption.replaceChildren();
  }

  /** Return what is shown, with the drawing over it, as a JPEG file whose longer side has at most so many pixels. */
  picture(longest = Infinity) {
    const size = [this.shown.naturalWidth || this.shown.videoWidth, this.shown.naturalHeight || this.shown.videoHeight];
    const scale = Math.min(1, longest / Math.max(...size));
    const [width, height] = size.map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = element("canvas", { width, height });
    const pen = canvas.getContext("2d");
    pen.drawImage(this.shown, 0, 0, width, height);
    if (this.overlay.width) pen.drawImage(this.overlay, 0, 0, width, height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.9); });
  }
}
