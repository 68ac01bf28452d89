"""PyTorch to TFLite by litert-torch; ai-edge-quantizer quantises.

Inputs keep their layout: a model that takes NCHW takes it in TFLite, too, and
transposes it first.
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
from pocketserve_lab.convert.tools.sources.pytorch_source import (
    PytorchModel,
    load_pytorch,
)

CONVERTER = Converter(
    name="litert-torch",
    sources=("torch", "pt2", "torchscript", "ptl"),
    kind="tflite",
    module="litert_torch",
    quantize=("none", "dynamic", "int8", "int16x8"),
    environment="litert-torch",
    single=True,
    wishes=("max_loss", "exclude"),
)

_OPERATOR = re.compile(r"(?:aten|torchvision|prims|quantized)[.:]+\w+")
_NEAREST = "--to onnx, --to torchscript or --to executorch"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output``, for one row at a time.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    import litert_torch
    import torch

    source = load_pytorch(torch, request)
    model = _converted(litert_torch, torch, source, request)
    inputs = {}
    for number, example in enumerate(source.examples):
        inputs[example.name] = f"args_{number}"
    outputs = {}
    for number, tensor in enumerate(request.outputs):
        outputs[tensor.name] = f"output_{number}"
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
        notes=quantized.notes,
        float_bytes=quantized.float_bytes,
    )


def _converted(
    litert_torch: Any, torch: Any, source: PytorchModel, request: ConversionRequest
) -> Any:
    """Return the tool's model of a module, traced with one row."""
    arguments = []
    for example in source.examples:
        is_free = example.shape[:1] == (-1,)
        arguments.append(example.value[:1] if is_free else example.value)
    values = tuple(arguments)
    tensors = (*request.inputs, *request.outputs)
    has_int64 = any(tensor.datatype == "INT64" for tensor in tensors)
    try:
        module = _exportable(torch, source.module, values)
        return litert_torch.convert(module, values, enable_x64=has_int64)
    # Errors of PyTorch, JAX and MLIR have no common class.
    except Exception as error:
        raise _refusal(request, error) from error


def _exportable(torch: Any, module: Any, values: tuple[Any, ...]) -> Any:
    """Return a module that can be exported.

    A scripted one cannot, but the graph of its operators can.
    """
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
