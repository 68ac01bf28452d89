// A failure in words: what it is, what to do, and the server's own sentence.
import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { t, has } from "./words.js";

/** `place` names a special meaning, such as a 401 of a ticket. */
export function problem(failure, place = "") {
  const key = keyOf(failure, place);
  return html`<div class="problem" role="alert" data-code=${failure.code ?? "PAGE"}>
    <strong>${t(`${key}.title`)}</strong>
    ${failure.message && !isToken(failure, place) ? html`<p lang="en">${failure.message}</p>` : nothing}
    <p>${t(`${key}.help`, { seconds: failure.retryAfterS || 1 })}</p>
  </div>`;
}

/** A token that was typed wrongly: the server's sentence is for programs. */
const isToken = ({ status }, place) => status === 401 && place === "token";

function keyOf(failure, place) {
  const keys = [`${failure.status}.${place}`, failure.code, `${failure.status}`];
  return keys.map((key) => `fault.${key}`).find((key) => has(`${key}.title`)) ?? "fault.other";
}
