"""Run unconverted CTC models, wav2vec2 and HuBERT, with PyTorch without transformers.

The names of the weights are those of Hugging Face's files. Source:
huggingface/transformers, modeling_wav2vec2.py and modeling_hubert.py, for the order of
the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.speech.ctc_shape import (
    LAYER,
    SAMPLES_IN_MEMORY,
    CtcShape,
    ctc_weight_shapes,
    read_ctc_shape,
)
from pocketserve.runtimes.speech.torch_layers import NORM_EPSILON, TorchLayers
from pocketserve.runtimes.speech.torch_weights import (
    required_config,
    shaped_weights,
    stored_weights,
)
from pocketserve.runtimes.torch.common import import_torch
from pocketserve.tensors import Array, TensorSpec

SAMPLES: Final = "input_values"
LOGITS: Final = "logits"
TRIED_SAMPLES: Final = 16_000


class CtcTorchRuntime:
    """Opens safetensors with ``config.json`` beside them."""

    platform = "pytorch_ctc"
    option_keys: frozenset[str] = frozenset()

    def open(self, source: ModelSource) -> CtcTorchSession:
        torch = import_torch()
        stored = stored_weights(source.path)
        shape = read_ctc_shape(required_config(source.path.parent), stored)
        weights = shaped_weights(torch, stored, ctc_weight_shapes(shape))
        return CtcTorchSession(torch, shape, weights, source.threads)


class CtcTorchSession(TorchLayers):
    """A loaded model: samples [1, n] in, logits [1, frames, letters] out.

    Attributes:
        memory_bytes: the weights, and a run of 20 s.
    """

    signatures: Mapping[str, Signature] = {}
    device = "cpu"

    def __init__(
        self, torch: Any, shape: CtcShape, weights: Mapping[str, Any], threads: int
    ) -> None:
        super().__init__(torch, weights, threads)
        self._shape = shape
        self._places = self._place_weight()
        self.inputs = [TensorSpec(SAMPLES, "FP32", (1, -1))]
        self.outputs = [TensorSpec(LOGITS, "FP32", (1, -1, shape.vocabulary))]
        self.memory_bytes = self._weight_bytes() + shape.run_bytes

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Return the logits of all frames.

        Raises:
            ValueError: the sound is longer than the memory of a run allows.
        """
        shape = self._shape
        length = inputs[SAMPLES].shape[1]
        if length > SAMPLES_IN_MEMORY:
            raise ValueError(
                f"{length:,} samples are too many; send up to {SAMPLES_IN_MEMORY:,}, or"
                " the sound to /v1/audio/transcriptions"
            )
        with self._running():
            samples = self._torch.from_numpy(np.array(inputs[SAMPLES], np.float32))
            value = self._frames(samples.unsqueeze(1))
            value = value + self._positions(value)
            if not shape.norm_first:
                value = self._norm(value, f"{shape.encoder}.layer_norm", shape.epsilon)
            for number in range(shape.layers):
                value = self._layer(value, f"{shape.encoder}.layers.{number}")
            if shape.norm_first:
                value = self._norm(value, f"{shape.encoder}.layer_norm", shape.epsilon)
            logits = self._linear(value, "lm_head")
            return {LOGITS: logits.numpy()}

    def try_out(self) -> None:
        """Run a second of silence, for a trial."""
        samples = np.zeros((1, TRIED_SAMPLES), np.float32)
        if not np.isfinite(self.run({SAMPLES: samples})[LOGITS]).all():
            raise ModelLoadError(
                "the model's logits are not numbers; the file is probably damaged"
            )

    def close(self) -> None:
        """Release the weights."""
        super().close()
        self._places = None

    def _place_weight(self) -> Any:
        """Return the convolution of the positions, stored by length and direction."""
        length, direction = self._shape.weight_norm
        with self._running():
            rows = self._weights[direction]
            norms = self._torch.linalg.vector_norm(rows, dim=(0, 1), keepdim=True)
            return rows * (self._weights[length] / norms)

    def _frames(self, value: Any) -> Any:
        """Return [rows, frames, width] of samples [rows, 1, n]."""
        shape = self._shape
        for number, layer in enumerate(shape.convolutions):
            name = f"{shape.name}.feature_extractor.conv_layers.{number}"
            weight = self._weights[f"{name}.conv.weight"]
            bias = self._weights.get(f"{name}.conv.bias")
            value = self._functional.conv1d(value, weight, bias, layer.stride)
            value = self._normal_frames(value, f"{name}.layer_norm", number)
            value = self._functional.gelu(value)
        value = value.transpose(1, 2)
        projection = f"{shape.name}.feature_projection"
        if shape.norms_features:
            value = self._norm(value, f"{projection}.layer_norm", shape.epsilon)
        return self._linear(value, f"{projection}.projection")

    def _normal_frames(self, value: Any, name: str, number: int) -> Any:
        """Normalise the output of a convolution, if the model does that."""
        if self._shape.norm == LAYER:
            return self._norm(value.transpose(1, 2), name).transpose(1, 2)
        if number:
            return value
        weight = self._weights[f"{name}.weight"]
        bias = self._weights[f"{name}.bias"]
        return self._functional.group_norm(
            value, len(weight), weight, bias, NORM_EPSILON
        )

    def _positions(self, value: Any) -> Any:
        """Return the part of the position, from the frames around each frame."""
        kernel = self._shape.place_kernel
        bias = self._weights[f"{self._shape.encoder}.pos_conv_embed.conv.bias"]
        mixed = self._functional.conv1d(
            value.transpose(1, 2),
            self._places,
            bias,
            padding=kernel // 2,
            groups=self._shape.place_groups,
        )
        # An even kernel gives one frame more.
        mixed = mixed[:, :, : value.shape[1]]
        return self._functional.gelu(mixed).transpose(1, 2)

    def _layer(self, value: Any, name: str) -> Any:
        epsilon = self._shape.epsilon
        if self._shape.norm_first:
            normal = self._norm(value, f"{name}.layer_norm", epsilon)
            value = value + self._attention(normal, f"{name}.attention")
            normal = self._norm(value, f"{name}.final_layer_norm", epsilon)
            return value + self._inner(normal, f"{name}.feed_forward")
        value = value + self._attention(value, f"{name}.attention")
        value = self._norm(value, f"{name}.layer_norm", epsilon)
        value = value + self._inner(value, f"{name}.feed_forward")
        return self._norm(value, f"{name}.final_layer_norm", epsilon)

    def _attention(self, value: Any, name: str) -> Any:
        heads = self._shape.heads
        context = self._keys_values(value, name, heads)
        return self._attend(value, context, name, heads)

    def _inner(self, value: Any, name: str) -> Any:
        inner = self._linear(value, f"{name}.intermediate_dense")
        inner = self._functional.gelu(inner)
        return self._linear(inner, f"{name}.output_dense")


RUNTIME = CtcTorchRuntime()
