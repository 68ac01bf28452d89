/** Datatypes of the Open Inference Protocol. */
export type Datatype =
  | "BOOL"
  | "UINT8"
  | "UINT16"
  | "UINT32"
  | "UINT64"
  | "INT8"
  | "INT16"
  | "INT32"
  | "INT64"
  | "FP16"
  | "BF16"
  | "FP32"
  | "FP64"
  | "BYTES";

/** Values of numbers; FP16 and BF16 are raw bits in a Uint16Array, BOOL is 0 or 1 in a Uint8Array. */
export type NumberArray =
  | Uint8Array
  | Uint8ClampedArray
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Float32Array
  | Float64Array;

export type TensorData = NumberArray | (string | Uint8Array)[];

/** Values with a shape and a datatype. */
export class Tensor<Data extends TensorData = TensorData> {
  /**
   * @param shape lengths of the axes; by default one axis
   * @param datatype needed for BOOL, FP16 and BF16
   * @throws RangeError if the shape needs another number of values
   */
  constructor(data: Data, shape?: readonly number[], datatype?: Datatype);
  readonly data: Data;
  readonly shape: number[];
  readonly datatype: Datatype;
  /** Return the elements of a BYTES tensor as texts. */
  strings(): string[];
}

export interface ClientOptions {
  /** Address of the server; by default http://127.0.0.1:8470. */
  url?: string;
  /** Printed by `pocketserve token`. */
  token?: string;
  /** Milliseconds for each call, from sending to the last byte; by default 60,000. */
  timeout?: number;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Milliseconds for this call. */
  timeout?: number;
  /** Cancels the call, which then throws the signal's reason. */
  signal?: AbortSignal;
  /** Appears in the server's log and in the answer's headers. */
  requestId?: string;
}

export interface VersionOptions extends CallOptions {
  version?: string;
}

export interface RequestOptions extends VersionOptions {
  /** Milliseconds the request may be queued before it fails with DEADLINE_EXCEEDED. */
  wait?: number;
  /** 1 goes first; 6 and above is background work. */
  priority?: number;
  /** Name of a camera or the like, of which only the newest request matters. */
  stream?: string;
  /** More parameters, of the task or the protocol. */
  parameters?: Record<string, string | number | boolean>;
}

export interface PredictOptions extends RequestOptions {
  topK?: number;
  threshold?: number;
  annotate?: "png" | "jpeg" | "both";
  contentType?: string;
}

export interface InferOptions extends RequestOptions {
  /** Names of the outputs to return; by default all. */
  outputs?: string[];
  id?: string;
}

export type RawInput = Blob | ArrayBuffer | ArrayBufferView | string | number | object;

/** One entry of an answer; the task says which keys it has (docs/tasks.md). */
export interface Prediction {
  label?: string;
  score?: number;
  [key: string]: unknown;
}

export interface LabelledAnswer {
  model: string;
  version: string;
  task: string;
  predictions: Prediction[];
  timing_ms: Record<string, number>;
  /** What the server assumed about the input, such as "pixels 0..1". */
  assumed?: string[];
  /** With `annotate: "both"`: the drawn picture, a PNG in base64. */
  picture?: string;
}

export interface InferAnswer {
  model: string;
  version: string;
  id?: string;
  parameters?: Record<string, unknown>;
  outputs: Record<string, Tensor>;
}

export interface IndexEntry {
  name: string;
  version: string;
  state: string;
  reason: string;
  [key: string]: unknown;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content?: string | null;
  [key: string]: unknown;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON text as the model wrote it. */
  arguments: string;
}

export interface RerankResult {
  index: number;
  relevance_score: number;
  [key: string]: unknown;
}

/** The answer of a language model, piece by piece. Leaving the loop early stops the model. */
export class Chat implements AsyncIterable<string> {
  private constructor();
  readonly finishReason: string | null;
  readonly usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null;
  readonly toolCalls: ToolCall[];
  [Symbol.asyncIterator](): AsyncIterator<string>;
  /** Return the rest of the answer. */
  text(): Promise<string>;
  /** End the answer; the model stops. */
  close(): Promise<void>;
}

/** A piece of a transcript, with times in seconds. */
export interface SpeechSegment {
  text: string;
  start: number;
  end: number;
}

export interface TranscribeOptions extends CallOptions {
  /** Of the speech; by default a multilingual model detects it. */
  language?: string;
  /** Names and words that guide the spelling. */
  prompt?: string;
  temperature?: number;
  /** Translate into English. */
  translate?: boolean;
}

