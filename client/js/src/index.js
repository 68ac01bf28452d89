export { Client } from "./client.js";
export { Chat } from "./chat.js";
export { Transcript } from "./transcript.js";
export { ServedModel } from "./served.js";
export { Sequence } from "./sequence.js";
export { Tensor } from "./tensors.js";
export {
  ModelChangedError,
  PocketserveError,
  ProtocolError,
  ServerError,
  TimeoutError,
  UnreachableError,
} from "./errors.js";
