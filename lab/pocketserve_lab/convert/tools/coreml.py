"""PyTorch to Core ML by coremltools: the package is written anywhere, and runs on Apple's systems only."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.sources.pytorch_source import load_pytorch

CONVERTER = Converter(
    name="coremltools",
    sources=("torch", "torchscript", "ptl"),
    kind="coreml",
    module="coreml",
    quantize=("none", "fp16"),
    environment="coremltools",
)

MOST_ROWS = 64
"""Rows that a program takes at once where the caller chooses: Core ML wants a bound."""

_OPERATOR = re.compile(r"op(?:erator)?s?[^'\"]{0,40}['\"](\w+)['\"]")


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the package ``request.output``, an ML program for iOS 15 and macOS 12 or newer.

    Raises:
        ConversionError: the tool refuses the model; the sentence names the operator where the tool does.
    """
    import coremltools as ct
    import torch

    source = load_pytorch(torch, request)
    precision = (
        ct.precision.FLOAT16 if request.quantize == "fp16" else ct.precision.FLOAT32
    )
    inputs = [
        ct.TensorType(name=e.name, shape=_shape(ct, e), dtype=_dtype(e))
        for e in source.examples
    ]
    try:
        with torch.inference_mode():
            module = source.module
            if not isinstance(module, torch.jit.ScriptModule):
                module = torch.jit.trace(
                    module, source.values, check_trace=False, strict=False
                )
        package = ct.convert(
            module,
            inputs=inputs,
            outputs=[ct.TensorType(name=tensor.name) for tensor in request.outputs]
            or None,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS15,
            compute_precision=precision,
            skip_model_load=True,
        )
        package.save(str(request.output))
    except Exception as error:  # the tool's errors have no common class
        raise _refusal(request, error) from error
    notes = ("it runs on macOS and iOS only, so its answers were not compared here",)
    return ConversionOutcome(
        CONVERTER.name,
        version("coremltools"),
        {"precision": precision.value},
        notes=notes,
    )


def _shape(ct: Any, example: Any) -> Any:
    sizes = example.value.shape
    free = example.shape[:1] == (-1,)
    return (
        ct.Shape((ct.RangeDim(1, MOST_ROWS), *sizes[1:]))
        if free
        else ct.Shape(tuple(sizes))
    )


def _dtype(example: Any) -> Any:
    import numpy as np

    return np.int32 if "int" in str(example.value.dtype) else np.float32


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    operator = _OPERATOR.search(str(error))
    reason = f"Core ML has no operator for {operator[1]}" if operator else ""
    return request.refusal(
        CONVERTER.name, str(error), reason, "--to tflite, which runs on iOS, too"
    )
