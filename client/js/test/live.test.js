/** Against a running server: POCKETSERVE_URL, POCKETSERVE_TOKEN, SAMPLES (a folder). */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import {
  Client, ModelChangedError, ProtocolError, ServedModel, ServerError, Tensor, TimeoutError, UnreachableError,
} from "pocketserve";
import { failure } from "./failure.js";

const { POCKETSERVE_URL: url, POCKETSERVE_TOKEN: token, SAMPLES: samples } = process.env;
const client = new Client({ url, token });
const seven = await readFile(join(samples, "7.png"));

test("the server and its models", async () => {
  assert.equal(await client.isReady(), true);
  assert.equal(await client.isModelReady("digits"), true);
  assert.equal(await client.isModelReady("missing"), false);
  assert.equal((await client.serverMetadata()).name, "pocketserve");
  assert.deepEqual((await client.models()).sort(), ["digits", "petals", "reranker", "sum"]);
  const metadata = await client.modelMetadata("digits");
  assert.equal(metadata.name, "digits");
});

test("a picture from bytes, a view of bytes and a Blob", async () => {
  const bytes = seven.buffer.slice(seven.byteOffset, seven.byteOffset + seven.length);
  for (const data of [seven, bytes, new Blob([seven]), new Blob([seven], { type: "image/png" })]) {
    const answer = await client.predict("digits", data, { topK: 1 });
    assert.equal(answer.predictions.length, 1);
    assert.equal(answer.predictions[0].label, "7");
  }
});

test("a row, rows and features by name", async () => {
  const row = await client.predict("petals", [5.1, 3.5, 1.4]);
  const rows = await client.predict("petals", [[5.1, 3.5, 1.4], [6.2, 2.9, 4.3]]);
  const names = { sepal_length: 5.1, sepal_width: 3.5, petal_length: 1.4 };
  const named = await client.predict("petals", names);
  assert.equal(rows.predictions.length, 2);
  assert.deepEqual(named.predictions, row.predictions);
});

test("a text", async () => {
  const refused = await failure(client.predict("digits", "no picture"));
  assert.equal(refused.code, "INVALID_INPUT");
});

test("a picture with the answer drawn on it", async () => {
  const picture = await client.predict("digits", seven, { annotate: "png" });
  assert.equal(picture.type, "image/png");
  const both = await client.predict("digits", seven, { annotate: "both", topK: 1 });
  assert.equal(both.predictions[0].label, "7");
  assert.equal(typeof both.picture, "string");
});

test("parameters that the server does not know are refused", async () => {
  const refused = await failure(client.predict("digits", seven, { parameters: { topk: 1 } }));
  assert.equal(refused.code, "INVALID_PARAMETER");
});

test("data that JSON cannot express is refused before it is sent", async () => {
  assert.ok((await failure(client.predict("petals", undefined))) instanceof TypeError);
});

test("tensors in and out", async () => {
  const metadata = await client.modelMetadata("digits");
  const [input] = metadata.inputs;
  const shape = [1, ...input.shape.slice(1)];
  const count = shape.reduce((product, length) => product * length, 1);
  const values = new Float32Array(count);
  const answer = await client.infer("digits", { [input.name]: new Tensor(values, shape) }, { id: "a" });
  assert.equal(answer.model, "digits");
  assert.equal(answer.id, "a");
  const [output] = Object.values(answer.outputs);
  assert.ok(output.data instanceof Float32Array);
  assert.deepEqual(output.shape, [1, 10]);
});

test("a typed array stands for one axis", async () => {
  const refused = await failure(client.infer("sum", { x: new Float32Array([1, 2]) }));
  assert.equal(refused.code, "INVALID_TENSOR");
});

test("chosen outputs", async () => {
  const inputs = { x: new Tensor(new Float32Array([1, 2]), [1, 2]) };
  const parameters = { sequence_id: 1, sequence_start: true, sequence_end: true };
  const { outputs } = await client.infer("sum", inputs, { outputs: ["y"], parameters });
  assert.deepEqual(Object.keys(outputs), ["y"]);
  const refused = await failure(client.infer("sum", inputs, { outputs: ["z"], parameters }));
  assert.ok(refused instanceof ServerError);
});

test("steps of a sequence share their state", async () => {
  const first = client.sequence("sum");
  const second = client.sequence("sum");
  const step = async (sequence, value) => {
    const { outputs } = await sequence.infer({ x: new Tensor(new Float32Array([value, 0]), [1, 2]) });
    return outputs.y.data[0];
  };
  assert.equal(await step(first, 1), 1);
  assert.equal(await step(second, 10), 10);
  assert.equal(await step(first, 2), 3);
  await first.close();
  await first.close();
  await second.close();
  assert.equal(await step(first, 5), 5);
  await first.close();
});

