import { joined } from "./bytes.js";
import { Chat } from "./chat.js";
import { ProtocolError, ServerError } from "./errors.js";
import { send } from "./exchange.js";
import { Sequence } from "./sequence.js";
import { Tensor, decode, encode, fromJson } from "./tensors.js";
import { Transcript, soundForm } from "./transcript.js";

const DEFAULT_URL = "http://127.0.0.1:8470";
const DEFAULT_TIMEOUT_MS = 60_000;
/** For answers of language models and transcripts. */
const LONG_TIMEOUT_MS = 600_000;
/** Longest delay of setTimeout; a longer one would fire at once. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;
const JSON_TYPE = "application/json";
const BINARY_TYPE = "application/octet-stream";
const HEADER_LENGTH = "Inference-Header-Content-Length";

/** Sends requests to a Pocketserve server. */
export class Client {
  #url;
  #token;
  #timeout;
  #fetch;

  /**
   * @param {object} [options]
   * @param {string} [options.url] address of the server
   * @param {string} [options.token] printed by `pocketserve token`
   * @param {number} [options.timeout] milliseconds for each call, from sending to the last byte
   * @param {typeof fetch} [options.fetch] replaces the global function
   */
  constructor({ url = DEFAULT_URL, token, timeout = DEFAULT_TIMEOUT_MS, fetch = globalThis.fetch } = {}) {
    const { protocol } = new URL(url);
    if (protocol !== "http:" && protocol !== "https:") {
      throw new TypeError(`the URL must begin with http:// or https://, not ${protocol}`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#token = token;
    this.#timeout = checkedTimeout(timeout);
    // Browsers refuse to call fetch as a method of another object.
    this.#fetch = (...args) => fetch(...args);
  }

  /** Return whether the server answers requests now. */
  async isReady(options) {
    return this.#succeeds("/v2/health/ready", options);
  }

  /** Return whether a model can be asked; it may be loaded by the first request. */
  async isModelReady(model, options) {
    return this.#succeeds(`${modelPath(model, options)}/ready`, options);
  }

  /** Return name, version and extensions of the server. */
  async serverMetadata(options) {
    return this.#json("GET", "/v2", undefined, options);
  }

  /** Return the names of all models. */
  async models(options) {
    const index = await this.index(options);
    return [...new Set(index.map((entry) => entry.name))];
  }

  /** Return an entry for each version of each model, with its state and reason. */
  async index(options) {
    return this.#json("POST", "/v2/repository/index", {}, options);
  }

  /** Return inputs, outputs, task and card of a model, and load it. */
  async modelMetadata(model, options) {
    return this.#json("GET", modelPath(model, options), undefined, options);
  }

  /** Load a model, or load it again. */
  async load(model, options) {
    await this.#json("POST", `${repositoryPath(model)}/load`, {}, options);
  }

  /** Stop serving a model until `load`. */
  async unload(model, options) {
    await this.#json("POST", `${repositoryPath(model)}/unload`, {}, options);
  }

  /**
   * Run a model on raw input, and return a labelled answer.
   *
   * @param data a Blob or File, an ArrayBuffer or a view of one (bytes of a picture or sound), a
   *     string (text), or a value that JSON can express (rows, features by name, items)
   * @returns the answer; with `annotate` "png" or "jpeg" a Blob with the drawn picture
   */
  async predict(model, data, options = {}) {
    const { body, type } = bodyOf(data);
    const query = new URLSearchParams();
    const values = {
      top_k: options.topK,
      threshold: options.threshold,
      version: options.version,
      annotate: options.annotate,
      timeout_ms: options.wait,
      priority: options.priority,
      stream: options.stream,
      ...options.parameters,
    };
    for (const [name, value] of Object.entries(values)) {
      if (value !== undefined && value !== null) {
        query.set(name, String(value));
      }
    }
    const headers = { "Content-Type": options.contentType ?? type };
    const path = `/predictions/${encodeURIComponent(model)}`;
    const exchange = await this.#send("POST", withQuery(path, query), body, headers, options);
    const isPicture = options.annotate === "png" || options.annotate === "jpeg";
    return isPicture ? exchange.blob() : exchange.json();
  }

  /**
   * Run a model on tensors, and return its output tensors by name.
   *
   * @param {Object<string, Tensor | ArrayBufferView>} inputs by name; a typed array has one axis
   */
  async infer(model, inputs, options = {}) {
    const { head, chunks } = inferRequest(inputs, options);
    const headers = { "Content-Type": BINARY_TYPE, [HEADER_LENGTH]: String(head.length) };
    const path = `${modelPath(model, options)}/infer`;
    const body = joined([head, ...chunks]);
    const exchange = await this.#send("POST", path, body, headers, options);
    const length = exchange.response.headers.get(HEADER_LENGTH);
    return inferAnswer(await exchange.bytes(), length);
  }

  /** Return a sequence of requests to a stateful model. */
  sequence(model, options) {
    return new Sequence(this, model, options);
  }

  /**
   * Ask a language model, and return its answer as it is written.
   *
   * @param {string | object[]} messages a question, or messages `{role, content}`
   * @param {object} [fields] of OpenAI's chat completions, such as `temperature`
   * @param {object} [options] `timeout` (by default ten minutes) and `signal`
   */
  chat(model, messages, fields = {}, options = {}) {
    const list = typeof messages === "string" ? [{ role: "user", content: messages }] : messages;
    const content = {
      ...fields,
      model,
      messages: list,
      stream: true,
      stream_options: { include_usage: true },
    };
    const limits = { ...options, timeout: options.timeout ?? LONG_TIMEOUT_MS };
    const start = (signal) => this.#sendJson("POST", "/v1/chat/completions", content, { ...limits, signal });
    return new Chat(start, options.signal);
  }

  /**
   * Write down the speech in a sound, and return its segments as they come.
   *
   * @param sound a Blob or File, an ArrayBuffer or a view of one
   * @param {object} [options] `language`, `prompt`, `temperature`, `translate` (into English),
   *     `timeout` (by default ten minutes) and `signal`
   */
  transcribe(model, sound, { language, prompt, temperature, translate, ...options } = {}) {
    const isSound = sound instanceof Blob || sound instanceof ArrayBuffer || ArrayBuffer.isView(sound);
    if (!isSound) {
      throw new TypeError("the sound is neither a Blob nor bytes");
    }
    const fields = { model, language, prompt, temperature, stream: true };
    const { body, type } = soundForm(fields, sound);
    const path = translate ? "/v1/audio/translations" : "/v1/audio/transcriptions";
    const limits = { ...options, timeout: options.timeout ?? LONG_TIMEOUT_MS };
    const start = (signal) => this.#send("POST", path, body, { "Content-Type": type }, { ...limits, signal });
    return new Transcript(start, options.signal);
  }

  /** Return the vector of each text, as Float32Arrays. */
  async embed(model, texts, options) {
    const content = { model, input: texts, encoding_format: "float" };
    const answer = await this.#json("POST", "/v1/embeddings", content, options);
    const entries = [...answer.data].sort((left, right) => left.index - right.index);
    return entries.map((entry) => Float32Array.from(entry.embedding));
  }

  /** Return documents by their relevance to a query, best first: `{index, relevance_score}`. */
  async rerank(model, query, documents, { topN, ...options } = {}) {
    const content = { model, query, documents };
    if (topN !== undefined) {
      content.top_n = topN;
    }
    const answer = await this.#json("POST", "/v1/rerank", content, options);
    return answer.results;
  }

  async #succeeds(path, options) {
    try {
      const exchange = await this.#send("GET", path, undefined, {}, options);
      exchange.close();
      return true;
    } catch (error) {
      if (error instanceof ServerError) {
        return false;
      }
      throw error;
    }
  }

  async #json(method, path, content, options) {
    const exchange = await this.#sendJson(method, path, content, options);
    return exchange.json();
  }

