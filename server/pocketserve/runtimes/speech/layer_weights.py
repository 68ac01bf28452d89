"""The sizes of a Whisper model from ``config.json``, and the shapes of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pocketserve.runtimes.speech.torch_weights import Shapes, config_fault

MAX_SIZE: Final = 1 << 20
MAX_LAYERS: Final = 256
KERNEL: Final = 3  # of both convolutions


class WhisperShape(NamedTuple):
    """The sizes of a model.

    Attributes:
        bins: of the spectrogram.
        source_positions: of the encoder's output, two frames each.
        target_positions: of the tokens.
        encoder_forward, decoder_forward: widths of the layers' inner parts.
    """

    width: int
    bins: int
    vocabulary: int
    source_positions: int
    target_positions: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_forward: int
    decoder_forward: int


_KEYS: Final = (
    *("d_model", "num_mel_bins", "vocab_size"),
    *("max_source_positions", "max_target_positions"),
    *("encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim"),
)
"""The keys of ``config.json`` in the order of WhisperShape."""


def read_shape(config: Mapping[str, Any]) -> WhisperShape:
    """Read the sizes.

    Raises:
        ModelLoadError: a key is missing or invalid, or the model differs from Whisper.
    """
    shape = WhisperShape(*read_sizes(config, _KEYS))
    if shape.width % shape.encoder_heads or shape.width % shape.decoder_heads:
        raise config_fault("d_model is not a multiple of the number of attention heads")
    if config.get("activation_function", "gelu") != "gelu":
        raise config_fault("activation_function is not gelu")
    if config.get("scale_embedding"):
        raise config_fault("scale_embedding is true, which no Whisper model has")
    return shape


def read_sizes(config: Mapping[str, Any], keys: Sequence[str]) -> list[int]:
    """Return the named sizes in their order.

    Raises:
        ModelLoadError: one is missing or invalid.
    """
    sizes = []
    for key in keys:
        value = config.get(key)
        limit = MAX_SIZE
        if key.endswith("_layers"):
            limit = MAX_LAYERS
        if type(value) is not int or not 0 < value <= limit:
            raise config_fault(f"{key} is not a whole number from 1 to {limit}")
        sizes.append(value)
    return sizes


def weight_shapes(shape: WhisperShape) -> Shapes:
    """Return the shapes of all weights by name."""
    width = shape.width
    encoder, decoder = "model.encoder", "model.decoder"
    shapes: Shapes = {
        f"{encoder}.conv1.weight": (width, shape.bins, KERNEL),
        f"{encoder}.conv1.bias": (width,),
        f"{encoder}.conv2.weight": (width, width, KERNEL),
        f"{encoder}.conv2.bias": (width,),
        f"{encoder}.embed_positions.weight": (shape.source_positions, width),
        f"{decoder}.embed_positions.weight": (shape.target_positions, width),
        f"{decoder}.embed_tokens.weight": (shape.vocabulary, width),
    }
    _add_norm(shapes, f"{encoder}.layer_norm", width)
    _add_norm(shapes, f"{decoder}.layer_norm", width)
    for layer in range(shape.encoder_layers):
        name = f"{encoder}.layers.{layer}"
        _add_attention(shapes, f"{name}.self_attn", width)
        _add_forward(shapes, name, width, shape.encoder_forward)
    for layer in range(shape.decoder_layers):
        name = f"{decoder}.layers.{layer}"
        _add_attention(shapes, f"{name}.self_attn", width)
        _add_attention(shapes, f"{name}.encoder_attn", width)
        _add_forward(shapes, name, width, shape.decoder_forward)
    return shapes


def _add_norm(shapes: Shapes, name: str, width: int) -> None:
    shapes[f"{name}.weight"] = (width,)
    shapes[f"{name}.bias"] = (width,)


def _add_attention(shapes: Shapes, name: str, width: int) -> None:
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        shapes[f"{name}.{projection}.weight"] = (width, width)
        if projection != "k_proj":
            shapes[f"{name}.{projection}.bias"] = (width,)
    _add_norm(shapes, f"{name}_layer_norm", width)


def _add_forward(shapes: Shapes, name: str, width: int, inner: int) -> None:
    shapes[f"{name}.fc1.weight"] = (inner, width)
    shapes[f"{name}.fc1.bias"] = (inner,)
    shapes[f"{name}.fc2.weight"] = (width, inner)
    shapes[f"{name}.fc2.bias"] = (width,)
    _add_norm(shapes, f"{name}.final_layer_norm", width)
