// The form for the token, where no ticket brought the visitor in.
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { problem } from "../problems.js";
import { update } from "../page.js";
import { enterByToken } from "../server.js";
import { t } from "../words.js";

const form = { failure: null, busy: false, isShown: false };

/** `reason`: "" at the first visit, "ended" for a session that is no more, or the failure of a ticket. */
export function loginView(reason, letIn) {
  return html`<section class="panel narrow">
    <h1>${t("login.title")}</h1>
    ${reason === "ended" ? html`<p class="notice">${t("login.ended")}</p>` : nothing}
    ${reason.status !== undefined && !form.failure ? problem(reason, "ticket") : nothing}
    <p>${t("login.open")} <code>pocketserve open</code></p>
    <form @submit=${(event) => submit(event, letIn)}>
      <label for="token">${t("login.token")}</label>
      <input id="token" type=${form.isShown ? "text" : "password"} autocomplete="off" autocapitalize="off" spellcheck="false" required
        aria-describedby="token-help">
      <p id="token-help" class="help">${t("login.help")} <code>pocketserve token</code></p>
      <label class="tick"><input type="checkbox" .checked=${form.isShown}
        @change=${(event) => { form.isShown = event.target.checked; update(); }}>${t("login.show")}</label>
      ${form.failure ? problem(form.failure, "token") : nothing}
      <div class="actions"><button class="primary" ?disabled=${form.busy}>${t("login.enter")}</button>
      ${navigator.clipboard?.readText ? html`<button type="button" @click=${paste}>${t("login.paste")}</button>` : nothing}</div>
    </form>
  </section>`;
}

/** Fill in what was copied; where the browser refuses, the field can still be used. */
async function paste() {
  const field = document.getElementById("token");
  field.value = (await navigator.clipboard.readText().catch(() => field.value)).trim();
  field.focus();
}

async function submit(event, letIn) {
  event.preventDefault();
  const field = event.target.querySelector("#token");
  Object.assign(form, { failure: null, busy: true });
  update();
  try {
    await enterByToken(field.value.trim());
    field.value = "";
    letIn();
  } catch (failure) {
    form.failure = failure;
  }
  form.busy = false;
  update();
}
