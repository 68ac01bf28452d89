// Keep an answer: as a file, or in another app.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { element } from "../page.js";
import { t } from "../words.js";

const NAME = "answer.jpg";

/** Save a file as the browser does with downloads. */
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 0);
}

/** Rows of values -> a file for spreadsheets. */
export function csvFile(rows) {
  const text = rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
  return new Blob([text], { type: "text/csv;charset=utf-8" });
}

/** A quoted cell; one that a spreadsheet would take for a formula begins with an apostrophe. */
function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+@\t\r-]/.test(text) && !Number.isFinite(Number(text)) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

export function saveButtons(stage) {
  return html`<button @click=${() => save(stage)}>${t("picture.save")}</button>
    ${navigator.canShare ? html`<button @click=${() => share(stage)}>${t("picture.share")}</button>` : nothing}`;
}

async function save(stage) {
  download(await stage.picture(), NAME);
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
