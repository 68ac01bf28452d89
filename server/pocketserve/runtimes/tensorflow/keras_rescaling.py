"""Find the layers at the start of a Keras model that rescale its pixels.

Source: keras-team/keras v3.14, layers/preprocessing and applications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.metadata import ModelMetadata
from pocketserve.runtimes.rescaling import pixels_unchanged, takes_pixels
from pocketserve.runtimes.tensorflow.keras_config import keras_configuration

MAX_DEPTH = 8
"""Limit of models inside models."""

_MODELS: Final = ("Functional", "Model", "Sequential")
_NEUTRAL: Final = ("CenterCrop", "Dropout", "GaussianNoise", "InputLayer", "Resizing")


def read_rescaling(path: Path) -> ModelMetadata | None:
    """Return the metadata of a model that rescales pixels itself; None for others."""
    try:
        config = keras_configuration(path)
    except ImportError:  # without h5py, there is no TensorFlow either
        return None
    except (OSError, KeyError, ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{path.name} has no readable configuration: {error}"
        ) from None
    for layer in _first_layers(config, 0):
        return pixels_unchanged() if _rescales(layer) else None
    return None


def _first_layers(model: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the layers of a chain, from the input on, without those that keep the range.

    It ends where the model branches or has several inputs.
    """
    config = model.get("config")
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if not isinstance(layers, list) or depth > MAX_DEPTH:
        return
    inputs = [layer for layer in layers if _class_of(layer) == "InputLayer"]
    if len(inputs) > 1:
        return
    for layer in layers:
        name = _class_of(layer)
        if name in _MODELS:
            yield from _first_layers(layer, depth + 1)
        elif name not in _NEUTRAL and not name.startswith("Random"):
            yield layer


def _class_of(layer: object) -> str:
    return str(layer.get("class_name")) if isinstance(layer, Mapping) else ""


def _rescales(layer: Mapping[str, Any]) -> bool:
    """Return whether a layer turns pixels from 0 to 255 into smaller numbers."""
    options = layer.get("config")
    if not isinstance(options, Mapping):
        return False
    name = _class_of(layer)
    if name == "Rescaling":
        scales = _numbers(options.get("scale"))
        if not scales or 0 in scales:
            return False
        return takes_pixels((), [1 / scale for scale in scales])
    if name != "Normalization" or options.get("invert"):
        return False
    mean = _numbers(options.get("mean"))
    variance = _numbers(options.get("variance"))
    return takes_pixels(mean, [abs(value) ** 0.5 for value in variance])


def _numbers(value: object) -> list[float]:
    """Return the numbers of a possibly nested list; empty if there are others."""
    if isinstance(value, Mapping):  # a serialized array
        inner = value.get("config")
        value = inner.get("value") if isinstance(inner, Mapping) else None
    items: list[Any] = value if isinstance(value, list) else [value]
    while len(items) == 1 and isinstance(items[0], list):
        items = items[0]
    if all(type(item) in (int, float) for item in items):
        return [float(item) for item in items]
    return []
