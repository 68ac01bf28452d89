// Asks a language model, and reads its answer piece by piece.
import { ask, codeOf, Failure, textOf } from "../server.js";

const LONGEST_MS = 3_600_000; // the server ends an answer long before

/**
 * Ask for an answer to `fields.messages`. `on` has functions that are called as it comes: `piece(text)`,
 * `thought(text)`, `progress(done, count)`, `end(reason)` and `usage(counts)`.
 */
export async function streamChat(fields, signal, on) {
  const body = JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true } });
  const answer = await ask("POST", "/v1/chat/completions", body, { json: true, signal, timeoutMs: LONGEST_MS });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines) take(line.trimEnd(), on);
    }
  } catch (error) {
    throw error instanceof Failure ? error : new Failure(0, signal.aborted ? "LEFT" : "UNREACHABLE", "");
  }
}

function take(line, on) {
  const progress = /^: prompt (\d+)\/(\d+)/.exec(line);
  if (progress) on.progress(Number(progress[1]), Number(progress[2]));
  if (!line.startsWith("data: {")) return;
  const event = JSON.parse(line.slice("data: ".length));
  if (event.error) throw new Failure(event.error.status ?? 500, codeOf(event), textOf(event));
  const choice = event.choices?.[0];
  if (choice?.delta?.reasoning_content) on.thought(choice.delta.reasoning_content);
  if (choice?.delta?.content) on.piece(choice.delta.content);
  if (choice?.finish_reason) on.end(choice.finish_reason);
  if (event.usage) on.usage(event.usage);
}