test("documents by relevance", async () => {
  const results = await client.rerank("reranker", "good", ["bad", "bad bad bad", "bad bad"], { topN: 2 });
  assert.deepEqual(results.map((result) => result.index), [1, 2]);
});

test("a model can be unloaded and loaded", async () => {
  await client.unload("petals");
  assert.equal(await client.isModelReady("petals"), false);
  await client.load("petals");
  assert.equal(await client.isModelReady("petals"), true);
});

test("errors of the server", async () => {
  const missing = await failure(client.predict("missing", [1]));
  assert.ok(missing instanceof ServerError);
  assert.equal(missing.name, "ServerError");
  assert.equal(missing.status, 404);
  assert.equal(missing.code, "MODEL_NOT_FOUND");
  assert.equal(missing.isRetryable, false);
  const version = await failure(client.predict("digits", seven, { version: "99" }));
  assert.equal(version.code, "VERSION_NOT_FOUND");
});

test("an error in OpenAI's form", async () => {
  const missing = await failure(client.chat("missing", "Hello").text());
  assert.ok(missing instanceof ServerError);
  assert.equal(missing.status, 404);
  assert.notEqual(missing.message, "");
});

test("no token", async () => {
  const stranger = new Client({ url });
  const refused = await failure(stranger.predict("petals", [5.1, 3.5, 1.4]));
  assert.equal(refused.code, "UNAUTHORIZED");
  assert.equal(await stranger.isReady(), true);
});

test("the caller's signal ends a call with its reason", async () => {
  const reason = new Error("no longer needed");
  assert.equal(await failure(client.predict("digits", seven, { signal: AbortSignal.abort(reason) })), reason);
  const controller = new AbortController();
  const call = client.predict("digits", seven, { signal: controller.signal });
  controller.abort(reason);
  assert.equal(await failure(call), reason);
});

test("names are escaped", async () => {
  const missing = await failure(client.predict("a/../b?c#d", [1]));
  assert.ok(missing instanceof ServerError);
  assert.equal(missing.status, 404);
});

test("many calls at once", async () => {
  const calls = Array.from({ length: 50 }, () => client.predict("digits", seven, { topK: 1 }));
  for (const answer of await Promise.all(calls)) {
    assert.equal(answer.predictions[0].label, "7");
  }
});

test("a request id appears in the answer's headers", async () => {
  let seen;
  const watching = async (...args) => {
    const response = await fetch(...args);
    seen = response.headers.get("X-Request-Id");
    return response;
  };
  const watched = new Client({ url, token, fetch: watching });
  await watched.predict("petals", [5.1, 3.5, 1.4], { requestId: "from-a-test" });
  assert.equal(seen, "from-a-test");
});

test("the errors have one base", () => {
  for (const kind of [ProtocolError, ServerError, TimeoutError, UnreachableError]) {
    assert.equal(Object.getPrototypeOf(kind).name, "PocketserveError");
  }
});

test("the model of a generated class", async () => {
  const { parameters } = await client.modelMetadata("petals");
  const facts = { model: "petals", fingerprint: parameters.fingerprint, command: "pocketserve codegen petals" };
  const served = new ServedModel(client, facts);
  const { predictions } = await served.predict([[5.1, 3.5, 1.4]], { row: 7, value: NaN });
  assert.equal(predictions[0].row, 7); // the only row has no number
  assert.equal(predictions[0].value.toFixed(1), "0.2");
  const [input] = (await client.modelMetadata("petals")).inputs;
  const inputs = { [input.name]: new Tensor(new Float32Array([5.1, 3.5, 1.4]), [1, 3]) };
  const changed = await failure(served.infer(inputs, ["length"]));
  assert.ok(changed instanceof ModelChangedError);
  assert.match(changed.message, /answered no output length; generate the class again: pocketserve codegen petals/);
});

test("a class that was generated from another model", async () => {
  const facts = { model: "digits", version: "onnx", fingerprint: "0".repeat(32), command: "pocketserve codegen digits" };
  const served = new ServedModel(client, facts);
  const changed = await failure(served.predict(seven, {}));
  assert.ok(changed instanceof ModelChangedError);
  const missing = new ServedModel(client, { ...facts, model: "missing" });
  assert.equal((await failure(missing.predict(seven, {}))).code, "MODEL_NOT_FOUND");
});
