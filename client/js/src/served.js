import { ModelChangedError, ProtocolError } from "./errors.js";

/**
 * The model behind a class that `pocketserve codegen --language typescript` wrote.
 *
 * Before the first call it compares the model's fingerprint with the class's.
 */
export class ServedModel {
  #client;
  #facts;
  #isChecked = false;

  /** @param {{model, version, fingerprint, command}} facts of the class; without `version`, the default one */
  constructor(client, facts) {
    this.#client = client;
    this.#facts = facts;
  }

  /** Compare the fingerprints now; throw a ModelChangedError if they differ. */
  async check(options) {
    const { model, version, fingerprint } = this.#facts;
    const { parameters } = await this.#client.modelMetadata(model, { ...options, version });
    if (parameters?.fingerprint !== fingerprint) {
      throw this.#changed(`model '${model}' is not the one that this class was made from`);
    }
  }

  /** Send raw input; `defaults` are the values of keys that an entry of the answer lacks. */
  async predict(data, defaults, options) {
    await this.#checked(options);
    const { model, version } = this.#facts;
    const answer = await this.#client.predict(model, data, { ...options, version });
    if (!Array.isArray(answer.predictions)) {
      throw new ProtocolError("the answer has no predictions");
    }
    return { ...answer, predictions: answer.predictions.map((entry) => ({ ...defaults, ...entry })) };
  }

  /** Run the model on tensors; `names` are the outputs that the class knows. */
  async infer(inputs, names, options) {
    await this.#checked(options);
    const { model, version } = this.#facts;
    const answer = await this.#client.infer(model, inputs, { ...options, version });
    const missing = names.find((name) => answer.outputs[name] === undefined);
    if (missing !== undefined) {
      this.#isChecked = false;
      throw this.#changed(`model '${model}' answered no output ${missing}`);
    }
    return answer;
  }

  /** Check before the first call, within its time limit; after a failure, check again. */
  async #checked({ signal, timeout } = {}) {
    if (!this.#isChecked) {
      await this.check({ signal, timeout });
      this.#isChecked = true;
    }
  }

  #changed(fault) {
    return new ModelChangedError(`${fault}; generate the class again: ${this.#facts.command}`);
  }
}
