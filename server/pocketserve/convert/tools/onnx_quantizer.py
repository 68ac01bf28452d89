"""ONNX to smaller ONNX by ONNX Runtime's own tools: half floats, int8 weights, or int8 throughout after calibration.

What goes in and comes out stays float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest, Converter
from pocketserve.convert.tools.calibration import sample_inputs

CONVERTER = Converter(
    name="onnxruntime-quantization",
    sources=("onnx",),
    kind="onnx",
    module="onnx_quantizer",
    quantize=("fp16", "dynamic", "int8"),
    environment="onnx",
)

_QUANTIZED = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QLinearConv"),
        *("QLinearMatMul", "MatMulInteger", "ConvInteger", "MatMulNBits"),
    }
)
"""Operators that show that a model, or a result, computes with integers."""

_FLOAT32, _FLOAT16 = 1, 10
"""TensorProto.DataType."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output``, with its weights in the file.

    Raises:
        ConversionError: nothing in it can be made smaller, the tool refuses it, or samples are missing.
    """
    import onnx

    with tempfile.TemporaryDirectory(dir=request.output.parent) as folder:
        prepared = Path(folder) / "prepared.onnx"
        _prepare(request, prepared)
        _check_is_float(request, onnx.load(prepared, load_external_data=False))
        try:
            options = _WRITERS[request.quantize](request, prepared)
        except ConversionError:
            raise
        except Exception as error:  # the tool raises whatever comes
            raise _refusal(request, error) from error
    if request.quantize != "int8" and request.output.stat().st_size >= request.source.stat().st_size:
        raise ConversionError(f"{request.source.name} would not become smaller; use it as it is")
    model = onnx.load(request.output)
    if request.quantize != "fp16" and not _QUANTIZED & {node.op_type for node in model.graph.node}:
        raise ConversionError(
            f"{request.source.name} has no operator that can be computed in int8; use it as it is",
            nearest="--to onnx --quantize fp16",
        )
    return ConversionOutcome(CONVERTER.name, version("onnxruntime"), options)


def _prepare(request: ConversionRequest, prepared: Path) -> None:
    """Write the model with constants folded and shapes inferred: without, many graphs are refused.

    Without shapes that it cannot infer, the model is taken as it is, and the tools that follow have their say.
    """
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    try:
        quant_pre_process(str(request.source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
    except Exception:
        model = onnx.load(request.source)
    if request.quantize == "dynamic":
        del model.graph.value_info[:]  # the tool transposes weights and keeps the shapes that they had
    onnx.save(model, prepared)


def _check_is_float(request: ConversionRequest, model: Any) -> None:
    operators = {node.op_type for node in model.graph.node}
    if operators & _QUANTIZED:
        operator = sorted(operators & _QUANTIZED)[0]
        raise ConversionError(
            f"{request.source.name} is quantised already (it has {operator}); convert the float model"
        )
    if not any(weight.data_type == _FLOAT32 for weight in model.graph.initializer):
        raise ConversionError(f"{request.source.name} has no weights in float32, so that it would not become smaller")


def _write_half(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(prepared), keep_io_types=True)
    if not any(weight.data_type == _FLOAT16 for weight in model.graph.initializer):
        raise ConversionError(f"{request.source.name} has no weights that half floats can hold; use it as it is")
    onnx.save(model, request.output)
    return {"weights": "float16"}


def _write_dynamic(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(prepared, load_external_data=False)
    # The kernel of ConvInteger on processors takes weights without sign only.
    has_convolutions = any(node.op_type == "Conv" for node in model.graph.node)
    kind = QuantType.QUInt8 if has_convolutions else QuantType.QInt8
    quantize_dynamic(prepared, request.output, weight_type=kind, per_channel=not has_convolutions)
    return {"weights": kind.name, "per_channel": not has_convolutions}


def _write_static(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    graph = onnx.load(prepared, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    own = [entry.name for entry in graph.input if entry.name not in weights]
    names = dict(zip((tensor.name for tensor in request.inputs), own, strict=True))

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the tool is not typed here
        def __init__(self) -> None:
            self._samples: Iterator[dict[str, Any]] = sample_inputs(request)

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self._samples, None)
            return None if sample is None else {names[name]: array for name, array in sample.items()}

    # Both with sign: the fast kernels of ARM processors want it so.
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(prepared, request.output, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
    return {"format": "QDQ", "per_channel": True}


_WRITERS = {"fp16": _write_half, "dynamic": _write_dynamic, "int8": _write_static}


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    words = " ".join(str(error).split())
    nearest = "--to onnx --quantize dynamic" if request.quantize == "int8" else ""
    message = f"ONNX Runtime cannot quantise {request.source.name} to {request.quantize}: {words:.300}"
    return ConversionError(message, detail=str(error), nearest=nearest)
