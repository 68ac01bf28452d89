"""Read the intermediate results of a Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.layer_outputs import LayerOutput, RunLayers
from pocketserve.runtimes.tensorflow.keras import load_keras_model
from pocketserve.tensors import Array


def open_keras_layers(source: ModelSource) -> RunLayers:
    """Open the model with the output of each layer that has one, in order.

    Raises:
        ModelLoadError: as for serving.
    """
    _, keras, model = load_keras_model(source)
    layers = [
        (layer, output) for layer in model.layers for output in _output_of(keras, layer)
    ]
    whole = keras.Model(model.inputs, [output for _, output in layers])

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        results = whole(
            [inputs[tensor.name] for tensor in model.inputs], training=False
        )
        return [
            LayerOutput(
                layer.name, type(layer).__name__, np.asarray(result, np.float32)
            )
            for (layer, _), result in zip(layers, results, strict=True)
        ]

    return run


def _output_of(keras: Any, layer: Any) -> list[Any]:
    """Return a layer's output.

    It is empty for inputs and for layers with several uses or several tensors.
    """
    if isinstance(layer, keras.layers.InputLayer):
        return []
    try:
        output = layer.output
    except (AttributeError, ValueError):
        return []
    if hasattr(output, "shape") and "float" in str(output.dtype):
        return [output]
    return []
