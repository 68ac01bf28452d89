"""PyTorch to TFLite by litert-torch, float or, by ai-edge-quantizer, quantised.

Inputs keep their layout: a model that takes NCHW takes it in TFLite, too, and has a transposition at its door.
"""

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
from pocketserve_lab.convert.tools.ai_edge_quantizer import quantize_tflite
from pocketserve_lab.convert.tools.sources.pytorch_source import load_pytorch

CONVERTER = Converter(
    name="litert-torch",
    sources=("torch", "pt2", "torchscript", "ptl"),
    kind="tflite",
    module="litert_torch",
    quantize=("none", "dynamic", "int8", "int16x8"),
    environment="litert-torch",
    single=True,
)

_OPERATOR = re.compile(r"(?:aten|torchvision|prims|quantized)[.:]+\w+")
_NEAREST = "--to onnx, --to torchscript or --to executorch"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output``, for one row at a time.

    Raises:
        ConversionError: the tool refuses it; the sentence names the operator where the tool does.
    """
    import litert_torch
    import torch

    source = load_pytorch(torch, request)
    values = tuple(
        e.value[:1] if e.shape[:1] == (-1,) else e.value for e in source.examples
    )
    wide = any(
        tensor.datatype == "INT64" for tensor in (*request.inputs, *request.outputs)
    )
    try:
        model = litert_torch.convert(
            _exportable(torch, source.module, values), values, enable_x64=wide
        )
    except Exception as error:  # any of PyTorch's, JAX's and MLIR's
        raise _refusal(request, error) from error
    inputs = {example.name: f"args_{at}" for at, example in enumerate(source.examples)}
    outputs = {tensor.name: f"output_{at}" for at, tensor in enumerate(request.outputs)}
    tool = version("litert-torch")
    if request.quantize == "none":
        model.export(str(request.output))
        return ConversionOutcome(CONVERTER.name, tool, inputs=inputs, outputs=outputs)
    plain = request.output.with_name(f"{request.output.name}.plain")
    try:
        model.export(str(plain))
        quantized = quantize_tflite(request, plain, inputs)
    finally:
        plain.unlink(missing_ok=True)
    options = {**quantized.options, quantized.tool: quantized.version}
    return ConversionOutcome(
        CONVERTER.name,
        tool,
        options,
        inputs,
        outputs,
        float_bytes=quantized.float_bytes,
    )


def _exportable(torch: Any, module: Any, values: tuple[Any, ...]) -> Any:
    """Return a module that can be exported: a scripted one is not, but the graph of its operators is."""
    if not isinstance(module, torch.jit.ScriptModule):
        return module
    from torch._export.converter import TS2EPConverter

    return TS2EPConverter(module, values).convert().module()


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    text = f"{type(error).__name__}: {error}"
    operators = sorted(set(_OPERATOR.findall(text)))
    reason = f"the operator {operators[0]} has no counterpart" if operators else ""
    if "DataDependent" in text:
        reason = (
            "its shapes depend on its inputs' values, which TFLite has no operators for"
        )
    return request.refusal(CONVERTER.name, text, reason, _NEAREST)
