import { events } from "./events.js";

/** An answer that arrives piece by piece: iterate with `for await`. Leaving the loop early ends it. */
export class StreamedAnswer {
  #exchange = null;
  #isClosed = false;
  #pieces;

  /** @param {() => Promise<object>} start sends the request; called with the first piece */
  constructor(start) {
    this.#pieces = this.#read(start);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** End the answer; the model stops. */
  async close() {
    this.#isClosed = true;
    this.#exchange?.close();
    await this.#pieces.return();
  }

  async *#read(start) {
    this.#exchange = await start();
    try {
      for await (const event of events(this.#exchange)) {
        yield* this.piecesOf(event);
      }
    } catch (error) {
      if (!this.#isClosed) {
        throw error;
      }
    } finally {
      this.#exchange.close();
    }
  }
}
