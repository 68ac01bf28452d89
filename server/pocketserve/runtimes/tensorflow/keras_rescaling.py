"""Find the layers at the start of a Keras model that rescale its pixels.

Source: keras-team/keras v3.14, layers/preprocessing and applications.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.metadata import ModelMetadata
from pocketserve.runtimes.rescaling import pixels_unchanged, takes_pixels
from pocketserve.runtimes.tensorflow.keras_config import keras_configuration

_FAULTS: Final = (
    OSError,
    KeyError,
    ValueError,
    OverflowError,
    RuntimeError,  # also of a file in an encrypted archive, or of too deep nesting
    zipfile.BadZipFile,
)

MAX_DEPTH = 8
"""Limit of models inside models."""

_MODELS: Final = ("Functional", "Model", "Sequential")
_NEUTRAL: Final = ("CenterCrop", "Dropout", "GaussianNoise", "InputLayer", "Resizing")


def read_rescaling(path: Path) -> ModelMetadata | None:
    """Return the metadata of a model that rescales pixels itself; None for others."""
    try:
        config = keras_configuration(path)
        layer = _first_layer(config, 0)
        if layer is None or not _rescales(layer):
            return None
    except ImportError:  # without h5py, there is no TensorFlow either
        return None
    except _FAULTS as error:
        raise DamagedFileError(
            f"{path.name} has no readable configuration: {error}"
        ) from None
    return pixels_unchanged()


def _first_layer(model: Mapping[str, Any], depth: int) -> Mapping[str, Any] | None:
    """Return the first layer that changes the range of its input.

    A model that branches before, or has several inputs, has none: the layer that
    branches stands for it, unless it is the outermost one.
    """
    layers = _layers_of(model)
    if layers is None or depth > MAX_DEPTH:
        if depth == 0:
            return None
        return model
    names = [_class_of(layer) for layer in layers]
    if names.count("InputLayer") > 1:
        return model
    sources = [_sources_of(layer) for layer in layers]
    uses = Counter(chain.from_iterable(sources))
    for layer, name, layer_sources in zip(layers, names, sources, strict=True):
        if any(uses[source] > 1 for source in layer_sources):
            return model
        if name in _MODELS:
            inner = _first_layer(layer, depth + 1)
            if inner is not None:
                return inner
        elif name not in _NEUTRAL and not name.startswith("Random"):
            if isinstance(layer, Mapping):
                return layer
            return model
    return None


def _layers_of(model: Mapping[str, Any]) -> list[Any] | None:
    """Return a model's layers, or None if they are no list."""
    config = model.get("config")
    if not isinstance(config, Mapping):
        return None
    layers = config.get("layers")
    if not isinstance(layers, list):
        return None
    return layers


def _sources_of(layer: object) -> set[str]:
    """Return the names of the layers whose output a layer takes.

    Keras 2 lists ``[name, node, tensor, …]``, Keras 3 the same in ``keras_history``. A
    chain of layers (Sequential) lists none.
    """
    names: set[str] = set()
    pending = [layer.get("inbound_nodes")] if isinstance(layer, Mapping) else []
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
            is_place = len(item) > 2 and type(item[1]) is int
            if is_place and isinstance(item[0], str):
                names.add(item[0])
    return names


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
        value = None
        if isinstance(inner, Mapping):
            value = inner.get("value")
    items: list[Any] = [value]
    if isinstance(value, list):
        items = value
    while len(items) == 1 and isinstance(items[0], list):
        items = items[0]
    if all(type(item) in (int, float) for item in items):
        return [float(item) for item in items]
    return []
