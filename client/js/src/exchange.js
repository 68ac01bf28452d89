import { ProtocolError, TimeoutError, UnreachableError, serverError } from "./errors.js";

/**
 * Send one request, and read its answer within a time limit.
 *
 * The limit and the caller's signal hold until `read` has returned: for a stream, until its end.
 *
 * @param {typeof fetch} fetch the function that sends
 * @param {string} url
 * @param {RequestInit} init
 * @param {{timeout: number, signal?: AbortSignal}} limits `timeout` in milliseconds
 * @returns {Promise<Exchange>} with a response of status 200
 */
export async function send(fetch, url, init, limits) {
  const exchange = new Exchange(url, limits);
  const response = await exchange.wait(
    fetch(url, {
      ...init,
      signal: exchange.signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    }),
  );
  exchange.response = response;
  if (response.status !== 200) {
    const text = await exchange.finish(response.text());
    throw serverError(response.status, text, response.headers.get("Retry-After"));
  }
  return exchange;
}

class Exchange {
  #controller = new AbortController();
  #timer;
  #outer;
  #onAbort = () => this.#controller.abort();
  #url;
  #timeout;
  #isLate = false;

  constructor(url, { timeout, signal }) {
    this.#url = url;
    this.#timeout = timeout;
    this.#outer = signal;
    if (signal?.aborted) {
      throw signal.reason;
    }
    signal?.addEventListener("abort", this.#onAbort);
    this.#timer = setTimeout(() => {
      this.#isLate = true;
      this.#controller.abort();
    }, timeout);
  }

  get signal() {
    return this.#controller.signal;
  }

  /** Wait for a step; a failure ends the exchange. */
  async wait(step) {
    try {
      return await step;
    } catch (cause) {
      this.close();
      throw this.#explain(cause);
    }
  }

  /** Wait for the last step, and end the exchange. */
  async finish(step) {
    const result = await this.wait(step);
    this.close();
    return result;
  }

  async json() {
    const text = await this.finish(this.response.text());
    try {
      return JSON.parse(text);
    } catch (cause) {
      throw new ProtocolError(`${this.#url} did not answer with JSON`, { cause });
    }
  }

  async bytes() {
    return new Uint8Array(await this.finish(this.response.arrayBuffer()));
  }

  async blob() {
    return this.finish(this.response.blob());
  }

  /** End the exchange; an answer that is still under way is given up. */
  close() {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#onAbort);
    this.#controller.abort();
  }

  #explain(cause) {
    if (this.#outer?.aborted) {
      return this.#outer.reason;
    }
    if (this.#isLate) {
      const text = `${this.#url} did not answer within ${this.#timeout} ms; on a phone, open Termux`;
      return new TimeoutError(text, { cause });
    }
    const text =
      `${this.#url} cannot be reached; is the server running, and does --allowed-origins ` +
      "list this page's origin?";
    return new UnreachableError(text, { cause });
  }
}