/** A transcript, segment by segment. Leaving the loop early stops the model. */
export class Transcript implements AsyncIterable<SpeechSegment> {
  private constructor();
  readonly language: string | null;
  readonly duration: number | null;
  [Symbol.asyncIterator](): AsyncIterator<SpeechSegment>;
  /** Return the rest of the text. */
  text(): Promise<string>;
  /** End the answer; the model stops. */
  close(): Promise<void>;
}

/** Steps of a stateful model, one after the other. */
export class Sequence {
  private constructor();
  readonly id: number | string;
  predict(data: RawInput, options?: PredictOptions): Promise<LabelledAnswer>;
  infer(inputs: Record<string, Tensor | NumberArray>, options?: InferOptions): Promise<InferAnswer>;
  close(): Promise<void>;
}

/** Sends requests to a Pocketserve server. */
export class Client {
  constructor(options?: ClientOptions);
  isReady(options?: CallOptions): Promise<boolean>;
  isModelReady(model: string, options?: VersionOptions): Promise<boolean>;
  serverMetadata(options?: CallOptions): Promise<Record<string, unknown>>;
  models(options?: CallOptions): Promise<string[]>;
  index(options?: CallOptions): Promise<IndexEntry[]>;
  modelMetadata(model: string, options?: VersionOptions): Promise<Record<string, unknown>>;
  load(model: string, options?: CallOptions): Promise<void>;
  unload(model: string, options?: CallOptions): Promise<void>;
  /** Run a model on raw input, and return the picture with the answer drawn on it. */
  predict(model: string, data: RawInput, options: PredictOptions & { annotate: "png" | "jpeg" }): Promise<Blob>;
  /** Run a model on raw input, and return a labelled answer. */
  predict(
    model: string,
    data: RawInput,
    options?: PredictOptions & { annotate?: "both" },
  ): Promise<LabelledAnswer>;
  /** Run a model on tensors. */
  infer(
    model: string,
    inputs: Record<string, Tensor | NumberArray>,
    options?: InferOptions,
  ): Promise<InferAnswer>;
  sequence(model: string, options?: { id?: number | string; version?: string }): Sequence;
  /**
   * Ask a language model.
   *
   * @param messages a question, or a conversation
   * @param fields of OpenAI's chat completions, such as `temperature`
   */
  chat(
    model: string,
    messages: string | Message[],
    fields?: Record<string, unknown>,
    options?: CallOptions,
  ): Chat;
  /** Write down the speech in a sound. */
  transcribe(model: string, sound: Blob | ArrayBuffer | ArrayBufferView, options?: TranscribeOptions): Transcript;
  /** Return the vector of each text. */
  embed(model: string, texts: string | string[], options?: CallOptions): Promise<Float32Array[]>;
  /** Return documents by their relevance to a query, best first. */
  rerank(
    model: string,
    query: string,
    documents: (string | { text: string })[],
    options?: CallOptions & { topN?: number },
  ): Promise<RerankResult[]>;
}

/** Options of the calls of a generated class, which is bound to a model and its version. */
export type ServedPredictOptions = Omit<PredictOptions, "annotate" | "contentType" | "version">;
export type ServedInferOptions = Omit<InferOptions, "outputs" | "version">;

/** A place on a picture, in pixels. */
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A labelled answer whose entries have the types of a generated class. */
export interface TypedAnswer<Entry> extends Omit<LabelledAnswer, "predictions"> {
  predictions: Entry[];
}

/** The model behind a class that `pocketserve codegen --language typescript` wrote. */
export class ServedModel {
  constructor(
    client: Client,
    facts: { model: string; version?: string; fingerprint: string; command: string },
  );
  /** Compare the model's fingerprint now; throw a ModelChangedError if it differs. */
  check(options?: CallOptions): Promise<void>;
  predict<Entry>(data: RawInput, defaults: Partial<Entry>, options?: ServedPredictOptions): Promise<TypedAnswer<Entry>>;
  infer(
    inputs: Record<string, Tensor | NumberArray>,
    names: readonly string[],
    options?: ServedInferOptions,
  ): Promise<InferAnswer>;
}

/** Base of all errors of this package. */
export class PocketserveError extends Error {}

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
  /** HTTP status, or 500 for an error within a stream. */
  readonly status: number;
  /** Stable code such as MODEL_NOT_FOUND; empty if another program answered. */
  readonly code: string;
  /** Milliseconds to wait before trying again. */
  readonly retryAfter?: number;
  /** Whether the same request may succeed later. */
  readonly isRetryable: boolean;
}
