// Asks the server: the session, every request, and what a failure means.
const SESSION = "pocketserve-session";
const ANSWER_TIMEOUT_MS = 120_000; // a model's first request may import its framework
const OPEN_TIMEOUT_MS = 5000; // then the form for the token is shown

/** What came instead of an answer. `status` is 0 where no answer came; `code` is the server's stable code. */
export class Failure extends Error {
  constructor(status, code, text, retryAfterS = 0) {
    super(text);
    Object.assign(this, { status, code, retryAfterS });
  }
}

export const session = {
  get: () => sessionStorage.getItem(SESSION),
  set: (value) => sessionStorage.setItem(SESSION, value),
  end: () => sessionStorage.removeItem(SESSION),
};

/** Whether the server asks for no token: it was started with --no-auth. */
export function isOpen() {
  const asked = send("GET", "/web/access.json", null, { bearer: null, timeoutMs: OPEN_TIMEOUT_MS });
  return asked.then((answer) => answer.json()).then(({ token }) => !token, () => false);
}

/** Take the one-time ticket out of the address, so that it is in no bookmark and no reload. */
export function takeTicket() {
  const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
  if (ticket !== null) history.replaceState(null, "", location.pathname);
  return ticket;
}

/** Change a ticket for a session of this tab. */
export async function enter(ticket) {
  const answer = await send("POST", "/web/session", JSON.stringify({ ticket }), { json: true, bearer: null });
  session.set((await answer.json()).session);
}

/** Change the token for a session. The token is kept nowhere: another app may have the port by the next request. */
export async function enterByToken(token) {
  const answer = await send("POST", "/web/ticket", "", { bearer: token });
  await enter((await answer.json()).ticket);
}

/** Ask with the session. */
export function ask(method, path, body, options = {}) {
  return send(method, path, body, { bearer: session.get(), ...options });
}

export async function askJson(method, path, body, options = {}) {
  return (await ask(method, path, body, options)).json();
}

async function send(method, path, body, { bearer, json = false, signal, timeoutMs = ANSWER_TIMEOUT_MS }) {
  const headers = {};
  if (bearer) headers.Authorization = `Bearer ${bearer}`;
  if (json) headers["Content-Type"] = "application/json";
  const limit = AbortSignal.timeout(timeoutMs);
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, body: body ?? undefined, cache: "no-store", credentials: "omit",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (error) {
    throw noAnswer(error);
  }
  if (answer.status !== 200) throw await refusal(answer);
  return answer;
}

function noAnswer(error) {
  if (error.name === "TimeoutError") return new Failure(0, "FROZEN", "");
  if (error.name === "AbortError") return new Failure(0, "LEFT", "");
  return new Failure(0, "UNREACHABLE", "");
}

async function refusal(answer) {
  const told = await answer.json().catch(() => ({}));
  const retry = Number(answer.headers.get("Retry-After")) || 0;
  return new Failure(answer.status, codeOf(told) ?? `HTTP_${answer.status}`, textOf(told), retry);
}

/** OpenAI's routes put code and text into an object, the code in small letters. */
export const codeOf = ({ code, error }) => code ?? error?.code?.toUpperCase();
export const textOf = ({ error }) => error?.message ?? error ?? "";
