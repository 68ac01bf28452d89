"""The sizes of a wav2vec2 or HuBERT model, and the shapes of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.speech.layer_weights import read_sizes
from pocketserve.runtimes.speech.torch_weights import Shapes, config_fault
from pocketserve.runtimes.torch.safetensors import StoredTensor

MAX_CONVOLUTIONS: Final = 32
MAX_KERNEL: Final = 1024
GROUP: Final = "group"
LAYER: Final = "layer"
NORMS_FEATURES: Final = "feat_proj_layer_norm"
"""The key of HuBERT; wav2vec2 always normalises its features."""

MAX_FRAME: Final = 800
"""Samples that one frame sees, at most: 0.05 s."""

SAMPLES_IN_MEMORY: Final = 20 * 16_000
"""Samples of one run: 20 s."""

_KEYS: Final = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "vocab_size"),
    *("num_conv_pos_embeddings", "num_conv_pos_embedding_groups"),
)
_LISTS: Final = ("conv_dim", "conv_kernel", "conv_stride")
_FIXED: Final = {
    "hidden_act": "gelu",
    "feat_extract_activation": "gelu",
    "add_adapter": False,
    "adapter_attn_dim": None,
    "conv_pos_batch_norm": False,
}
"""Keys that other values change the network; a missing key is the same as its value."""


@dataclass(frozen=True)
class Convolution:
    """A convolution over time."""

    width: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class CtcShape:
    """The sizes and switches of a model.

    Attributes:
        name: the first part of its weights' names.
        inner: width of the layers' inner part.
        place_kernel, place_groups: of the convolution that adds the positions.
        norm: of the convolutions: of the first one by ``group``, or each by ``layer``.
        norm_first: whether layers normalise their input, not their output.
        norms_features: whether the convolutions' output is normalised.
        weight_norm: the names of the positions' length and direction.
    """

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    place_kernel: int
    place_groups: int
    convolutions: Sequence[Convolution]
    norm: str
    has_bias: bool
    norm_first: bool
    norms_features: bool
    epsilon: float
    weight_norm: tuple[str, str]

    @property
    def encoder(self) -> str:
        """Return the first part of the encoder's names."""
        return f"{self.name}.encoder"

    @property
    def run_bytes(self) -> int:
        """Return the memory of a run beside the weights, about."""
        first = self.convolutions[0]
        # The input and output of an operation, and its norm.
        return 3 * 4 * first.width * (SAMPLES_IN_MEMORY // first.stride)


def read_ctc_shape(
    config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> CtcShape:
    """Read the sizes.

    Raises:
        ModelLoadError: a key is missing or invalid, or the network is of another kind.
    """
    for key, usual in _FIXED.items():
        value = config.get(key)
        if value is not None and value != usual:
            stated = json.dumps(value)
            raise ModelLoadError(
                f"config.json beside the model: {key} is {stated:.40}, which is not served"
                " unconverted; convert the model to ONNX with optimum"
            )
    width, layers, heads, inner, vocabulary, kernel, groups = read_sizes(config, _KEYS)
    if width % heads or width % groups:
        raise config_fault(
            "hidden_size is not a multiple of the attention heads and of the groups"
        )
    norm = config.get("feat_extract_norm", GROUP)
    if norm not in (GROUP, LAYER):
        raise config_fault(f"feat_extract_norm is neither {GROUP} nor {LAYER}")
    name = str(config["model_type"])
    places = f"{name}.encoder.pos_conv_embed.conv"
    weight_norm = (f"{places}.weight_g", f"{places}.weight_v")
    if weight_norm[0] not in stored:
        # Newer versions of PyTorch name them so.
        parts = f"{places}.parametrizations.weight"
        weight_norm = (f"{parts}.original0", f"{parts}.original1")
    return CtcShape(
        name=name,
        width=width,
        layers=layers,
        heads=heads,
        inner=inner,
        vocabulary=vocabulary,
        place_kernel=kernel,
        place_groups=groups,
        convolutions=_convolutions(config),
        norm=norm,
        has_bias=_switch(config, "conv_bias", False),
        norm_first=_switch(config, "do_stable_layer_norm", False),
        norms_features=name != "hubert" or _switch(config, NORMS_FEATURES, True),
        epsilon=_epsilon(config),
        weight_norm=weight_norm,
    )


def _switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if type(value) is not bool:
        raise config_fault(f"{key} is neither true nor false")
    return value


def _epsilon(config: Mapping[str, Any]) -> float:
    value = config.get("layer_norm_eps", 1e-5)
    if type(value) is not float or not 0 < value < 1:
        raise config_fault("layer_norm_eps is not a number between 0 and 1")
    return value


def _convolutions(config: Mapping[str, Any]) -> tuple[Convolution, ...]:
    columns = []
    for key in _LISTS:
        numbers = config.get(key)
        if not isinstance(numbers, list) or not 0 < len(numbers) <= MAX_CONVOLUTIONS:
            raise config_fault(f"{key} is no list of up to {MAX_CONVOLUTIONS} numbers")
        limit = 1 << 20 if key == "conv_dim" else MAX_KERNEL
        for number in numbers:
            if type(number) is not int or not 0 < number <= limit:
                raise config_fault(f"{key} has a number outside 1 to {limit}")
        columns.append(numbers)
    if len({len(numbers) for numbers in columns}) > 1:
        raise config_fault(f"{', '.join(_LISTS)} have different lengths")
    rows = []
    for width, kernel, stride in zip(*columns, strict=True):
        rows.append(Convolution(width, kernel, stride))
    frame = _samples_of_frame(rows)
    if frame > MAX_FRAME:
        raise config_fault(
            f"conv_kernel and conv_stride need {frame} samples for a frame, and at most"
            f" {MAX_FRAME} are served"
        )
    return tuple(rows)


def _samples_of_frame(rows: Sequence[Convolution]) -> int:
    """Return the number of samples that one frame sees."""
    samples = 1
    step = 1
    for row in rows:
        samples += (row.kernel - 1) * step
        step *= row.stride
    return samples


def ctc_weight_shapes(shape: CtcShape) -> Shapes:
    """Return the shapes of all weights by name."""
    shapes: Shapes = {}
    before = 1
    for number, layer in enumerate(shape.convolutions):
        name = f"{shape.name}.feature_extractor.conv_layers.{number}"
        shapes[f"{name}.conv.weight"] = (layer.width, before, layer.kernel)
        if shape.has_bias:
            shapes[f"{name}.conv.bias"] = (layer.width,)
        if shape.norm == LAYER or number == 0:
            _add_norm(shapes, f"{name}.layer_norm", layer.width)
        before = layer.width
    projection = f"{shape.name}.feature_projection"
    if shape.norms_features:
        _add_norm(shapes, f"{projection}.layer_norm", before)
    _add_linear(shapes, f"{projection}.projection", before, shape.width)
    length, direction = shape.weight_norm
    inner = shape.width // shape.place_groups
    shapes[length] = (1, 1, shape.place_kernel)
    shapes[direction] = (shape.width, inner, shape.place_kernel)
    shapes[f"{shape.encoder}.pos_conv_embed.conv.bias"] = (shape.width,)
    _add_norm(shapes, f"{shape.encoder}.layer_norm", shape.width)
    for number in range(shape.layers):
        _add_layer(shapes, f"{shape.encoder}.layers.{number}", shape)
    _add_linear(shapes, "lm_head", shape.width, shape.vocabulary)
    return shapes


def _add_layer(shapes: Shapes, name: str, shape: CtcShape) -> None:
    width = shape.width
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        _add_linear(shapes, f"{name}.attention.{projection}", width, width)
    _add_norm(shapes, f"{name}.layer_norm", width)
    forward = f"{name}.feed_forward"
    _add_linear(shapes, f"{forward}.intermediate_dense", width, shape.inner)
    _add_linear(shapes, f"{forward}.output_dense", shape.inner, width)
    _add_norm(shapes, f"{name}.final_layer_norm", width)


def _add_norm(shapes: Shapes, name: str, width: int) -> None:
    shapes[f"{name}.weight"] = (width,)
    shapes[f"{name}.bias"] = (width,)


def _add_linear(shapes: Shapes, name: str, before: int, after: int) -> None:
    shapes[f"{name}.weight"] = (after, before)
    shapes[f"{name}.bias"] = (after,)
