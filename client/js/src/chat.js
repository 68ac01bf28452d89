import { StreamedAnswer } from "./streamed.js";

/**
 * The answer of a language model, piece by piece: iterate with `for await`.
 *
 * Ending the loop early, or calling `close`, stops the model.
 */
export class Chat extends StreamedAnswer {
  /** Why the answer ended: "stop", "length" or "tool_calls"; null before. */
  finishReason = null;
  /** Counts of tokens, once the answer has ended. */
  usage = null;
  /** Calls of tools so far: `{id, name, arguments}`, the arguments as JSON text. */
  toolCalls = [];

  /** Return the rest of the answer. */
  async text() {
    let text = "";
    for await (const piece of this) {
      text += piece;
    }
    return text;
  }

  *piecesOf(event) {
    this.usage = event.usage ?? this.usage;
    for (const choice of event.choices ?? []) {
      this.finishReason = choice.finish_reason ?? this.finishReason;
      for (const call of choice.delta?.tool_calls ?? []) {
        this.#addToolCall(call);
      }
      const text = choice.delta?.content;
      if (text) {
        yield text;
      }
    }
  }

  #addToolCall({ index, id, function: called }) {
    this.toolCalls[index] ??= { id: "", name: "", arguments: "" };
    const call = this.toolCalls[index];
    call.id ||= id ?? "";
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }
}
