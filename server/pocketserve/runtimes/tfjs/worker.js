// Runs TensorFlow.js models for the Python side, which starts this file with Node. See process.py for the protocol.
//
// argv: the node_modules folder, the number of threads, the milliseconds after which an idle process ends itself.
// It reads frames from stdin and writes one answer per frame to stdout; it ends when stdin does.
'use strict';

const fs = require('fs');
const path = require('path');

const [modules, threads, idleMs] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const MAX_FRAME_BYTES = 2 ** 31 - 1;

// stdout belongs to the protocol; libraries talk on stderr.
console.log = console.info = console.debug = console.warn = console.error;

const ARRAYS = {float32: Float32Array, int32: Int32Array, bool: Uint8Array};
const models = new Map();
let tf;
let wasm = false;

async function start() {
  tf = require(path.join(modules, '@tensorflow', 'tfjs'));
  try {
    const backend = require(path.join(modules, '@tensorflow', 'tfjs-backend-wasm'));
    backend.setWasmPaths(path.join(modules, '@tensorflow', 'tfjs-backend-wasm', 'dist') + path.sep);
    backend.setThreadsCount(threads);
    wasm = await tf.setBackend('wasm');
  } catch (error) {
    console.error(String(error));
  }
  if (wasm) correctCast();
  else await tf.setBackend('cpu');
  // A model has no business on the network; this is for code that would try.
  delete globalThis.fetch;
  return {version: tf.version.tfjs || tf.version_core, backend: tf.getBackend()};
}

// The wasm backend of 4.22.0 casts to bool by writing numbers into bytes: 0.96 becomes false, and 256 too. A detector
// of handtrack.js lost 96 of its 100 boxes to that, without any error.
function correctCast() {
  const original = tf.getKernel('Cast', 'wasm');
  tf.unregisterKernel('Cast', 'wasm');
  tf.registerKernel({
    ...original,
    kernelFunc: (args) => {
      const {inputs: {x}, backend, attrs} = args;
      if (attrs.dtype !== 'bool' || x.dtype === 'bool') return original.kernelFunc(args);
      const result = backend.makeOutput(x.shape, 'bool');
      const numbers = backend.typedArrayFromHeap(x);
      backend.typedArrayFromHeap(result).set(numbers.map((number) => (number === 0 ? 0 : 1)));
      return result;
    },
  });
}

function readAll(paths) {
  const sizes = paths.map((name) => fs.statSync(name).size);
  const bytes = new Uint8Array(sizes.reduce((sum, size) => sum + size, 0));
  let at = 0;
  paths.forEach((name, index) => {
    const file = fs.openSync(name, 'r');
    try {
      for (const end = at + sizes[index]; at < end; ) {
        const count = fs.readSync(file, bytes, at, end - at);
        if (count === 0) throw new Error(`${path.basename(name)} became shorter while it was read`);
        at += count;
      }
    } finally {
      fs.closeSync(file);
    }
  });
  return bytes.buffer;
}

async function open({model, file, shards, graph, backend}) {
  if (backend === 'wasm' && !wasm) throw new Error('the wasm backend is not available');
  const chosen = backend || (wasm ? 'wasm' : 'cpu');
  await tf.setBackend(chosen);
  const document = JSON.parse(fs.readFileSync(file, 'utf8'));
  const topology = document.modelTopology;
  const modelTopology = typeof topology === 'string' ? JSON.parse(topology) : topology;
  if (graph) modelTopology.versions ??= {}; // old converters wrote none, and the loader looks into it
  const artifacts = {
    ...document,
    modelTopology,
    weightSpecs: document.weightsManifest.flatMap((group) => group.weights),
    weightData: readAll(shards),
  };
  delete artifacts.weightsManifest;
  // Old files keep the signature among the converter's own notes.
  artifacts.signature ??= document.userDefinedMetadata?.signature;
  const handler = {load: async () => artifacts};
  const loaded = graph ? await tf.loadGraphModel(handler) : await tf.loadLayersModel(handler);
  models.set(model, {loaded, graph, backend: chosen, control: false});
  const outputs = loaded.outputs.map((tensor, index) => ({
    ...described(tensor),
    name: graph ? tensor.name : loaded.outputNames?.[index] ?? tensor.sourceLayer?.name ?? tensor.name,
  }));
  return {inputs: loaded.inputs.map(described), outputs, nodes: graph ? loaded.outputNodes : null, backend: chosen};
}

function described(tensor) {
  return {name: tensor.name, shape: tensor.shape ?? null, dtype: tensor.dtype ?? null};
}

