// A chart of lines over time, in SVG: the names of its ends are text, and its colours are the page's.
import { html, svg } from "../vendor/lit-html/lit-html.js";
import { clock } from "../format.js";

const WIDTH = 300;
const HEIGHT = 100;

/** `times` in seconds, `lines` of values or null, one for each time; `shown` writes a value. */
export function lineChart(times, lines, shown) {
  const high = roundTop(Math.max(1, ...lines.flat().filter((value) => value !== null)));
  const [from, to] = [times[0] ?? 0, times.at(-1) ?? 0];
  const place = (time, value) => [
    ((time - from) / Math.max(1, to - from)) * WIDTH, HEIGHT - (value / high) * HEIGHT,
  ].map((number) => number.toFixed(1)).join(" ");
  return html`<div class="chart" aria-hidden="true">
    <span>${shown(high)}</span>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none">
      ${[0, 0.5, 1].map((share) => svg`<path class="grid" d="M0 ${HEIGHT * share}H${WIDTH}"></path>`)}
      ${lines.map((line, index) => svg`<path class="line-${index}" d=${pathOf(times, line, place)}></path>`)}
    </svg>
    <span class="times"><span>${from ? clock(from) : ""}</span><span>${to ? clock(to) : ""}</span></span></div>`;
}

/** The next of 1, 2, 5, 10, 20, 50 …: an axis that is easy to read. */
function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 5, 10].find((step) => step * power >= value);
  return factor * power;
}

/** Where nothing was measured, the line has a gap. */
function pathOf(times, line, place) {
  let open = false;
  return line.map((value, index) => {
    const sign = open ? "L" : "M";
    open = value !== null;
    return open ? sign + place(times[index], value) : "";
  }).join("");
}
