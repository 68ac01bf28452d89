"""Intermediate results of a TFLite file, from an interpreter that keeps all tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.layer_outputs import LayerOutput, RunLayers
from pocketserve.tensors import Array

from .interpreters import PACKAGES, import_first
from .tensors import main_entry


def open_tflite_layers(source: ModelSource) -> RunLayers:
    """Open the file without delegates: XNNPACK would replace operators, and keeps nothing between them.

    Raises:
        ModelLoadError: this package does not tell its operators.
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
            f"{title} does not tell a model's operators; pip install ai-edge-litert"
        )
    entry = main_entry(interpreter)

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        for tensor in entry.inputs:
            array = tensor.prepare(inputs[tensor.spec.name])
            interpreter.resize_tensor_input(tensor.number, array.shape, strict=True)
        interpreter.allocate_tensors()
        for tensor in entry.inputs:
            interpreter.set_tensor(
                tensor.number, tensor.prepare(inputs[tensor.spec.name])
            )
        interpreter.invoke()
        tensors = {
            details["index"]: details for details in interpreter.get_tensor_details()
        }
        operators = list_operators()
        rounded = {index for index, details in tensors.items() if _is_rounded(details)}
        rounded |= _outputs(
            [op for op in operators if op["op_name"] == "DEQUANTIZE"], rounded
        )
        rounded |= _outputs(operators, rounded)
        outputs = []
        for operator in operators:
            for index in operator["outputs"]:
                layer = _layer(
                    interpreter, tensors.get(int(index)), operator["op_name"]
                )
                outputs += (
                    [layer._replace(quantized=int(index) in rounded)]
                    if layer is not None
                    else []
                )
        return outputs

    return run


def _is_rounded(details: Any) -> bool:
    """Return whether a tensor holds integers that stand for real numbers."""
    return (
        np.dtype(details["dtype"]).kind in "iu"
        and len(details["quantization_parameters"]["scales"]) > 0
    )


def _outputs(operators: Sequence[Any], inputs: set[int]) -> set[int]:
    """Return the tensors that operators make of some inputs."""
    return {
        int(index)
        for each in operators
        if not inputs.isdisjoint(each["inputs"])
        for index in each["outputs"]
    }


def _layer(interpreter: Any, details: Any, operator: str) -> LayerOutput | None:
    """Return a tensor as real numbers; None for one that holds none, or was not kept."""
    if details is None:
        return None
    try:
        array = np.array(interpreter.get_tensor(details["index"]))
    except ValueError:  # a temporary one, or one of a branch that did not run
        return None
    scales = details["quantization_parameters"]["scales"]
    if array.dtype.kind == "f":
        return LayerOutput(details["name"], operator, array)
    if array.dtype.kind not in "iu" or len(scales) != 1:
        return None
    zero = int(details["quantization_parameters"]["zero_points"][0])
    return LayerOutput(
        details["name"], operator, (array.astype(np.float32) - zero) * scales[0]
    )
