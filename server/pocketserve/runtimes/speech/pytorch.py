"""Run Whisper's unconverted safetensors with PyTorch, without transformers.

The names of the weights are those of Hugging Face's files. Source:
huggingface/transformers, modeling_whisper.py, for the order of the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.speech.interface import TokenStep
from pocketserve.runtimes.speech.layer_weights import (
    WhisperShape,
    read_shape,
    weight_shapes,
)
from pocketserve.runtimes.speech.torch_layers import KeysValues, TorchLayers
from pocketserve.runtimes.speech.torch_weights import (
    required_config,
    shaped_weights,
    stored_weights,
)
from pocketserve.runtimes.torch.common import import_torch
from pocketserve.tensors import Array, TensorSpec

FEATURES: Final = "input_features"
ENCODED: Final = "last_hidden_state"
ENCODER: Final = "model.encoder"
DECODER: Final = "model.decoder"


class TorchCache(NamedTuple):
    """The decoder's memory.

    Attributes:
        encoder: keys and values of the sound, by layer.
        tokens: keys and values of the tokens so far, by layer; empty at first.
        length: number of these tokens.
    """

    encoder: Sequence[KeysValues]
    tokens: Sequence[KeysValues]
    length: int


class WhisperTorchRuntime:
    """Opens safetensors with ``config.json`` beside them."""

    platform = "pytorch_whisper"
    option_keys: frozenset[str] = frozenset()

    def open(self, source: ModelSource) -> WhisperTorchSession:
        torch = import_torch()
        shape = read_shape(required_config(source.path.parent))
        stored = stored_weights(source.path)
        weights = shaped_weights(torch, stored, weight_shapes(shape))
        return WhisperTorchSession(torch, shape, weights, source.threads)


class WhisperTorchSession(TorchLayers):
    """A loaded Whisper model; as tensors it is the encoder.

    Attributes:
        memory_bytes: the weights, and the cache of one text.
    """

    signatures: Mapping[str, Signature] = {}
    device = "cpu"

    def __init__(
        self,
        torch: Any,
        shape: WhisperShape,
        weights: Mapping[str, Any],
        threads: int,
    ) -> None:
        super().__init__(torch, weights, threads)
        self._shape = shape
        frames = 2 * shape.source_positions
        encoded = (1, shape.source_positions, shape.width)
        self.inputs = [TensorSpec(FEATURES, "FP32", (1, shape.bins, frames))]
        self.outputs = [TensorSpec(ENCODED, "FP32", encoded)]
        positions = shape.source_positions + shape.target_positions
        cached = 2 * 4 * shape.decoder_layers * positions * shape.width
        self.memory_bytes = self._weight_bytes() + cached

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the encoder."""
        with self._running():
            return {ENCODED: self._encode(inputs[FEATURES]).numpy()}

    def encode(self, features: Array) -> TorchCache:
        """Return the cache before the first token."""
        with self._running():
            encoded = self._encode(features)
            layers = []
            for layer in range(self._shape.decoder_layers):
                name = f"{DECODER}.layers.{layer}.encoder_attn"
                layers.append(self._keys_values(encoded, name, self._decoder_heads))
            return TorchCache(layers, (), 0)

    def step(self, tokens: Sequence[int], cache: TorchCache) -> TokenStep:
        """Read tokens, and return the logits after the last one.

        Raises:
            RuntimeError: the text is longer than the model's positions.
        """
        end = cache.length + len(tokens)
        if end > self._shape.target_positions:
            raise RuntimeError(f"the model reads {self._shape.target_positions} tokens")
        with self._running():
            numbers = self._torch.tensor([list(tokens)])
            table = self._weights[f"{DECODER}.embed_tokens.weight"]
            places = self._weights[f"{DECODER}.embed_positions.weight"]
            value = self._functional.embedding(numbers, table)
            value = value + places[cache.length : end]
            layers = []
            for layer in range(self._shape.decoder_layers):
                past = None
                if cache.tokens:
                    past = cache.tokens[layer]
                name = f"{DECODER}.layers.{layer}"
                value, own = self._decode(value, name, past, cache.encoder[layer])
                layers.append(own)
            value = self._norm(value[:, -1], f"{DECODER}.layer_norm")
            logits = self._functional.linear(value, table)[0].numpy()
        return TokenStep(logits, TorchCache(cache.encoder, layers, end))

    def try_out(self) -> None:
        """Decode two tokens of silence, for a trial."""
        (spec,) = self.inputs
        step = self.step([0], self.encode(np.zeros(spec.shape, np.float32)))
        step = self.step([0], step.cache)
        if not np.isfinite(step.logits).all():
            raise ModelLoadError(
                "the decoder's logits are not numbers; the file is probably damaged"
            )

    @property
    def _decoder_heads(self) -> int:
        return self._shape.decoder_heads

    def _encode(self, features: Array) -> Any:
        value = self._torch.from_numpy(np.array(features, np.float32))
        for name, stride in (("conv1", 1), ("conv2", 2)):
            weight = self._weights[f"{ENCODER}.{name}.weight"]
            bias = self._weights[f"{ENCODER}.{name}.bias"]
            value = self._functional.conv1d(value, weight, bias, stride, padding=1)
            value = self._functional.gelu(value)
        places = self._weights[f"{ENCODER}.embed_positions.weight"]
        value = value.transpose(1, 2) + places
        heads = self._shape.encoder_heads
        for layer in range(self._shape.encoder_layers):
            name = f"{ENCODER}.layers.{layer}"
            normal = self._norm(value, f"{name}.self_attn_layer_norm")
            own = self._keys_values(normal, f"{name}.self_attn", heads)
            value = value + self._attend(normal, own, f"{name}.self_attn", heads)
            value = self._feed_forward(value, name)
        return self._norm(value, f"{ENCODER}.layer_norm")

    def _decode(
        self, value: Any, name: str, past: KeysValues | None, encoder: KeysValues
    ) -> tuple[Any, KeysValues]:
        """Run a layer of the decoder; return also the keys and values so far."""
        heads = self._decoder_heads
        normal = self._norm(value, f"{name}.self_attn_layer_norm")
        own = self._keys_values(normal, f"{name}.self_attn", heads)
        if past is not None:
            keys = self._torch.cat((past.keys, own.keys), 2)
            own = KeysValues(keys, self._torch.cat((past.values, own.values), 2))
        mask = self._mask(value.shape[1], own.keys.shape[2])
        mixed = self._attend(normal, own, f"{name}.self_attn", heads, mask)
        value = value + mixed
        normal = self._norm(value, f"{name}.encoder_attn_layer_norm")
        mixed = self._attend(normal, encoder, f"{name}.encoder_attn", heads)
        return self._feed_forward(value + mixed, name), own

    def _mask(self, rows: int, columns: int) -> Any:
        """Return which tokens each new token sees: those before it."""
        if rows == 1:
            return None
        mask = self._torch.ones(rows, columns, dtype=self._torch.bool)
        return mask.tril(columns - rows)

    def _feed_forward(self, value: Any, name: str) -> Any:
        normal = self._norm(value, f"{name}.final_layer_norm")
        inner = self._functional.gelu(self._linear(normal, f"{name}.fc1"))
        return value + self._linear(inner, f"{name}.fc2")


RUNTIME = WhisperTorchRuntime()
