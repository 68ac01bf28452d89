// The page's texts in the browser's language, English or Greek. What the server says stays English.
export const language = navigator.language.toLowerCase().startsWith("el") ? "el" : "en";
const { default: table } = await (language === "el" ? import("./words/el.js") : import("./words/en.js"));

export const has = (key) => key in table;

/** The text of a key, with values in place of {names}. */
export function t(key, values = {}) {
  return table[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
