/** Against servers that are slow, broken or not ours. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";

import { Client, ProtocolError, ServedModel, ServerError, Tensor, TimeoutError, UnreachableError } from "pocketserve";
import { failure } from "./failure.js";

const servers = [];
after(() => {
  for (const server of servers) {
    server.closeAllConnections();
    server.close();
  }
});

/** Start a server that answers every request with a function; return a client of it. */
async function clientOf(answer, options) {
  const server = createServer(answer);
  servers.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return new Client({ url: `http://127.0.0.1:${server.address().port}/`, ...options });
}

function respond(body, headers = {}, status = 200) {
  return (request, response) => {
    response.writeHead(status, headers);
    response.end(body);
  };
}

/** Answer with events; the connection ends after them. */
function stream(...events) {
  const body = events.map((event) => `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`);
  return respond(`: prompt 1/2\n\n${body.join("")}`, { "Content-Type": "text/event-stream" });
}

function piece(content, more = {}) {
  return { choices: [{ index: 0, delta: { content }, ...more }] };
}

test("nobody listens", async () => {
  const client = await clientOf(respond("{}"));
  servers.pop().close();
  assert.ok((await failure(client.models())) instanceof UnreachableError);
});

test("a server that says nothing", async () => {
  const client = await clientOf(() => {}, { timeout: 50 });
  const late = await failure(client.models());
  assert.ok(late instanceof TimeoutError);
  assert.match(late.message, /within 50 ms/);
});

test("a server that stops in the middle of an answer", async () => {
  const client = await clientOf((request, response) => {
    response.writeHead(200, { "Content-Length": "100" });
    response.write("[");
  });
  assert.ok((await failure(client.index({ timeout: 50 }))) instanceof TimeoutError);
});

test("a connection that breaks in the middle of an answer", async () => {
  const client = await clientOf((request, response) => {
    response.writeHead(200, { "Content-Length": "100" });
    response.write("[", () => response.destroy());
  });
  assert.ok((await failure(client.index())) instanceof UnreachableError);
});

test("an answer that is not JSON", async () => {
  const client = await clientOf(respond("<html>"));
  assert.ok((await failure(client.models())) instanceof ProtocolError);
  const refusing = await clientOf(respond("<html>", {}, 502));
  const refused = await failure(refusing.models());
  assert.ok(refused instanceof ServerError);
  assert.deepEqual([refused.status, refused.code, refused.isRetryable], [502, "", false]);
});

test("redirects are not followed", async () => {
  const client = await clientOf(respond("", { Location: "http://127.0.0.1:1/" }, 302));
  assert.ok((await failure(client.models())) instanceof UnreachableError);
});

test("a full queue says when to try again", async () => {
  const body = JSON.stringify({ error: "the queue is full", code: "QUEUE_FULL" });
  const client = await clientOf(respond(body, { "Retry-After": "2" }, 429));
  const busy = await failure(client.predict("m", [1]));
  assert.deepEqual([busy.isRetryable, busy.retryAfter, busy.message], [true, 2000, "the queue is full"]);
});

test("tensors that do not fit their bytes", async () => {
  const answer = (size, datatype = "FP32", shape = [1]) => {
    const parameters = { binary_data_size: size };
    const head = JSON.stringify({ outputs: [{ name: "y", datatype, shape, parameters }] });
    return respond(`${head}1234`, { "Inference-Header-Content-Length": String(head.length) });
  };
  for (const args of [[8], [-1], [4, "FP32", [2]], [4, "FP99"], [3], [4, "BYTES"]]) {
    const client = await clientOf(answer(...args));
    assert.ok((await failure(client.infer("m", {}))) instanceof ProtocolError, JSON.stringify(args));
  }
});

