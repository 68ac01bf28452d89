/** Codes of failures that may pass by themselves (docs/http.md, "Codes"). */
const RETRYABLE_CODES = new Set([
  "QUEUE_FULL",
  "MODEL_NOT_READY",
  "MEMORY_BUDGET",
  "SHUTTING_DOWN",
  "LOW_POWER",
  "DEADLINE_EXCEEDED",
]);

/** Base of all errors of this package. */
export class PocketserveError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = this.constructor.name;
  }
}

/** The server cannot be reached, or the connection broke before the answer was complete. */
export class UnreachableError extends PocketserveError {}

/** The answer did not arrive within the call's `timeout`. */
export class TimeoutError extends PocketserveError {}

/** The answer does not follow the protocol: another program may have the port. */
export class ProtocolError extends PocketserveError {}

/** The model is no longer the one that a generated class was made from. */
export class ModelChangedError extends PocketserveError {}

/** The server answered with an error. */
export class ServerError extends PocketserveError {
  /**
   * @param {number} status HTTP status, or 500 for an error within a stream
   * @param {string} code stable code such as MODEL_NOT_FOUND; empty if another program answered
   * @param {string} message the server's sentence
   * @param {number} [retryAfter] milliseconds to wait before trying again
   */
  constructor(status, code, message, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may succeed later. */
  get isRetryable() {
    if (this.code !== "") {
      return RETRYABLE_CODES.has(this.code);
    }
    return this.status === 429 || this.status === 503;
  }
}

/** Return the error that a response with another status than 200 describes. */
export function serverError(status, text, retryAfterHeader) {
  const seconds = Number.parseInt(retryAfterHeader ?? "", 10);
  const retryAfter = Number.isNaN(seconds) ? undefined : 1000 * seconds;
  const { code, message } = describe(text);
  return new ServerError(status, code, message || `the server answered with status ${status}`, retryAfter);
}

/** Return the error that ended a stream after it had begun. */
export function streamError(error) {
  const { code, message } = describe(JSON.stringify({ error }));
  return new ServerError(500, code, message);
}

/** Read both shapes: `{error: "…", code}` and OpenAI's `{error: {message, code}}`. */
function describe(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    return { code: "", message: "" };
  }
  const error = document?.error;
  if (typeof error === "string") {
    return { code: String(document.code ?? ""), message: error };
  }
  const code = String(error?.code ?? "").toUpperCase();
  return { code, message: String(error?.message ?? "") };
}
