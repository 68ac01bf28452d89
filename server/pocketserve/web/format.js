// Numbers as people read them, in the page's language.
import { language } from "./words.js";

const UNITS = ["B", "kB", "MB", "GB"];

/** Bytes with a unit; a dash for nothing. */
export function bytes(count) {
  if (!count) return "–";
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(count) / 3));
  return `${number(count / 1000 ** power, power ? 1 : 0)} ${UNITS[power]}`;
}

export function number(value, digits = 2) {
  return new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value ?? NaN);
}

export function percent(share) {
  return new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 }).format(share ?? NaN);
}

/** A measured value: as many digits as say something. */
export function measure(value) {
  return new Intl.NumberFormat(language, { maximumSignificantDigits: 4 }).format(value ?? NaN);
}

/** A time, to three digits: more are noise. */
export function milliseconds(value) {
  const text = new Intl.NumberFormat(language, { maximumSignificantDigits: 3 }).format(value ?? NaN);
  return `${text} ms`;
}

/** A label among other text: letters from right to left keep to themselves. */
export const isolated = (label) => `\u2068${label}\u2069`;

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString(language);
