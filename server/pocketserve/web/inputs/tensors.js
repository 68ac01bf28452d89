// Tensors: a .npy file, JSON, or zeros to see whether the model runs.
import { html } from "../vendor/lit-html/lit-html.js";
import { t } from "../words.js";
import { update } from "../page.js";
import { fileField } from "./files.js";

const KINDS = {
  FP32: ["<f4", 4], FP64: ["<f8", 8], FP16: ["<f2", 2], INT8: ["|i1", 1], INT16: ["<i2", 2], INT32: ["<i4", 4],
  INT64: ["<i8", 8], UINT8: ["|u1", 1], UINT16: ["<u2", 2], UINT32: ["<u4", 4], UINT64: ["<u8", 8], BOOL: ["|b1", 1],
};
const LARGEST = 1 << 26; // bytes of zeros that this page makes

export const tensors = { name: "tensors", create: (bench) => new TensorsInput(bench) };

class TensorsInput {
  constructor(bench) {
    this.bench = bench;
    this.fault = "";
  }

  stop() {}

  submit(event) {
    event.preventDefault();
    const text = new FormData(event.target).get("values");
    try {
      const value = JSON.parse(text);
      this.fault = "";
      this.bench.submit({ body: text, json: value, query: {}, name: "input.json" });
    } catch (error) {
      this.fault = error.message;
      update();
    }
  }

  zeros() {
    this.bench.submit({ body: zeroArray(this.bench.metadata.inputs[0]), query: {}, name: "zeros.npy" });
  }

  view() {
    const { inputs } = this.bench.metadata;
    const single = inputs.length === 1;
    return html`<ul class="tensors">${inputs.map(({ name, datatype, shape }) => html`<li><code>${name}</code> ${datatype} [${shape.join(", ")}]</li>`)}</ul>
      <form @submit=${(event) => this.submit(event)}>
        <label>${t("tensors.json")}<textarea name="values" rows="4" required spellcheck="false"
          placeholder=${single ? "[1.0, 2.0]" : `{"${inputs[0]?.name}": [1.0]}`}></textarea></label>
        ${this.fault ? html`<p class="problem" role="alert" lang="en">${this.fault}</p>` : ""}
        <div class="actions"><button class="primary">${t("ask")}</button>
        ${single && canBeZeros(inputs[0]) ? html`<button type="button" @click=${() => this.zeros()}>${t("tensors.zeros")}</button>` : ""}</div>
      </form>
      ${single ? fileField(".npy", t("tensors.npy"), (chosen) => this.bench.submit({ body: chosen, query: {}, name: chosen.name })) : ""}`;
  }
}

const fixed = (shape) => shape.map((size) => (size < 0 ? 1 : size));
const sizeOf = ({ shape, datatype }) => fixed(shape).reduce((a, b) => a * b, KINDS[datatype][1]);
const canBeZeros = (input) => input.datatype in KINDS && sizeOf(input) <= LARGEST;

/** A .npy file of zeros; free sizes are 1. */
function zeroArray(input) {
  const shape = fixed(input.shape);
  const text = `{'descr': '${KINDS[input.datatype][0]}', 'fortran_order': False, 'shape': (${shape.map((size) => `${size},`).join(" ")}), }`;
  const head = `${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`;
  const length = new Uint8Array([head.length & 255, head.length >> 8]);
  return new Blob([new Uint8Array([0x93]), "NUMPY", new Uint8Array([1, 0]), length, head, new Uint8Array(sizeOf(input))]);
}