test("tensors of every datatype", async () => {
  const echo = (request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      const body = Buffer.concat(parts);
      const length = Number(request.headers["inference-header-content-length"]);
      const { inputs } = JSON.parse(body.subarray(0, length));
      const head = JSON.stringify({ model_name: "m", outputs: inputs });
      response.writeHead(200, { "Inference-Header-Content-Length": String(head.length) });
      response.end(Buffer.concat([Buffer.from(head), body.subarray(length)]));
    });
  };
  const client = await clientOf(echo);
  const inputs = {
    bytes: new Tensor(["ä", new Uint8Array([0, 255]), ""], [3, 1]),
    yes: new Tensor(new Uint8Array([1, 0]), [2], "BOOL"),
    half: new Tensor(new Uint16Array([0x3c00]), [1], "FP16"),
    big: new Tensor(new BigInt64Array([-(2n ** 63n)])),
    double: new Tensor(new Float64Array([0.1, NaN]), [1, 2]),
    none: new Tensor(new Float32Array(0), [0, 4]),
    view: new Tensor(new Int16Array([1, 2, 3]).subarray(1)),
  };
  const { outputs } = await client.infer("m", inputs);
  for (const name of Object.keys(inputs).slice(1)) {
    assert.deepEqual(outputs[name].data, inputs[name].data, name);
    assert.deepEqual(outputs[name].shape, inputs[name].shape, name);
    assert.equal(outputs[name].datatype, inputs[name].datatype, name);
  }
  assert.deepEqual(outputs.bytes.strings().slice(0, 1), ["ä"]);
  assert.deepEqual([...outputs.bytes.data[1]], [0, 255]);
});

test("an answer with JSON tensors", async () => {
  const outputs = [
    { name: "a", datatype: "INT64", shape: [2], data: [1, 2] },
    { name: "b", datatype: "FP32", shape: [1, 2], data: [[0.5, 1.5]] },
    { name: "c", datatype: "BYTES", shape: [1], data: ["x"] },
  ];
  const client = await clientOf(respond(JSON.stringify({ model_name: "m", outputs })));
  const answer = await client.infer("m", {});
  assert.deepEqual(answer.outputs.a.data, new BigInt64Array([1n, 2n]));
  assert.deepEqual(answer.outputs.b.data, new Float32Array([0.5, 1.5]));
  assert.deepEqual(answer.outputs.c.strings(), ["x"]);
});

test("tensors that cannot be made", () => {
  assert.throws(() => new Tensor(new Float32Array(3), [2]), RangeError);
  assert.throws(() => new Tensor(new Float32Array(2), [2], "INT64"), TypeError);
  assert.throws(() => new Tensor([1, 2]), TypeError);
  assert.throws(() => new Tensor(new Float32Array(1)).strings(), TypeError);
});

test("settings that cannot work", () => {
  assert.throws(() => new Client({ url: "ftp://127.0.0.1" }), TypeError);
  for (const timeout of [0, -1, NaN, Infinity]) {
    assert.throws(() => new Client({ timeout }), RangeError);
  }
});

test("a chat arrives piece by piece", async () => {
  const usage = { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 };
  const last = piece(undefined, { finish_reason: "stop" });
  const client = await clientOf(stream(piece("Hel"), piece("lö"), last, { choices: [], usage }, "[DONE]"));
  const chat = client.chat("m", "Hello");
  const pieces = [];
  for await (const text of chat) {
    pieces.push(text);
  }
  assert.deepEqual(pieces, ["Hel", "lö"]);
  assert.equal(chat.finishReason, "stop");
  assert.deepEqual(chat.usage, usage);
});

test("characters that are cut by the network stay whole", async () => {
  const body = Buffer.from(`data: ${JSON.stringify(piece("日本"))}\n\ndata: [DONE]\n\n`);
  const client = await clientOf(async (request, response) => {
    response.writeHead(200);
    for (const byte of body) {
      await new Promise((resolve) => response.write(Buffer.from([byte]), resolve));
    }
    response.end();
  });
  assert.equal(await client.chat("m", "Hello").text(), "日本");
});

