// A picture or a video with the answer drawn over it, in the same box, so that nothing moves when an answer comes.
import { element } from "../page.js";
import { drawAnswer } from "./overlay.js";

export class Stage {
  /** `shown`: the element that is drawn over. */
  constructor(shown) {
    this.overlay = element("canvas", { className: "overlay", attributes: { "aria-hidden": "true" } });
    this.node = element("div", { className: "stage" });
    this.node.append(shown, this.overlay);
  }

  /** Draw an answer whose places are in pixels of a picture of that size. */
  async draw(answer, card, width, height) {
    await drawAnswer(this.overlay, answer, card, width, height);
  }

  clear() {
    this.overlay.width = this.overlay.width; // empties it
  }
}
