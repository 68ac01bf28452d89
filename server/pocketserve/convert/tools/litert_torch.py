"""PyTorch to TFLite by litert-torch, float or, by ai-edge-quantizer, quantised.

Inputs keep their layout: a model that takes NCHW takes it in TFLite, too, and has a transposition at its door.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest, Converter
from pocketserve.convert.tools.ai_edge_quantizer import quantize_tflite
from pocketserve.convert.tools.torch_module import FORMATS, load_torch_model

CONVERTER = Converter(
    name="litert-torch",
    sources=FORMATS,
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

    source = load_torch_model(request)
    args, kwargs = source.arguments(request)
    try:
        model = litert_torch.convert(_exportable(source.module, args, kwargs), args, kwargs)
    except Exception as error:  # any of PyTorch's, JAX's and MLIR's
        raise _refusal(request, error) from error
    outcome = ConversionOutcome(CONVERTER.name, version("litert-torch"), {}, *_names(request, bool(kwargs)))
    if request.quantize == "none":
        model.export(str(request.output))
        return outcome
    plain = request.output.with_name(f"{request.output.name}.plain")
    try:
        model.export(str(plain))
        quantized = quantize_tflite(request, plain)
    finally:
        plain.unlink(missing_ok=True)
    tool = f"{CONVERTER.name} {outcome.version}, {quantized.tool}"
    return ConversionOutcome(tool, quantized.version, quantized.options, outcome.inputs, outcome.outputs)


def _exportable(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a module that can be exported: a scripted one is not, but the graph of its operators is."""
    import torch

    if not isinstance(module, torch.jit.ScriptModule):
        return module
    from torch._export.converter import TS2EPConverter

    return TS2EPConverter(module, args, kwargs).convert().module()


def _names(request: ConversionRequest, by_name: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the file's names of the source's inputs and outputs; the tool counts what it has no names for."""
    inputs = {t.name: t.name if by_name else f"args_{at}" for at, t in enumerate(request.inputs)}
    outputs = {tensor.name: f"output_{at}" for at, tensor in enumerate(request.outputs)}
    return inputs, outputs


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    text = f"{type(error).__name__}: {error}"
    operators = sorted(set(_OPERATOR.findall(text)))
    if "DataDependent" in text or "GuardOnDataDependent" in text:
        reason = "its shapes depend on its inputs' values, which TFLite has no operators for"
    elif operators:
        reason = f"the operator {operators[0]} has no counterpart"
    else:
        reason = " ".join(text.split())[:300]
    return ConversionError(
        f"{CONVERTER.name} cannot convert {request.source.name}: {reason}", detail=text, nearest=_NEAREST
    )