test("calls of tools are put together", async () => {
  const calls = (...parts) => ({ choices: [{ delta: { tool_calls: parts } }] });
  const client = await clientOf(
    stream(
      calls({ index: 0, id: "1", function: { name: "torch", arguments: "" } }),
      calls({ index: 0, function: { arguments: '{"on":' } }),
      calls({ index: 0, function: { arguments: "true}" } }),
      { choices: [{ delta: {}, finish_reason: "tool_calls" }] },
      "[DONE]",
    ),
  );
  const chat = client.chat("m", "Light!");
  assert.equal(await chat.text(), "");
  assert.deepEqual(chat.toolCalls, [{ id: "1", name: "torch", arguments: '{"on":true}' }]);
  assert.equal(chat.finishReason, "tool_calls");
});

test("a chat that is cut off is an error", async () => {
  const client = await clientOf(stream(piece("Hel")));
  assert.ok((await failure(client.chat("m", "Hello").text())) instanceof ProtocolError);
});

test("an error in the middle of a chat", async () => {
  const client = await clientOf(stream(piece("Hel"), { error: { message: "the engine died", code: "inference_failed" } }));
  const chat = client.chat("m", "Hello");
  const error = await failure(chat.text());
  assert.deepEqual([error.code, error.message], ["INFERENCE_FAILED", "the engine died"]);
});

test("leaving a chat closes its connection", async () => {
  let closed;
  const isClosed = new Promise((resolve) => {
    closed = resolve;
  });
  const client = await clientOf((request, response) => {
    response.writeHead(200);
    response.write(`data: ${JSON.stringify(piece("Hel"))}\n\n`);
    response.on("close", closed);
  });
  for await (const text of client.chat("m", "Hello")) {
    assert.equal(text, "Hel");
    break;
  }
  await isClosed;
});

test("closing a chat ends the loop that reads it", async () => {
  const client = await clientOf((request, response) => {
    response.writeHead(200);
    response.write(`data: ${JSON.stringify(piece("Hel"))}\n\n`);
  });
  const chat = client.chat("m", "Hello");
  let text = "";
  for await (const part of chat) {
    text += part;
    setImmediate(() => chat.close());
  }
  assert.equal(text, "Hel");
});

const STREAMS = [
  (client, options) => client.chat("m", "Hello", {}, options),
  (client, options) => client.transcribe("m", new Uint8Array(4), options),
];

/** A client of a server that never answers, and promises that a request came and that it was ended. */
async function silentClient() {
  let came;
  let ended;
  const hasCome = new Promise((resolve) => (came = resolve));
  const hasEnded = new Promise((resolve) => (ended = resolve));
  const client = await clientOf((request, response) => {
    response.on("close", ended);
    came();
  });
  return { client, hasCome, hasEnded };
}

test("closing before the first piece ends the request", async () => {
  for (const ask of STREAMS) {
    const { client, hasCome, hasEnded } = await silentClient();
    const answer = ask(client);
    const text = answer.text();
    await hasCome;
    await answer.close();
    await hasEnded;
    assert.equal(await text, "");
  }
});

test("an answer closed before it is read sends nothing", async () => {
  for (const ask of STREAMS) {
    const client = new Client({ fetch: () => assert.fail("a request was sent") });
    const answer = ask(client);
    await answer.close();
    assert.equal(await answer.text(), "");
  }
});

test("the caller's signal ends a stream with its reason", async () => {
  for (const ask of STREAMS) {
    const { client, hasCome, hasEnded } = await silentClient();
    const controller = new AbortController();
    const failed = failure(ask(client, { signal: controller.signal }).text());
    await hasCome;
    controller.abort(new Error("enough"));
    await hasEnded;
    assert.equal((await failed).message, "enough");
    const late = await failure(ask(client, { signal: controller.signal }).text());
    assert.equal(late.message, "enough");
  }
});

test("a fetch without streams reads a chat whole", async () => {
  const body = `data: ${JSON.stringify(piece("Hi"))}\n\ndata: [DONE]\n\n`;
  const headers = new Headers();
  const plain = async () => ({ status: 200, headers, body: null, text: async () => body });
  const client = new Client({ fetch: plain });
  assert.equal(await client.chat("m", "Hello").text(), "Hi");
});

