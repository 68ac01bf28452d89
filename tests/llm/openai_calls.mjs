// Make each call of OpenAI's own JavaScript client; print the names of those that got
// the expected answer, or the error.
// Usage: node openai_calls.mjs FOLDER URL TOKEN

import { createRequire } from "node:module";
import assert from "node:assert/strict";

const [folder, url, token] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];
const request = { model: "tiny", messages, max_tokens: 8, temperature: 0 };
const parameters = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

const calls = {
  async list() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert(names.includes("tiny"));
  },
  async retrieve() {
    assert.equal((await client.models.retrieve("tiny")).id, "tiny");
  },
  async chat() {
    const answer = await client.chat.completions.create(request);
    assert(answer.choices[0].message.content);
    assert.equal(answer.usage.completion_tokens, 8);
  },
  async stream() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert(text);
  },
  async abort() {
    const stream = await client.chat.completions.create({ ...request, max_tokens: 400, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) break;
    }
    assert(stream.controller.signal.aborted);
  },
  async helper() {
    const stopping = { ...request, model: "speller", max_tokens: 100 };
    const answer = await client.chat.completions.stream(stopping).finalChatCompletion();
    assert.equal(answer.choices[0].message.content, "café noir!");
  },
  async tools() {
    const answer = await client.chat.completions.create({
      ...request, model: "caller", max_tokens: 200, tools, tool_choice: "required",
    });
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "get_weather");
    assert(["Oslo", "Rome"].includes(JSON.parse(call.function.arguments).city));
  },
  async response() {
    const asked = { model: "speller", input: "Hello" };
    assert.equal((await client.responses.create(asked)).output_text, "café noir!");
    let text = "";
    for await (const event of await client.responses.create({ ...asked, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, "café noir!");
    const helper = client.responses.stream(asked);
    assert.equal((await helper.finalResponse()).output_text, "café noir!");
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: "embedder", input: ["a", "b"] });
    assert.deepEqual(answer.data.map((entry) => entry.embedding.length), [64, 64]);
  },
  async error() {
    await assert.rejects(
      client.chat.completions.create({ ...request, temperature: 3 }),
      (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
    );
  },
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    await call();
    results[name] = "";
  } catch (error) {
    results[name] = String(error?.stack ?? error);
  }
}
console.log(JSON.stringify(results));
