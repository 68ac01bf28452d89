import { PocketserveError } from "./errors.js";

/** Steps of a stateful model, one after the other; made by `Client.sequence`. */
export class Sequence {
  #client;
  #model;
  #version;
  #isOpen = false;

  constructor(client, model, { id = randomId(), version } = {}) {
    this.id = id;
    this.#client = client;
    this.#model = model;
    this.#version = version;
  }

  /** Send the next step's raw input, as `Client.predict` does. */
  async predict(data, options = {}) {
    const answer = await this.#client.predict(this.#model, data, this.#step(options));
    this.#isOpen = true;
    return answer;
  }

  /** Send the next step's tensors, as `Client.infer` does; state may be omitted. */
  async infer(inputs, options = {}) {
    const answer = await this.#client.infer(this.#model, inputs, this.#step(options));
    this.#isOpen = true;
    return answer;
  }

  /** End the sequence. The server drops abandoned ones after a while. */
  async close() {
    if (!this.#isOpen) {
      return;
    }
    this.#isOpen = false;
    const parameters = { sequence_id: this.id, sequence_end: true };
    try {
      await this.#client.infer(this.#model, {}, { version: this.#version, parameters });
    } catch (error) {
      // The sequence may have ended already, also with the server.
      if (!(error instanceof PocketserveError)) {
        throw error;
      }
    }
  }

  #step(options) {
    const parameters = { ...options.parameters, sequence_id: this.id };
    if (!this.#isOpen) {
      parameters.sequence_start = true;
    }
    return { ...options, version: this.#version, parameters };
  }
}

function randomId() {
  return 1 + Math.floor(Math.random() * (Number.MAX_SAFE_INTEGER - 1));
}
