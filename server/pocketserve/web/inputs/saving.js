// Keep a picture with the answer drawn on it: as a file, or in another app.
import { html, nothing } from "/web/vendor/lit-html/lit-html.js";
import { element } from "../page.js";
import { t } from "../words.js";

const NAME = "answer.jpg";

export function saveButtons(stage) {
  return html`<button @click=${() => save(stage)}>${t("picture.save")}</button>
    ${navigator.canShare ? html`<button @click=${() => share(stage)}>${t("picture.share")}</button>` : nothing}`;
}

async function save(stage) {
  const address = URL.createObjectURL(await stage.picture());
  element("a", { href: address, download: NAME }).click();
  setTimeout(() => URL.revokeObjectURL(address), 0);
}

/** Where files cannot be shared, the picture is saved. */
async function share(stage) {
  const file = new File([await stage.picture()], NAME, { type: "image/jpeg" });
  if (!navigator.canShare({ files: [file] })) {
    await save(stage);
    return;
  }
  await navigator.share({ files: [file] }).catch(() => {}); // the user may close the dialog
}
