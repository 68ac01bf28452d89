/** Compiled, never run: what a user of the types may and may not write. */
import { Client, PocketserveError, ServerError, Tensor, type LabelledAnswer } from "pocketserve";

export async function use(file: File, signal: AbortSignal): Promise<string> {
  const client = new Client({ url: "http://127.0.0.1:8470", token: "secret", timeout: 5000 });
  const answer: LabelledAnswer = await client.predict("digits", file, { topK: 3, signal });
  const picture: Blob = await client.predict("digits", file, { annotate: "png" });
  const label: string | undefined = answer.predictions[0]?.label;
  const { outputs } = await client.infer("m", { x: new Tensor(new Float32Array(4), [2, 2]) });
  const shape: number[] | undefined = outputs["y"]?.shape;
  let text = `${label} ${picture.size} ${shape}`;
  const chat = client.chat("m", [{ role: "user", content: "Hello" }], { temperature: 0 });
  for await (const piece of chat) {
    text += piece.toUpperCase();
  }
  const transcript = client.transcribe("m", file, { language: "de", signal });
  for await (const segment of transcript) {
    text += `${segment.start.toFixed(2)} ${segment.text.trim()} ${transcript.language}`;
  }
  try {
    await client.sequence("m").predict([1, 2]);
  } catch (error) {
    if (error instanceof ServerError && error.isRetryable) {
      text += error.retryAfter?.toFixed(0) ?? error.code;
    } else if (!(error instanceof PocketserveError)) {
      throw error;
    }
  }
  // @ts-expect-error: a misspelt option
  await client.predict("digits", file, { topk: 3 });
  // @ts-expect-error: a misspelt key
  answer.predictons;
  // @ts-expect-error: no such drawing
  await client.predict("digits", file, { annotate: "gif" });
  // @ts-expect-error: nested lists are no tensors
  await client.infer("m", { x: [[1, 2]] });
  return text;
}
