"""PyTorch to Core ML by coremltools.

The package is written on any system, but runs on Apple's only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import write_variant_answers
from pocketserve_lab.convert.tools.sources.pytorch_source import (
    PytorchModel,
    load_pytorch,
)

CONVERTER = Converter(
    name="coremltools",
    sources=("torch", "torchscript", "ptl"),
    kind="coreml",
    module="coreml",
    quantize=("none", "fp16"),
    environment="coremltools",
)

MOST_ROWS = 64
"""Rows of a program whose number the client chooses: Core ML needs a limit."""

_OPERATOR = re.compile(r"op(?:erator)?s?[^'\"]{0,40}['\"](\w+)['\"]")


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the package ``request.output``, an ML program.

    It runs on iOS 15 and macOS 12 or newer.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    import coremltools as ct
    import torch

    source = load_pytorch(torch, request)
    precision = ct.precision.FLOAT32
    if request.quantize == "fp16":
        precision = ct.precision.FLOAT16
    try:
        traced = _traced(torch, source)
        package = ct.convert(
            traced,
            inputs=_inputs(ct, source),
            outputs=_outputs(ct, request),
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS15,
            compute_precision=precision,
            skip_model_load=True,
        )
        package.save(str(request.output))
    # The tool's errors have no common class.
    except Exception as error:
        raise _refusal(request, error) from error
    answer = partial(_answer, torch, traced, source)
    notes = ("it runs on macOS and iOS only, so its answers were not compared here",)
    return ConversionOutcome(
        CONVERTER.name,
        version("coremltools"),
        {"precision": precision.value},
        variant_answers=write_variant_answers(request, answer),
        notes=notes,
    )


def _traced(torch: Any, source: PytorchModel) -> Any:
    module = source.module
    if isinstance(module, torch.jit.ScriptModule):
        return module
    with torch.inference_mode():
        return torch.jit.trace(module, source.values, check_trace=False, strict=False)


def _answer(
    torch: Any, traced: Any, source: PytorchModel, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the traced module on a shape that the package takes.

    The package itself runs on Apple's systems only. Its sizes are fixed, apart from the
    number of rows.

    Raises:
        ValueError, RuntimeError: it does not take the shape.
    """
    values = []
    for example in source.examples:
        value = torch.from_numpy(inputs[example.name])
        first = 1 if example.shape[:1] == (-1,) else 0
        if value.shape[first:] != example.value.shape[first:]:
            raise ValueError("the package has another size")
        values.append(value)
    try:
        result = traced(*values)
        results = result if isinstance(result, (tuple, list)) else (result,)
        arrays = [value.detach().numpy() for value in results]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"the module answers with other values: {error}") from error
    return {str(number): array for number, array in enumerate(arrays)}


def _inputs(ct: Any, source: PytorchModel) -> list[Any]:
    inputs = []
    for example in source.examples:
        shape, dtype = _shape(ct, example), _dtype(example)
        inputs.append(ct.TensorType(name=example.name, shape=shape, dtype=dtype))
    return inputs


def _outputs(ct: Any, request: ConversionRequest) -> list[Any] | None:
    outputs = [ct.TensorType(name=tensor.name) for tensor in request.outputs]
    return outputs or None


def _shape(ct: Any, example: Any) -> Any:
    sizes = example.value.shape
    if example.shape[:1] == (-1,):
        return ct.Shape((ct.RangeDim(1, MOST_ROWS), *sizes[1:]))
    return ct.Shape(tuple(sizes))


def _dtype(example: Any) -> Any:
    import numpy as np

    return np.int32 if "int" in str(example.value.dtype) else np.float32


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    operator = _OPERATOR.search(str(error))
    reason = f"Core ML has no operator for {operator[1]}" if operator else ""
    return request.refusal(
        CONVERTER.name, str(error), reason, "--to tflite, which runs on iOS, too"
    )
