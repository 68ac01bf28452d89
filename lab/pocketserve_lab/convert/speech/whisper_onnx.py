"""Write Whisper's encoder and merged decoder as ONNX, in the hub's layout.

Inputs and outputs have the names of Hugging Face's exporter. The decoder computes the
keys and values of the encoder's output in its first step, and takes them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.speech.layer_weights import WhisperShape
from pocketserve_lab.convert.speech.onnx_graph import OnnxGraph

ENCODER: Final = "model.encoder"
DECODER: Final = "model.decoder"
LOWEST: Final = np.float32(-1e9)
"""Added to the score of a token that must not be seen."""

Weights = Mapping[str, Any]


class EncoderWriter:
    """Writes the encoder: a spectrogram in, states out."""

    def __init__(self, onnx: Any, weights: Weights, shape: WhisperShape) -> None:
        self._graph = OnnxGraph(onnx, weights)
        self._shape = shape
        heads = shape.encoder_heads
        self._attention = AttentionWriter(self._graph, heads, shape.width // heads)

    def write(self, path: Path) -> None:
        """Write the file."""
        graph = self._graph
        shape = self._shape
        frames = 2 * shape.source_positions
        graph.add_input("input_features", "FLOAT", ["batch", shape.bins, frames])
        value = self._convolved("input_features", "conv1", 1)
        value = self._convolved(value, "conv2", 2)
        value = graph.op("Transpose", value, perm=[0, 2, 1])
        places = graph.weight(f"{ENCODER}.embed_positions.weight")
        value = graph.op("Add", value, places)
        for layer in range(shape.encoder_layers):
            value = self._layer(value, f"{ENCODER}.layers.{layer}")
        graph.norm(value, f"{ENCODER}.layer_norm", "last_hidden_state")
        states = ["batch", shape.source_positions, shape.width]
        graph.add_output("last_hidden_state", "FLOAT", states)
        graph.save(path)

    def _convolved(self, value: str, name: str, stride: int) -> str:
        graph = self._graph
        weight = graph.weight(f"{ENCODER}.{name}.weight")
        bias = graph.weight(f"{ENCODER}.{name}.bias")
        value = graph.op(
            "Conv",
            value,
            weight,
            bias,
            pads=[1, 1],
            strides=[stride],
        )
        return graph.gelu(value)

    def _layer(self, value: str, name: str) -> str:
        graph = self._graph
        normal = graph.norm(value, f"{name}.self_attn_layer_norm")
        attended = f"{name}.self_attn"
        keys = self._attention.project(normal, f"{attended}.k_proj")
        values = self._attention.project(normal, f"{attended}.v_proj")
        mixed = self._attention.attend(normal, keys, values, attended)
        value = graph.op("Add", value, mixed)
        return feed_forward(graph, value, name)


class DecoderWriter:
    """Writes the decoder: tokens and their past in, logits out.

    Args:
        stores_table_once: the tools that quantise need it twice.
    """

    def __init__(
        self,
        onnx: Any,
        weights: Weights,
        shape: WhisperShape,
        *,
        stores_table_once: bool = True,
    ) -> None:
        self._graph = OnnxGraph(onnx, weights)
        self._shape = shape
        self._stores_table_once = stores_table_once
        self._heads = shape.decoder_heads
        self._size = shape.width // shape.decoder_heads
        self._attention = AttentionWriter(self._graph, self._heads, self._size)

    def write(self, path: Path) -> None:
        """Write the file."""
        graph = self._graph
        shape = self._shape
        self._add_inputs()
        value, mask = self._embedded_tokens()
        for layer in range(shape.decoder_layers):
            value = self._layer(value, mask, layer)
        value = graph.norm(value, f"{DECODER}.layer_norm")
        self._add_logits(value)
        graph.save(path)

    def _add_inputs(self) -> None:
        graph = self._graph
        shape = self._shape
        graph.add_input("input_ids", "INT64", ["batch", "length"])
        states = ["batch", shape.source_positions, shape.width]
        graph.add_input("encoder_hidden_states", "FLOAT", states)
        for layer in range(shape.decoder_layers):
            for part in ("decoder", "encoder"):
                for kind in ("key", "value"):
                    name = f"past_key_values.{layer}.{part}.{kind}"
                    past = ["batch", self._heads, f"past_{part}", self._size]
                    graph.add_input(name, "FLOAT", past)
        graph.add_input("use_cache_branch", "BOOL", [1])

    def _embedded_tokens(self) -> tuple[str, str]:
        """Return the embedded tokens, and the mask of later tokens."""
        graph = self._graph
        table = graph.weight(f"{DECODER}.embed_tokens.weight")
        tokens = graph.op("Gather", table, "input_ids")
        past = self._length("past_key_values.0.decoder.key", 2)
        length = self._length("input_ids", 1)
        end = graph.op("Add", past, length)
        step = graph.constant(np.array(1))
        rows = graph.op(
            "Range",
            past,
            end,
            step,
        )
        table = graph.weight(f"{DECODER}.embed_positions.weight")
        places = graph.op("Gather", table, rows)
        value = graph.op("Add", tokens, places)
        return value, self._mask(rows, end, step)

    def _length(self, value: str, axis: int) -> str:
        """Return the length of an axis."""
        graph = self._graph
        shape = graph.op("Shape", value)
        return graph.op("Gather", shape, graph.constant(np.array(axis)))

    def _mask(self, rows: str, end: str, step: str) -> str:
        """Return the numbers that hide later tokens: [length, past + length]."""
        graph = self._graph
        first = graph.constant(np.array(0))
        columns = graph.op(
            "Range",
            first,
            end,
            step,
        )
        axis = graph.constant(np.array([1]))
        rows = graph.op("Unsqueeze", rows, axis)
        is_later = graph.op("Greater", columns, rows)
        lowest = graph.constant(LOWEST)
        nothing_hidden = graph.constant(np.float32(0))
        return graph.op(
            "Where",
            is_later,
            lowest,
            nothing_hidden,
        )

    def _layer(self, value: str, mask: str, layer: int) -> str:
        graph = self._graph
        name = f"{DECODER}.layers.{layer}"
        normal = graph.norm(value, f"{name}.self_attn_layer_norm")
        mixed = self._own_attention(
            normal,
            f"{name}.self_attn",
            layer,
            mask,
        )
        value = graph.op("Add", value, mixed)
        normal = graph.norm(value, f"{name}.encoder_attn_layer_norm")
        mixed = self._sound_attention(normal, f"{name}.encoder_attn", layer)
        value = graph.op("Add", value, mixed)
        return feed_forward(graph, value, name)

    def _own_attention(self, value: str, name: str, layer: int, mask: str) -> str:
        """Attend to the tokens so far."""
        keys = self._own_past(
            value,
            f"{name}.k_proj",
            layer,
            "key",
        )
        values = self._own_past(
            value,
            f"{name}.v_proj",
            layer,
            "value",
        )
        return self._attention.attend(value, keys, values, name, mask)

    def _sound_attention(self, value: str, name: str, layer: int) -> str:
        """Attend to the sound."""
        keys = self._encoded(f"{name}.k_proj", layer, "key")
        values = self._encoded(f"{name}.v_proj", layer, "value")
        return self._attention.attend(value, keys, values, name)

    def _own_past(self, value: str, projection: str, layer: int, kind: str) -> str:
        """Return the keys or values of all tokens so far."""
        graph = self._graph
        own = self._attention.project(value, projection)
        name = f"{layer}.decoder.{kind}"
        output = f"present.{name}"
        graph.op(
            "Concat",
            f"past_key_values.{name}",
            own,
            name=output,
            axis=2,
        )
        self._add_present(output, "past_decoder + length")
        return output

    def _encoded(self, projection: str, layer: int, kind: str) -> str:
        """Return the keys or values of the sound: computed, or those of the past."""
        graph = self._graph
        name = f"{layer}.encoder.{kind}"
        output = f"present.{name}"
        first = graph.size
        own = self._attention.project("encoder_hidden_states", projection)
        past = f"past_key_values.{name}"
        graph.choose(
            "use_cache_branch",
            output,
            past,
            own,
            graph.size - first,
        )
        self._add_present(output, "encoder_length")
        return output

    def _add_present(self, output: str, length: str) -> None:
        shape = ["batch", self._heads, length, self._size]
        self._graph.add_output(output, "FLOAT", shape)

    def _add_logits(self, value: str) -> None:
        """Multiply by the table of the tokens."""
        graph = self._graph
        shape = self._shape
        table = f"{DECODER}.embed_tokens"
        if self._stores_table_once:
            flat_shape = graph.constant(np.array([-1, shape.width]))
            flat = graph.op("Reshape", value, flat_shape)
            weight = graph.weight(f"{table}.weight")
            flat = graph.op(
                "Gemm",
                flat,
                weight,
                transB=1,
            )
            size = graph.constant(np.array([shape.vocabulary]))
            rows = graph.op("Shape", "input_ids")
            logits_shape = graph.op(
                "Concat",
                rows,
                size,
                axis=0,
            )
            graph.op(
                "Reshape",
                flat,
                logits_shape,
                name="logits",
            )
        else:
            graph.linear(value, table, "logits")
        graph.add_output("logits", "FLOAT", ["batch", "length", shape.vocabulary])


class AttentionWriter:
    """Adds the attentions of one graph.

    Args:
        heads: their number.
        size: of one head.
    """

    def __init__(self, graph: OnnxGraph, heads: int, size: int) -> None:
        self._graph = graph
        self._heads = heads
        self._size = size

    def project(self, value: str, projection: str) -> str:
        """Return queries, keys or values: [batch, heads, length, size]."""
        projected = self._graph.linear(value, projection)
        return self._graph.split_heads(projected, self._heads, self._size)

    def attend(
        self, value: str, keys: str, values: str, name: str, mask: str = ""
    ) -> str:
        """Return the projected output of an attention."""
        graph = self._graph
        scale = graph.constant(np.float32(self._size**-0.5))
        queries = graph.op("Mul", self.project(value, f"{name}.q_proj"), scale)
        columns = graph.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = graph.op("MatMul", queries, columns)
        if mask:
            scores = graph.op("Add", scores, mask)
        shares = graph.op("Softmax", scores, axis=-1)
        mixed = graph.op("MatMul", shares, values)
        joined = graph.join_heads(mixed, self._heads * self._size)
        return graph.linear(joined, f"{name}.out_proj")


def feed_forward(graph: OnnxGraph, value: str, name: str) -> str:
    """Add the inner part of a layer, and return the sum with its input."""
    normal = graph.norm(value, f"{name}.final_layer_norm")
    inner = graph.gelu(graph.linear(normal, f"{name}.fc1"))
    return graph.op("Add", value, graph.linear(inner, f"{name}.fc2"))
