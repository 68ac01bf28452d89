"""Writes tiny Whisper models: their decoder says a fixed script, whatever the sound.

Each position's vector points at the script's next token, so that the text is known. The
other weights are small random numbers, which all formats must agree on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folder_files import write_weights
from pocketserve.tasks.speech.vocabulary import byte_alphabet

Weights = Mapping[str, np.ndarray]

WIDTH, HEADS, LAYERS, FORWARD, BINS = 32, 2, 2, 48, 8
SECONDS = 2
FRAMES = 100 * SECONDS
SOURCE_POSITIONS = FRAMES // 2
TARGET_POSITIONS = 24
TIMES = 50 * SECONDS + 1
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
FIRST_SPECIAL = 256
END, START, GERMAN = FIRST_SPECIAL, FIRST_SPECIAL + 1, FIRST_SPECIAL + 3
FIRST_TIME = FIRST_SPECIAL + len(SPECIAL)
VOCABULARY = FIRST_TIME + TIMES
TEXT = " Yes."
SEGMENT_END = 50


def number_of(name: str) -> int:
    """Return a special token."""
    return FIRST_SPECIAL + SPECIAL.index(name)


def script_of(text: str = TEXT, end: int = SEGMENT_END) -> list[int]:
    """Return the tokens of one segment from 0.00 s on; no character comes twice."""
    tokens = [FIRST_TIME]
    tokens += text.encode()
    tokens.append(FIRST_TIME + end)
    tokens.append(END)
    return tokens


def text_numbers() -> dict[str, int]:
    """Return the vocabulary of single bytes."""
    return {letter: value for value, letter in enumerate(byte_alphabet())}


@dataclass(frozen=True)
class TinyWhisper:
    """A model.

    Attributes:
        script: tokens after the prompt.
    """

    script: tuple[int, ...] = tuple(script_of())
    multilingual: bool = False
    seed: int = 0

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights by their names in Hugging Face's files."""
        random = np.random.default_rng(self.seed)
        weights: dict[str, np.ndarray] = {}

        def add(name: str, *shape: int) -> None:
            weights[name] = (0.05 * random.standard_normal(shape)).astype(np.float32)

        add("model.encoder.conv1.weight", WIDTH, BINS, 3)
        add("model.encoder.conv1.bias", WIDTH)
        add("model.encoder.conv2.weight", WIDTH, WIDTH, 3)
        add("model.encoder.conv2.bias", WIDTH)
        add("model.encoder.embed_positions.weight", SOURCE_POSITIONS, WIDTH)
        add("model.decoder.embed_tokens.weight", VOCABULARY, WIDTH)
        for part in ("encoder", "decoder"):
            for layer in range(LAYERS):
                self._add_layer(add, f"model.{part}.layers.{layer}", part)
            self._add_norm(add, f"model.{part}.layer_norm")
        for name in weights:
            if "norm.weight" in name:
                weights[name] += 1
        positions = random.standard_normal((TARGET_POSITIONS, WIDTH))
        positions -= positions.mean(axis=1, keepdims=True)
        positions /= np.linalg.norm(positions, axis=1, keepdims=True)
        weights["model.decoder.embed_positions.weight"] = np.float32(8 * positions)
        for position, token in self._spoken():
            row = np.float32(positions[position])
            weights["model.decoder.embed_tokens.weight"][token] = row
        return weights

    def _spoken(self) -> list[tuple[int, int]]:
        """Return the positions with the token that follows each of them."""
        spoken = []
        first = 0
        if self.multilingual:
            spoken.append((0, GERMAN))
            first = 2
        for place, token in enumerate(self.script):
            spoken.append((first + place, token))
        return spoken

    def _add_layer(self, add: Any, name: str, part: str) -> None:
        attentions = ["self_attn"]
        if part == "decoder":
            attentions.append("encoder_attn")
        for attention in attentions:
            for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                add(f"{name}.{attention}.{projection}.weight", WIDTH, WIDTH)
                if projection != "k_proj":
                    add(f"{name}.{attention}.{projection}.bias", WIDTH)
            self._add_norm(add, f"{name}.{attention}_layer_norm")
        for linear, rows, columns in (("fc1", FORWARD, WIDTH), ("fc2", WIDTH, FORWARD)):
            add(f"{name}.{linear}.weight", rows, columns)
            add(f"{name}.{linear}.bias", rows)
        self._add_norm(add, f"{name}.final_layer_norm")

    def _add_norm(self, add: Any, name: str) -> None:
        add(f"{name}.weight", WIDTH)
        add(f"{name}.bias", WIDTH)

    def write_settings(self, folder: Path, **changes: Any) -> None:
        """Write the JSON files; a change to None leaves a key of any file out."""
        config = {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "num_mel_bins": BINS,
            "max_source_positions": SOURCE_POSITIONS,
            "max_target_positions": TARGET_POSITIONS,
            "encoder_layers": LAYERS,
            "decoder_layers": LAYERS,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": FORWARD,
            "decoder_ffn_dim": FORWARD,
            "decoder_start_token_id": START,
            "eos_token_id": END,
        }
        generation: dict[str, Any] = {
            "no_timestamps_token_id": number_of("<|notimestamps|>"),
            "prev_sot_token_id": number_of("<|startofprev|>"),
            "suppress_tokens": [START, number_of("<|startoflm|>")],
            "begin_suppress_tokens": [ord(" "), END],
            "max_initial_timestamp_index": 50,
        }
        if self.multilingual:
            languages = ("<|en|>", "<|de|>")
            tasks = ("transcribe", "translate")
            generation["lang_to_id"] = {name: number_of(name) for name in languages}
            generation["task_to_id"] = {
                name: number_of(f"<|{name}|>") for name in tasks
            }
        front = {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": BINS,
            "sampling_rate": 16000,
            "chunk_length": SECONDS,
        }
        model = {"type": "BPE", "vocab": text_numbers(), "merges": []}
        files: dict[str, dict[str, Any]] = {
            "config.json": config,
            "generation_config.json": generation,
            "preprocessor_config.json": front,
            "tokenizer.json": {"model": model},
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, keys in files.items():
            for key, value in changes.items():
                if key in keys:
                    keys[key] = value
            present = {key: value for key, value in keys.items() if value is not None}
            (folder / name).write_text(json.dumps(present))

    def write_torch(self, folder: Path, *, parts: int = 1) -> Path:
        """Write the unconverted weights with the settings."""
        self.write_settings(folder)
        write_weights(folder, self.weights(), parts)
        return folder

    def write_onnx(
        self, folder: Path, *, merged: bool = True, suffix: str = ""
    ) -> None:
        """Write the encoder, with a merged decoder or a pair of decoders."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.weights()
        _write_encoder(folder / f"encoder_model{suffix}.onnx", weights)
        if merged:
            path = folder / f"decoder_model_merged{suffix}.onnx"
            _write_decoder(path, weights, "merged")
            return
        _write_decoder(folder / f"decoder_model{suffix}.onnx", weights, "first")
        _write_decoder(
            folder / f"decoder_with_past_model{suffix}.onnx", weights, "next"
        )

    def write(self, folder: Path, *, merged: bool = True) -> Path:
        """Write a whole model in the hub's layout."""
        self.write_settings(folder)
        self.write_onnx(folder / "onnx", merged=merged)
        return folder


class _Graph:
    """An ONNX graph under construction; methods return names of values."""

    def __init__(self, weights: Weights) -> None:
        self._onnx = pytest.importorskip("onnx")
        self._weights = weights
        self._count = 0
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        self._count += 1
        output = name or f"v{self._count}"
        make = self._onnx.helper.make_node
        self.nodes.append(make(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any) -> str:
        self._count += 1
        name = f"c{self._count}"
        array = np.asarray(value)
        self.constants[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        key = f"{name}.T" if transposed else name
        if key not in self.constants:
            array = self._weights[name]
            if transposed:
                array = np.ascontiguousarray(array.T)
            self.constants[key] = self._onnx.numpy_helper.from_array(array, key)
        return key

    def tensor(self, name: str, kind: str, shape: Sequence[Any]) -> Any:
        number = getattr(self._onnx.TensorProto, kind)
        return self._onnx.helper.make_tensor_value_info(name, number, shape)

    def linear(self, value: str, name: str) -> str:
        product = self.op(
            "MatMul", value, self.weight(f"{name}.weight", transposed=True)
        )
        if f"{name}.bias" in self._weights:
            product = self.op("Add", product, self.weight(f"{name}.bias"))
        return product

    def norm(self, value: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-5)

    def gelu(self, value: str) -> str:
        scaled = self.op("Mul", value, self.constant(np.float32(0.5**0.5)))
        curve = self.op("Add", self.op("Erf", scaled), self.constant(np.float32(1)))
        half = self.op("Mul", value, self.constant(np.float32(0.5)))
        return self.op("Mul", half, curve)

    def heads(self, value: str) -> str:
        """Return [1, heads, length, size] of [1, length, width]."""
        shape = self.constant(np.array([0, -1, HEADS, WIDTH // HEADS]))
        return self.op("Transpose", self.op("Reshape", value, shape), perm=[0, 2, 1, 3])

    def attention(
        self, value: str, keys: str, values: str, name: str, mask: str = ""
    ) -> str:
        queries = self.heads(self.linear(value, f"{name}.q_proj"))
        factor = self.constant(np.float32((WIDTH // HEADS) ** -0.5))
        queries = self.op("Mul", queries, factor)
        transposed_keys = self.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", queries, transposed_keys)
        if mask:
            scores = self.op("Add", scores, mask)
        shares = self.op("Softmax", scores, axis=-1)
        mixed = self.op("MatMul", shares, values)
        joined = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.op("Reshape", joined, self.constant(np.array([0, -1, WIDTH])))
        return self.linear(flat, f"{name}.out_proj")

    def feed_forward(self, value: str, name: str) -> str:
        normal = self.norm(value, f"{name}.final_layer_norm")
        inner = self.gelu(self.linear(normal, f"{name}.fc1"))
        return self.op("Add", value, self.linear(inner, f"{name}.fc2"))

    def branch(self, name: str, outputs: Sequence[str], nodes: Sequence[Any]) -> Any:
        tensors = [self.tensor(output, "FLOAT", None) for output in outputs]
        return self._onnx.helper.make_graph(list(nodes), name, [], tensors)

    def save(self, path: Path) -> None:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self.nodes,
            "tiny",
            self.inputs,
            self.outputs,
            list(self.constants.values()),
        )
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
        self._onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString())


def _write_encoder(path: Path, weights: Weights) -> None:
    graph = _Graph(weights)
    graph.inputs.append(
        graph.tensor("input_features", "FLOAT", ["batch", BINS, FRAMES])
    )
    value = "input_features"
    for name, stride in (("model.encoder.conv1", 1), ("model.encoder.conv2", 2)):
        weight, bias = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
        value = graph.op("Conv", value, weight, bias, pads=[1, 1], strides=[stride])
        value = graph.gelu(value)
    value = graph.op("Transpose", value, perm=[0, 2, 1])
    value = graph.op("Add", value, graph.weight("model.encoder.embed_positions.weight"))
    for layer in range(LAYERS):
        name = f"model.encoder.layers.{layer}"
        normal = graph.norm(value, f"{name}.self_attn_layer_norm")
        keys = graph.heads(graph.linear(normal, f"{name}.self_attn.k_proj"))
        values = graph.heads(graph.linear(normal, f"{name}.self_attn.v_proj"))
        mixed = graph.attention(normal, keys, values, f"{name}.self_attn")
        value = graph.feed_forward(graph.op("Add", value, mixed), name)
    scale = graph.weight("model.encoder.layer_norm.weight")
    bias = graph.weight("model.encoder.layer_norm.bias")
    graph.op(
        "LayerNormalization", value, scale, bias, name="last_hidden_state", epsilon=1e-5
    )
    shape = ["batch", SOURCE_POSITIONS, WIDTH]
    graph.outputs.append(graph.tensor("last_hidden_state", "FLOAT", shape))
    graph.save(path)


def _write_decoder(path: Path, weights: Weights, kind: str) -> None:
    """Write a decoder: ``first`` without a past, ``next`` with one, or ``merged``."""
    graph = _Graph(weights)
    has_past = kind != "first"
    _add_decoder_tensors(graph, kind)
    value, mask = _embedded(graph, has_past)
    for layer in range(LAYERS):
        name = f"model.decoder.layers.{layer}"
        normal = graph.norm(value, f"{name}.self_attn_layer_norm")
        keys, values = _own_cache(graph, normal, layer, has_past)
        mixed = graph.attention(normal, keys, values, f"{name}.self_attn", mask)
        value = graph.op("Add", value, mixed)
        normal = graph.norm(value, f"{name}.encoder_attn_layer_norm")
        keys, values = _encoder_cache(graph, layer, kind)
        mixed = graph.attention(normal, keys, values, f"{name}.encoder_attn")
        value = graph.feed_forward(graph.op("Add", value, mixed), name)
    value = graph.norm(value, "model.decoder.layer_norm")
    table = graph.weight("model.decoder.embed_tokens.weight", transposed=True)
    graph.op("MatMul", value, table, name="logits")
    graph.save(path)


def _add_decoder_tensors(graph: _Graph, kind: str) -> None:
    graph.inputs.append(graph.tensor("input_ids", "INT64", ["batch", "length"]))
    if kind != "next":
        shape = ["batch", SOURCE_POSITIONS, WIDTH]
        graph.inputs.append(graph.tensor("encoder_hidden_states", "FLOAT", shape))
    if kind == "merged":
        graph.inputs.append(graph.tensor("use_cache_branch", "BOOL", [1]))
    if kind != "first":
        for name in _cache_names():
            shape = ["batch", HEADS, f"past_{name}", WIDTH // HEADS]
            graph.inputs.append(graph.tensor(f"past_key_values.{name}", "FLOAT", shape))
    graph.outputs.append(
        graph.tensor("logits", "FLOAT", ["batch", "length", VOCABULARY])
    )


def _cache_names() -> list[str]:
    names = []
    for layer in range(LAYERS):
        for part in ("decoder", "encoder"):
            names += [f"{layer}.{part}.key", f"{layer}.{part}.value"]
    return names


def _embedded(graph: _Graph, has_past: bool) -> tuple[str, str]:
    """Return the embedded tokens, and the mask of later tokens."""
    tokens = graph.op(
        "Gather", graph.weight("model.decoder.embed_tokens.weight"), "input_ids"
    )
    zero, unit = graph.constant(np.array(0)), graph.constant(np.array(1))
    length = graph.op("Gather", graph.op("Shape", "input_ids"), unit)
    past = zero
    if has_past:
        two = graph.constant(np.array(2))
        past = graph.op(
            "Gather", graph.op("Shape", "past_key_values.0.decoder.key"), two
        )
    end = graph.op("Add", past, length)
    places = graph.op("Range", past, end, unit)
    table = graph.weight("model.decoder.embed_positions.weight")
    value = graph.op("Add", tokens, graph.op("Gather", table, places))
    columns = graph.op("Range", zero, end, unit)
    rows = graph.op("Unsqueeze", places, graph.constant(np.array([1])))
    is_later = graph.op("Greater", columns, rows)
    lowest = graph.constant(np.float32(-1e9))
    mask = graph.op("Where", is_later, lowest, graph.constant(np.float32(0)))
    return value, mask


def _own_cache(graph: _Graph, value: str, layer: int, has_past: bool) -> list[str]:
    """Return the keys and values of all tokens so far."""
    names = []
    for kind, projection in (("key", "k_proj"), ("value", "v_proj")):
        name = f"model.decoder.layers.{layer}.self_attn.{projection}"
        own = graph.heads(graph.linear(value, name))
        output = f"present.{layer}.decoder.{kind}"
        if has_past:
            past = f"past_key_values.{layer}.decoder.{kind}"
            graph.op("Concat", past, own, name=output, axis=2)
        else:
            graph.op("Identity", own, name=output)
        shape = ["batch", HEADS, f"all_{output}", WIDTH // HEADS]
        graph.outputs.append(graph.tensor(output, "FLOAT", shape))
        names.append(output)
    return names


def _encoder_cache(graph: _Graph, layer: int, kind: str) -> list[str]:
    """Return the encoder's keys and values: computed, from the past, or either."""
    names = []
    for part, projection in (("key", "k_proj"), ("value", "v_proj")):
        past = f"past_key_values.{layer}.encoder.{part}"
        if kind == "next":
            names.append(past)
            continue
        name = f"model.decoder.layers.{layer}.encoder_attn.{projection}"
        output = f"present.{layer}.encoder.{part}"
        if kind == "first":
            own = graph.heads(graph.linear("encoder_hidden_states", name))
            graph.op("Identity", own, name=output)
        else:
            _add_branches(graph, past, name, output)
        shape = ["batch", HEADS, f"source_{output}", WIDTH // HEADS]
        graph.outputs.append(graph.tensor(output, "FLOAT", shape))
        names.append(output)
    return names


def _add_branches(graph: _Graph, past: str, name: str, output: str) -> None:
    """Add an If: the past if there is one, else the projection of the encoder's output."""
    before = len(graph.nodes)
    past_value = graph.op("Identity", past)
    kept_nodes = graph.nodes[before:]
    del graph.nodes[before:]
    own = graph.heads(graph.linear("encoder_hidden_states", name))
    own_nodes = graph.nodes[before:]
    del graph.nodes[before:]
    graph.op(
        "If",
        "use_cache_branch",
        name=output,
        then_branch=graph.branch("with_past", [past_value], kept_nodes),
        else_branch=graph.branch("without_past", [own], own_nodes),
    )
