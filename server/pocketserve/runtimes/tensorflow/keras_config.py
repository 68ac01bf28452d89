"""Check that a Keras file's configuration only names safe classes.

The configuration names classes and functions, with their modules, that Keras looks up and calls. Keras refuses those
that are known to be harmful; here only those are allowed that are known to be harmless. Left out are layers that hold
code (``Lambda``), read a model from a path (``TFSMLayer``) or wrap another framework, and functions that fetch or write
files, as those of ``keras.applications`` and ``keras.utils`` do. A module must be one of those that hold such classes:
Keras imports it. Source of the format: ``keras.saving.deserialize_keras_object``, "Arguments".
"""

from __future__ import annotations

import importlib
import json
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pocketserve.runtimes.model_files import dictionaries
from pocketserve.runtimes.name_lists import read_names

_CLASSES = read_names(__package__, "keras_classes.txt")
LAYERS, OTHERS = _CLASSES["layers"], _CLASSES["others"]
CLASSES = LAYERS | OTHERS

_VALUES = re.compile(
    "__(keras_tensor|tensor|numpy|bytes|ellipsis|slice|tuple)__|TensorShape"
)
"""Names of plain values."""

_KINDS = "initializers|regularizers|constraints|losses|metrics|optimizers|quantizers|dtype_policies|random"
_MODULES = re.compile(rf"keras(\.src)?(\.(layers|models|{_KINDS})(\.\w+)*)?")
_OPERATIONS = re.compile(
    r"keras(\.src)?\.ops(\.(numpy|math|nn|core|image|linalg|einops))?"
)
_FUNCTIONS = re.compile(rf"builtins|keras\.(activations|{_KINDS})")


NEUTRAL_OPTIONS: Mapping[str, tuple[Collection[str], object]] = {
    "groups": (
        (
            *(
                "DepthwiseConv1D",
                "DepthwiseConv2D",
                "SeparableConv1D",
                "SeparableConv2D",
            ),
            *("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        ),
        1,
    ),
    "time_major": (("LSTM", "GRU", "SimpleRNN", "RNN"), False),
}
"""Options of Keras 2 that Keras 3 rejects: layers and the neutral value.

Source: ``get_config`` of ``Conv`` and ``RNN`` in keras-team/keras v2.15.0, keras/layers.
"""


def keras_configuration(path: Path) -> dict[str, Any]:
    """Return a file's configuration; empty if it has none."""
    if path.suffix == ".keras":  # Keras goes by the suffix
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
    else:
        with importlib.import_module("h5py").File(path, "r") as file:
            config = json.loads(file.attrs.get("model_config", "null"))
    if not isinstance(config, dict):
        return {}
    if path.suffix == ".keras":
        config |= {"compile_config": None}  # as it is loaded
    return config


def layers_with_neutral_options(config: Mapping[str, Any]) -> set[str]:
    """Return the layer classes that have a neutral option of Keras 2."""
    names = set()
    for item in dictionaries(config):
        options = item.get("config")
        if (
            isinstance(options, dict)
            and without_neutral_options(str(item.get("class_name")), options) != options
        ):
            names.add(str(item["class_name"]))
    return names


def without_neutral_options(layer: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's options without neutral ones of Keras 2."""
    remaining = dict(options)
    for option, (layers, neutral) in NEUTRAL_OPTIONS.items():
        if (
            layer in layers
            and option in remaining
            and type(remaining[option]) is type(neutral)
            and remaining[option] == neutral
        ):
            del remaining[option]
    return remaining


def check_config(path: Path) -> None:
    """Raise ``ValueError`` if a configuration names anything else."""
    for item in dictionaries(keras_configuration(path)):
        if isinstance(item.get("vocabulary"), str):
            raise ValueError("Not allowed: a vocabulary that lies in another file")
        if "class_name" in item:
            _check_class(item["class_name"], item.get("module"), item.get("config"))


def _check_function(module: Any, config: Any) -> None:
    is_known = isinstance(module, str) and (
        _FUNCTIONS.fullmatch(module) or _OPERATIONS.fullmatch(module)
    )
    if not is_known:
        raise ValueError(f"Not allowed: the function {config!r:.80} of {module!r:.80}")


def _check_class(name: Any, module: Any, config: Any) -> None:
    if name == "function":
        _check_function(module, config)
        return
    if name in ("Lambda", "__lambda__"):
        raise ValueError("Not allowed: Lambda")
    if (
        not isinstance(name, str)
        or not isinstance(module, str | None)
        or str(module).endswith("_test")
    ):
        raise ValueError(f"Not allowed: a class of {module!r:.80}")
    if _VALUES.fullmatch(name) or _OPERATIONS.fullmatch(module or ""):
        return
    if name not in CLASSES or not _MODULES.fullmatch(
        "keras" if module is None else module
    ):
        raise ValueError(f"Could not locate class '{name:.80}'.")
