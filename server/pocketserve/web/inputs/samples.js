// Sample inputs that come with a model: one tap shows the answer.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { update } from "../page.js";
import { ask } from "../server.js";
import { t } from "../words.js";

const PICTURE = /\.(png|jpe?g|webp)$/;

export class Samples {
  constructor(metadata) {
    const base = `/v2/models/${encodeURIComponent(metadata.name)}/samples/`;
    const names = metadata.card.samples ?? [];
    this.list = names.map((name) => ({ name, path: base + encodeURIComponent(name), file: null, address: "" }));
    for (const sample of this.list.filter(({ name }) => PICTURE.test(name))) this.show(sample);
  }

  close() {
    for (const { address } of this.list) URL.revokeObjectURL(address);
    this.list = [];
  }

  /** Fetch a picture for its thumbnail. */
  async show(sample) {
    const file = await this.fetch(sample).catch(() => null); // the button has its name
    if (file === null || !this.list.includes(sample)) return;
    sample.address = URL.createObjectURL(file);
    update();
  }

  async fetch(sample) {
    if (sample.file === null) {
      const blob = await (await ask("GET", sample.path)).blob();
      sample.file = new File([blob], sample.name, { type: blob.type });
    }
    return sample.file;
  }

  view(take) {
    if (this.list.length === 0) return nothing;
    const choose = (sample) => this.fetch(sample).then(take, () => {}); // without a server the banner says so
    return html`<div class="samples" role="group" aria-label=${t("samples")}>${this.list.map((sample) => html`<button
      data-sample=${sample.name} @click=${() => choose(sample)}>
      ${sample.address ? html`<img src=${sample.address} alt=${sample.name} height="36">` : sample.name}</button>`)}</div>`;
  }
}
