import { ProtocolError } from "./errors.js";

/** Array type of each datatype of the Open Inference Protocol; BYTES is apart. */
const ARRAYS = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP16: Uint16Array,
  BF16: Uint16Array,
  FP32: Float32Array,
  FP64: Float64Array,
};

const DATATYPES = new Map([
  [Uint8Array, "UINT8"],
  [Uint8ClampedArray, "UINT8"],
  [Uint16Array, "UINT16"],
  [Uint32Array, "UINT32"],
  [BigUint64Array, "UINT64"],
  [Int8Array, "INT8"],
  [Int16Array, "INT16"],
  [Int32Array, "INT32"],
  [BigInt64Array, "INT64"],
  [Float32Array, "FP32"],
  [Float64Array, "FP64"],
]);

const LENGTH_BYTES = 4;

/** Values with a shape and a datatype. */
export class Tensor {
  /**
   * @param data a typed array, or a list of strings or Uint8Arrays (BYTES)
   * @param {number[]} [shape] lengths of the axes; by default one axis
   * @param {string} [datatype] needed for BOOL, FP16 and BF16, whose arrays hold raw bits
   */
  constructor(data, shape = [data.length], datatype = datatypeOf(data)) {
    const count = shape.reduce((product, length) => product * length, 1);
    if (count !== data.length) {
      throw new RangeError(`the shape [${shape}] needs ${count} values, not ${data.length}`);
    }
    if (datatype !== "BYTES" && data.BYTES_PER_ELEMENT !== ARRAYS[datatype]?.BYTES_PER_ELEMENT) {
      throw new TypeError(`${datatype} cannot be made of ${data.constructor.name}`);
    }
    this.data = data;
    this.shape = [...shape];
    this.datatype = datatype;
  }

  /** Return the elements of a BYTES tensor as texts. */
  strings() {
    if (this.datatype !== "BYTES") {
      throw new TypeError(`a tensor of ${this.datatype} has no texts`);
    }
    const decoder = new TextDecoder();
    return Array.from(this.data, (item) => (typeof item === "string" ? item : decoder.decode(item)));
  }
}

function datatypeOf(data) {
  if (Array.isArray(data)) {
    const isBytes = data.every((item) => typeof item === "string" || item instanceof Uint8Array);
    if (isBytes) {
      return "BYTES";
    }
  }
  for (const [array, datatype] of DATATYPES) {
    if (data instanceof array) {
      return datatype;
    }
  }
  throw new TypeError("a tensor needs a typed array such as Float32Array, or a list of texts");
}

/** Return the values as the protocol's little-endian bytes. */
export function encode(tensor) {
  const { data } = tensor;
  if (tensor.datatype !== "BYTES") {
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  }
  const encoder = new TextEncoder();
  const items = Array.from(data, (item) => (typeof item === "string" ? encoder.encode(item) : item));
  const total = items.reduce((sum, item) => sum + LENGTH_BYTES + item.length, 0);
  const bytes = new Uint8Array(total);
  const view = new DataView(bytes.buffer);
  let offset = 0;
  for (const item of items) {
    view.setUint32(offset, item.length, true);
    bytes.set(item, offset + LENGTH_BYTES);
    offset += LENGTH_BYTES + item.length;
  }
  return bytes;
}

/**
 * Read a tensor from the bytes of an answer.
 *
 * @param {Uint8Array} bytes exactly the bytes of this tensor
 */
export function decode(bytes, datatype, shape) {
  if (datatype === "BYTES") {
    return new Tensor(decodeItems(bytes), shape, datatype);
  }
  const Values = ARRAYS[datatype];
  if (Values === undefined || bytes.length % Values.BYTES_PER_ELEMENT !== 0) {
    throw new ProtocolError(`the answer has ${bytes.length} bytes of ${datatype}`);
  }
  const aligned = bytes.slice();
  return checked(new Values(aligned.buffer), shape, datatype);
}

/** Read a tensor from the JSON of an answer. */
export function fromJson(values, datatype, shape) {
  const flat = Array.isArray(values) ? values.flat(Infinity) : [values];
  if (datatype === "BYTES") {
    return checked(flat.map(String), shape, datatype);
  }
  const Values = ARRAYS[datatype];
  if (Values === undefined) {
    throw new ProtocolError(`the answer has the unknown datatype ${datatype}`);
  }
  const isBig = datatype === "INT64" || datatype === "UINT64";
  return checked(Values.from(isBig ? flat.map(BigInt) : flat), shape, datatype);
}

function checked(data, shape, datatype) {
  try {
    return new Tensor(data, shape, datatype);
  } catch (cause) {
    throw new ProtocolError(`the answer has a wrong tensor: ${cause.message}`, { cause });
  }
}

function decodeItems(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const items = [];
  let offset = 0;
  while (offset < bytes.length) {
    const begin = offset + LENGTH_BYTES;
    const end = begin <= bytes.length ? begin + view.getUint32(offset, true) : Infinity;
    if (end > bytes.length) {
      throw new ProtocolError("the answer has an element that is longer than the answer");
    }
    items.push(bytes.slice(begin, end));
    offset = end;
  }
  return items;
}
