"""Read the intermediate results of a TFLite model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.layer_outputs import LayerOutput, RunLayers
from pocketserve.tensors import Array

from .interpreters import PACKAGES, import_first
from .tensors import GraphEntry, main_entry


def open_tflite_layers(source: ModelSource) -> RunLayers:
    """Open the file so that a run returns all intermediate results.

    No delegate is used: XNNPACK would replace operators and drop their results.

    Raises:
        ModelLoadError: the package cannot list a model's operators.
    """
    title, module = import_first(PACKAGES)
    interpreter = module.Interpreter(
        model_path=str(source.path),
        num_threads=source.threads,
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    list_operators = getattr(interpreter, "_get_ops_details", None)
    if list_operators is None:
        raise ModelLoadError(
            f"{title} cannot list a model's operators; pip install ai-edge-litert"
        )
    entry = main_entry(interpreter)

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        _invoke(interpreter, entry, inputs)
        return _read_layers(interpreter, list_operators())

    return run


def _invoke(interpreter: Any, entry: GraphEntry, inputs: Mapping[str, Array]) -> None:
    for tensor in entry.inputs:
        array = tensor.prepare(inputs[tensor.spec.name])
        interpreter.resize_tensor_input(tensor.number, array.shape, strict=True)
    interpreter.allocate_tensors()
    for tensor in entry.inputs:
        array = tensor.prepare(inputs[tensor.spec.name])
        interpreter.set_tensor(tensor.number, array)
    interpreter.invoke()


def _read_layers(interpreter: Any, operators: Sequence[Any]) -> list[LayerOutput]:
    """Return the results of all operators, in order."""
    tensors = {}
    for details in interpreter.get_tensor_details():
        tensors[details["index"]] = details
    quantized = _quantized_tensors(tensors, operators)
    layers = []
    for operator in operators:
        for output in operator["outputs"]:
            index = int(output)
            layer = _layer(interpreter, tensors.get(index), operator["op_name"])
            if layer is not None:
                layers.append(layer._replace(quantized=index in quantized))
    return layers


def _quantized_tensors(
    tensors: Mapping[int, Any], operators: Sequence[Any]
) -> set[int]:
    """Return the quantised tensors and those computed from quantised weights."""
    quantized = set()
    for index, details in tensors.items():
        if _is_quantized(details):
            quantized.add(index)
    dequantize = []
    for operator in operators:
        if operator["op_name"] == "DEQUANTIZE":
            dequantize.append(operator)
    quantized |= _outputs_from(quantized, dequantize)
    return quantized | _outputs_from(quantized, operators)


def _is_quantized(details: Any) -> bool:
    if np.dtype(details["dtype"]).kind not in "iu":
        return False
    return len(details["quantization_parameters"]["scales"]) > 0


def _outputs_from(inputs: set[int], operators: Sequence[Any]) -> set[int]:
    """Return the outputs of the operators that read any of the inputs."""
    outputs: set[int] = set()
    for operator in operators:
        if not inputs.isdisjoint(operator["inputs"]):
            outputs.update(map(int, operator["outputs"]))
    return outputs


def _layer(interpreter: Any, details: Any, operator: str) -> LayerOutput | None:
    """Return a tensor as real numbers, or None."""
    if details is None:
        return None
    try:
        array = np.array(interpreter.get_tensor(details["index"]))
    except ValueError:  # a temporary tensor, or one of a branch that did not run
        return None
    numbers = _real_numbers(array, details["quantization_parameters"])
    if numbers is None:
        return None
    return LayerOutput(details["name"], operator, numbers)


def _real_numbers(array: Array, quantization: Mapping[str, Any]) -> Array | None:
    """Return real numbers, dequantised if there is one scale; else None."""
    if array.dtype.kind == "f":
        return array
    scales = quantization["scales"]
    if array.dtype.kind not in "iu" or len(scales) != 1:
        return None
    zero = int(quantization["zero_points"][0])
    numbers: Array = (array.astype(np.float32) - zero) * scales[0]
    return numbers
