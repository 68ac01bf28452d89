import { joined } from "./bytes.js";
import { ProtocolError } from "./errors.js";
import { StreamedAnswer } from "./streamed.js";

const CRLF = "\r\n";

/** The segments of a transcript as they come: `{text, start, end}`, with times in seconds. */
export class Transcript extends StreamedAnswer {
  /** Code of the language, once the answer has ended. */
  language = null;
  /** Seconds of the sound, once the answer has ended. */
  duration = null;

  /** Return the rest of the text. */
  async text() {
    let text = "";
    for await (const segment of this) {
      text += segment.text;
    }
    return text;
  }

  *piecesOf({ type, delta, start, end, language, duration }) {
    if (type === "transcript.text.done") {
      this.language = language ?? null;
      this.duration = duration ?? null;
    } else if (type === "transcript.text.delta") {
      if (![start, end].every(Number.isFinite)) {
        throw new ProtocolError("the server sent a segment without times");
      }
      yield { text: String(delta), start, end };
    }
  }
}

/**
 * Return fields and a sound as a form.
 *
 * React Native accepts bytes neither in a FormData nor in a Blob, so they stay bytes.
 */
export function soundForm(fields, sound) {
  // crypto needs a secure page, and React Native has none.
  const boundary = `sound${Math.random()}${Math.random()}`;
  let head = "";
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null) {
      head += `--${boundary}${CRLF}Content-Disposition: form-data; name="${name}"${CRLF + CRLF}${value}${CRLF}`;
    }
  }
  head += `--${boundary}${CRLF}Content-Disposition: form-data; name="file"; filename="sound"${CRLF}`;
  head += `Content-Type: application/octet-stream${CRLF + CRLF}`;
  const tail = `${CRLF}--${boundary}--${CRLF}`;
  const body = sound instanceof Blob ? new Blob([head, sound, tail]) : joined(asBytes(head, sound, tail));
  return { body, type: `multipart/form-data; boundary=${boundary}` };
}

function asBytes(head, sound, tail) {
  const encoder = new TextEncoder();
  const { buffer, byteOffset, byteLength } = ArrayBuffer.isView(sound) ? sound : new Uint8Array(sound);
  return [encoder.encode(head), new Uint8Array(buffer, byteOffset, byteLength), encoder.encode(tail)];
}
