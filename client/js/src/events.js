import { ProtocolError, streamError } from "./errors.js";

const DONE = "[DONE]";

/**
 * Yield the JSON objects of a stream of server-sent events, until `[DONE]`.
 *
 * Source: the HTML standard, section "Server-sent events"; OpenAI's `[DONE]`. A stream that ends
 * without it was cut.
 */
export async function* events(exchange) {
  for await (const line of lines(exchange)) {
    if (!line.startsWith("data:")) {
      continue;
    }
    const data = line.slice("data:".length).trim();
    if (data === DONE) {
      return;
    }
    const event = parse(data);
    if (event.error !== undefined) {
      throw streamError(event.error);
    }
    yield event;
  }
  throw new ProtocolError("the answer ended before it was complete");
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch (cause) {
    throw new ProtocolError("the server sent an event that is not JSON", { cause });
  }
}

async function* lines(exchange) {
  let rest = "";
  for await (const text of texts(exchange)) {
    const parts = (rest + text).split("\n");
    rest = parts.pop();
    yield* parts;
  }
  if (rest !== "") {
    yield rest;
  }
}

/** Yield the body as it arrives; React Native's `fetch` has no streams, so it comes whole there. */
async function* texts(exchange) {
  const reader = exchange.response.body?.getReader?.();
  if (reader === undefined) {
    yield await exchange.wait(exchange.response.text());
    return;
  }
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await exchange.wait(reader.read());
    if (done) {
      yield decoder.decode();
      return;
    }
    yield decoder.decode(value, { stream: true });
  }
}