const segments = [
  { type: "transcript.text.delta", delta: "Grüß", start: 0, end: 1.5 },
  { type: "transcript.text.delta", delta: " Gott.", start: 1.5, end: 2.25 },
];

test("a transcript arrives segment by segment", async () => {
  const done = { type: "transcript.text.done", text: "Grüß Gott.", language: "de", duration: 2.5 };
  let request;
  const respondWith = stream(...segments, done, "[DONE]");
  const client = await clientOf(async (incoming, response) => {
    const chunks = await incoming.toArray();
    request = new Response(Buffer.concat(chunks), { headers: { "Content-Type": incoming.headers["content-type"] } });
    request.path = incoming.url;
    respondWith(incoming, response);
  });
  const sound = new Uint8Array([82, 73, 0, 255, 13, 10]);
  const transcript = client.transcribe("m", sound, { language: "de", prompt: "Gott", translate: true });
  const received = [];
  for await (const segment of transcript) {
    received.push(segment);
  }
  assert.deepEqual(received, segments.map(({ delta: text, start, end }) => ({ text, start, end })));
  assert.deepEqual([transcript.language, transcript.duration], ["de", 2.5]);
  assert.equal(request.path, "/v1/audio/translations");
  const form = await request.formData();
  assert.deepEqual(new Uint8Array(await form.get("file").arrayBuffer()), sound);
  const fields = [...form].filter(([name]) => name !== "file");
  assert.deepEqual(Object.fromEntries(fields), { model: "m", language: "de", prompt: "Gott", stream: "true" });
});

test("damaged transcripts are errors", async () => {
  const damaged = [[segments[0]], [{ type: "transcript.text.delta", delta: "a" }, "[DONE]"]];
  for (const answer of damaged) {
    const client = await clientOf(stream(...answer));
    assert.ok((await failure(client.transcribe("m", new Blob(["sound"])).text())) instanceof ProtocolError);
  }
});

test("a sound that is no sound", () => {
  assert.throws(() => new Client().transcribe("m", "talk.wav"), TypeError);
});

test("vectors are ordered as their texts", async () => {
  const data = [
    { index: 1, embedding: [3, 4] },
    { index: 0, embedding: [1, 2] },
  ];
  const client = await clientOf(respond(JSON.stringify({ data })));
  assert.deepEqual(await client.embed("m", ["a", "b"]), [new Float32Array([1, 2]), new Float32Array([3, 4])]);
});

test("a generated class checks its model once, and again after a failure", async () => {
  const paths = [];
  const client = await clientOf((request, response) => {
    paths.push(request.url);
    const isFirst = paths.length === 1;
    response.writeHead(isFirst ? 503 : 200);
    response.end(JSON.stringify(isFirst ? { error: "loading", code: "MODEL_NOT_READY" }
      : { parameters: { fingerprint: "f" }, predictions: [{ label: "a" }] }));
  });
  const served = new ServedModel(client, { model: "m", fingerprint: "f", command: "c" });
  assert.equal((await failure(served.predict([1], {}))).code, "MODEL_NOT_READY");
  const answer = await served.predict([1], { score: 0 });
  assert.deepEqual(answer.predictions, [{ score: 0, label: "a" }]);
  await served.predict([2], { score: 0 });
  assert.deepEqual(paths, ["/v2/models/m", "/v2/models/m", "/predictions/m", "/predictions/m"]);
});

test("the limits of a generated class's first call hold for its check", async () => {
  const reason = new Error("left the screen");
  const caller = new AbortController();
  const client = await clientOf(() => caller.abort(reason));
  const served = new ServedModel(client, { model: "m", fingerprint: "f", command: "c" });
  assert.equal(await failure(served.predict([1], {}, { signal: caller.signal, timeout: 10_000 })), reason);
  assert.ok((await failure(served.infer({}, [], { timeout: 50 }))) instanceof TimeoutError);
});
