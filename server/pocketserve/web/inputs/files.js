// Files: chosen, dropped or pasted. A picture is shown, with the answer over it.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { bytes } from "../format.js";
import { element, update } from "../page.js";
import { Stage } from "../answers/stage.js";
import { t } from "../words.js";

/** A field for one file, which can be dropped and pasted, too. */
export function fileField(accept, label, take) {
  const drop = (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  };
  return html`<label class="drop" @dragover=${(event) => event.preventDefault()} @drop=${drop}>
    <span>${label}</span>
    <input type="file" accept=${accept} @change=${(event) => event.target.files[0] && take(event.target.files[0])}>
  </label>`;
}

export const picture = { name: "picture", create: (bench) => new PictureInput(bench) };

class PictureInput {
  constructor(bench) {
    this.bench = bench;
    this.image = element("img", { alt: t("picture.alt"), className: "shown" });
    this.stage = new Stage(this.image);
    this.address = "";
    this.paste = (event) => this.onPaste(event);
    addEventListener("paste", this.paste);
  }

  stop() {
    removeEventListener("paste", this.paste);
    URL.revokeObjectURL(this.address);
  }

  onPaste(event) {
    const pasted = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
    if (pasted) this.take(pasted);
  }

  async take(chosen) {
    URL.revokeObjectURL(this.address);
    this.address = URL.createObjectURL(chosen);
    this.stage.clear();
    this.image.src = this.address;
    await this.image.decode().catch(() => {}); // one that the browser cannot show, the server may read
    const sample = { body: chosen, query: {}, name: chosen.name || "picture.png" };
    await this.bench.submit({ ...sample, draw: (answer) => this.draw(answer) });
    update();
  }

  draw(answer) {
    const { naturalWidth, naturalHeight } = this.image;
    if (naturalWidth) this.stage.draw(answer, this.bench.metadata.card, naturalWidth, naturalHeight);
  }

  view() {
    return html`${fileField("image/*", t("picture.choose"), (chosen) => this.take(chosen))}
      ${this.address ? this.stage.node : nothing}`;
  }
}

export const file = { name: "file", create: (bench) => new FileInput(bench) };

class FileInput {
  constructor(bench) {
    this.bench = bench;
    this.chosen = null;
  }

  stop() {}

  take(chosen) {
    this.chosen = chosen;
    this.bench.submit({ body: chosen, query: {}, name: chosen.name });
  }

  view() {
    return html`${fileField("", t("file.choose"), (chosen) => this.take(chosen))}
      ${this.chosen ? html`<p>${this.chosen.name}, ${bytes(this.chosen.size)}</p>` : nothing}`;
  }
}
