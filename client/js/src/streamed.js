import { events } from "./events.js";

/** An answer that arrives piece by piece: iterate with `for await`. Leaving the loop early ends it. */
export class StreamedAnswer {
  #ending = new AbortController();
  #isClosed = false;
  #pieces;

  /**
   * @param {(signal: AbortSignal) => Promise<object>} start sends the request; called with the first piece
   * @param {AbortSignal} [signal] the caller's
   */
  constructor(start, signal) {
    this.#pieces = this.#read(start, signal);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** End the answer; the model stops. */
  async close() {
    this.#isClosed = true;
    this.#ending.abort();
    await this.#pieces.return();
  }

  async *#read(start, signal) {
    const onAbort = () => this.#ending.abort(signal.reason);
    let exchange;
    try {
      signal?.addEventListener("abort", onAbort);
      if (signal?.aborted) {
        onAbort();
      }
      // The server sends its headers with the first piece, so closing must also end this wait.
      exchange = await start(this.#ending.signal);
      for await (const event of events(exchange)) {
        yield* this.piecesOf(event);
      }
    } catch (error) {
      if (!this.#isClosed) {
        throw error;
      }
    } finally {
      signal?.removeEventListener("abort", onAbort);
      exchange?.close();
    }
  }
}
