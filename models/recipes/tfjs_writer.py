"""Writes a Keras 3 model as a TensorFlow.js layers model: a `model.json` and one file of weights. Needs Keras only.

The converter of the tensorflowjs package does not read what Keras 3 saves. What TensorFlow.js loads is the older
configuration of Keras 2, of which it needs a few keys per layer. Only chains of the layers below are written.
"""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

SHARD = "weights.bin"

# The keys that decide what a layer computes. TensorFlow.js has defaults for all others.
KEYS: dict[str, tuple[str, ...]] = {
    "InputLayer": (),
    "Conv2D": (
        "filters",
        "kernel_size",
        "strides",
        "padding",
        "data_format",
        "dilation_rate",
        "activation",
        "use_bias",
    ),
    "MaxPooling2D": ("pool_size", "strides", "padding", "data_format"),
    "Flatten": ("data_format",),
    "Dense": ("units", "activation", "use_bias"),
}


def write_layers_model(model: keras.Model, folder: Path) -> None:
    """Writes the folder; two runs give the same bytes."""
    folder.mkdir(exist_ok=True)
    weights = [
        (f"{layer.name}/{variable.name}", np.ascontiguousarray(variable.numpy(), "<f4"))
        for layer in model.layers
        for variable in layer.weights
    ]
    specs = [{"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in weights]
    document = {
        "format": "layers-model",
        "generatedBy": f"keras v{keras.__version__}",
        "convertedBy": "models/recipes/tfjs_writer.py",
        "modelTopology": {"keras_version": "2.0.0", "backend": "tensorflow", "model_config": _topology(model)},
        "weightsManifest": [{"paths": [SHARD], "weights": specs}],
    }
    (folder / "model.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / SHARD).write_bytes(b"".join(array.tobytes() for _, array in weights))


def _topology(model: keras.Model) -> dict[str, Any]:
    names = [layer.name for layer in model.layers]
    previous = [None, *names[:-1]]
    layers = [_layer(layer, before) for layer, before in zip(model.layers, previous, strict=True)]
    ends = {"input_layers": [[names[0], 0, 0]], "output_layers": [[names[-1], 0, 0]]}
    return {"class_name": "Functional", "config": {"name": model.name, "layers": layers, **ends}}


def _layer(layer: keras.Layer, before: str | None) -> dict[str, Any]:
    kind = type(layer).__name__
    assert kind in KEYS, f"{kind} is not among the layers that this writer knows"
    known = layer.get_config()
    config = {"name": layer.name, "dtype": "float32", **{key: known[key] for key in KEYS[kind]}}
    if before is None:
        config["batch_input_shape"] = known["batch_shape"]
    else:
        # Keras tells the layer in front; in a model that branches it would not be the one before in the list.
        assert layer.input._keras_history.operation.name == before, f"{layer.name} does not follow {before}"
    inbound = [] if before is None else [[[before, 0, 0, {}]]]
    return {"class_name": kind, "name": layer.name, "config": config, "inbound_nodes": inbound}