  async #sendJson(method, path, content, options) {
    if (content === undefined) {
      return this.#send(method, path, undefined, {}, options);
    }
    const headers = { "Content-Type": JSON_TYPE };
    return this.#send(method, path, JSON.stringify(content), headers, options);
  }

  async #send(method, path, body, headers, options = {}) {
    const all = { ...headers };
    if (this.#token !== undefined) {
      all.Authorization = `Bearer ${this.#token}`;
    }
    if (options.requestId !== undefined) {
      all["X-Request-Id"] = options.requestId;
    }
    const timeout = checkedTimeout(options.timeout ?? this.#timeout);
    const limits = { timeout, signal: options.signal };
    return send(this.#fetch, this.#url + path, { method, headers: all, body }, limits);
  }
}

function checkedTimeout(timeout) {
  if (!(timeout > 0 && timeout <= LONGEST_TIMEOUT_MS)) {
    throw new RangeError(`timeout must be 1 to ${LONGEST_TIMEOUT_MS} milliseconds, not ${timeout}`);
  }
  return timeout;
}

function modelPath(model, { version } = {}) {
  const path = `/v2/models/${encodeURIComponent(model)}`;
  return version === undefined ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

function repositoryPath(model) {
  return `/v2/repository/models/${encodeURIComponent(model)}`;
}

function withQuery(path, query) {
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}

function bodyOf(data) {
  if (data instanceof Blob) {
    return { body: data, type: data.type || BINARY_TYPE };
  }
  if (data instanceof ArrayBuffer || ArrayBuffer.isView(data)) {
    return { body: data, type: BINARY_TYPE };
  }
  if (typeof data === "string") {
    return { body: data, type: "text/plain; charset=utf-8" };
  }
  const body = JSON.stringify(data);
  if (body === undefined) {
    throw new TypeError("the data is neither bytes nor text nor a value that JSON can express");
  }
  return { body, type: JSON_TYPE };
}

function inferRequest(inputs, { outputs, parameters, wait, priority, stream, id }) {
  const described = [];
  const chunks = [];
  for (const [name, value] of Object.entries(inputs)) {
    const tensor = value instanceof Tensor ? value : new Tensor(value);
    const bytes = encode(tensor);
    described.push({
      name,
      shape: tensor.shape,
      datatype: tensor.datatype,
      parameters: { binary_data_size: bytes.length },
    });
    chunks.push(bytes);
  }
  const all = { ...parameters, binary_data_output: true };
  if (wait !== undefined) {
    all.timeout = Math.round(1000 * wait);
  }
  if (priority !== undefined) {
    all.priority = priority;
  }
  if (stream !== undefined) {
    all.stream = stream;
  }
  const content = { id, inputs: described, parameters: all };
  if (outputs !== undefined) {
    content.outputs = outputs.map((name) => ({ name, parameters: { binary_data: true } }));
  }
  return { head: new TextEncoder().encode(JSON.stringify(content)), chunks };
}

function inferAnswer(bytes, headerLength) {
  const length = headerLength === null ? bytes.length : Number(headerLength);
  let document;
  try {
    document = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  } catch (cause) {
    throw new ProtocolError("the answer is not JSON", { cause });
  }
  const outputs = {};
  let offset = length;
  for (const { name, datatype, shape, data, parameters } of document.outputs ?? []) {
    const size = parameters?.binary_data_size;
    if (size === undefined) {
      outputs[name] = fromJson(data, datatype, shape);
      continue;
    }
    const end = offset + size;
    if (!(size >= 0 && end <= bytes.length)) {
      throw new ProtocolError(`the answer is shorter than its output ${name}`);
    }
    outputs[name] = decode(bytes.subarray(offset, end), datatype, shape);
    offset = end;
  }
  const { model_name: model, model_version: version, id, parameters } = document;
  return { model, version, id, parameters, outputs };
}