function toTensors(inputs, payload) {
  let at = 0;
  return inputs.map(({dtype, shape, bytes}) => {
    const part = payload.buffer.slice(payload.byteOffset + at, payload.byteOffset + at + bytes);
    at += bytes;
    return tf.tensor(new ARRAYS[dtype](part), shape, dtype);
  });
}

async function compute(entry, inputs) {
  if (!entry.graph) {
    const results = entry.loaded.predictOnBatch(inputs.length === 1 ? inputs[0] : inputs);
    return [].concat(results);
  }
  const named = Object.fromEntries(entry.loaded.inputs.map((node, index) => [node.name, inputs[index]]));
  const fetched = entry.loaded.outputNodes;
  if (!entry.control) {
    try {
      return [].concat(entry.loaded.execute(named, fetched));
    } catch (error) {
      if (!/executeAsync|dynamic op/.test(error.message)) throw error;
      entry.control = true; // it has control flow or outputs whose size depends on values
    }
  }
  return [].concat(await entry.loaded.executeAsync(named, fetched));
}

async function run({model, inputs}, payload) {
  const entry = models.get(model);
  if (!entry) throw new Error('the model is not open');
  await tf.setBackend(entry.backend);
  // One request at a time, so that everything made from here on is this request's.
  tf.engine().startScope();
  try {
    const results = await compute(entry, toTensors(inputs, payload));
    const arrays = [];
    const outputs = [];
    for (const tensor of results) {
      if (!ARRAYS[tensor.dtype]) throw new Error(`an output is of type ${tensor.dtype}, which cannot be served`);
      const data = await tensor.data();
      // The cpu backend may keep whole numbers in a tensor that it calls float32.
      const array = data instanceof ARRAYS[tensor.dtype] ? data : ARRAYS[tensor.dtype].from(data);
      arrays.push(Buffer.from(array.buffer, array.byteOffset, array.byteLength));
      outputs.push({dtype: tensor.dtype, shape: tensor.shape, bytes: array.byteLength});
    }
    return [{outputs}, Buffer.concat(arrays)];
  } finally {
    tf.engine().endScope();
  }
}

function close({model}) {
  models.get(model)?.loaded.dispose();
  models.delete(model);
  return {tensors: tf.memory().numTensors};
}

function reset({model}) {
  models.get(model).loaded.resetStates();
  return {};
}

const OPERATIONS = {start, open, run, reset, close};

async function answer(header, payload) {
  try {
    const result = await OPERATIONS[header.op](header, payload);
    write(...(Array.isArray(result) ? result : [result]));
  } catch (error) {
    const fault = error?.name === 'ValueError' || /\b(shape|dimension|rank|size)/i.test(error?.message ?? '');
    write({error: String(error?.message ?? error).slice(0, 2000), input: header.op === 'run' && fault});
  }
}

function write(header, payload = Buffer.alloc(0)) {
  const text = Buffer.from(JSON.stringify(header));
  const lengths = Buffer.alloc(8);
  lengths.writeUInt32LE(text.length, 0);
  lengths.writeUInt32LE(payload.length, 4);
  process.stdout.write(lengths);
  process.stdout.write(text);
  if (payload.length) process.stdout.write(payload);
}

let chunks = [];
let received = 0;
let wanted = 8;
let idle;
let work = Promise.resolve();

function rest() {
  clearTimeout(idle);
  if (idleMs > 0) idle = setTimeout(() => process.exit(0), idleMs);
}

function receive(chunk) {
  clearTimeout(idle);
  chunks.push(chunk);
  received += chunk.length;
  if (received < wanted) return;
  let buffer = chunks.length === 1 ? chunks[0] : Buffer.concat(chunks, received);
  for (;;) {
    wanted = frameLength(buffer);
    if (buffer.length < wanted) break;
    const headerEnd = 8 + buffer.readUInt32LE(0);
    const header = JSON.parse(buffer.toString('utf8', 8, headerEnd));
    const payload = buffer.subarray(headerEnd, wanted);
    work = work.then(() => answer(header, payload)).then(rest);
    buffer = buffer.subarray(wanted);
  }
  chunks = [buffer];
  received = buffer.length;
}

function frameLength(buffer) {
  if (buffer.length < 8) return 8;
  const length = 8 + buffer.readUInt32LE(0) + buffer.readUInt32LE(4);
  if (length > MAX_FRAME_BYTES) process.exit(1);
  return length;
}

process.stdin.on('data', receive);
process.stdin.on('end', () => process.exit(0));
process.stdout.on('error', () => process.exit(0));
rest();
