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
    layers = []
    outputs = []
    for layer in model.layers:
        for output in _output_of(keras, layer):
            layers.append(layer)
            outputs.append(output)
    whole = keras.Model(model.inputs, outputs)

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        values = [inputs[tensor.name] for tensor in model.inputs]
        results = []
        for layer, result in zip(layers, whole(values, training=False), strict=True):
            array = np.asarray(result, np.float32)
            results.append(LayerOutput(layer.name, type(layer).__name__, array))
        return results

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
