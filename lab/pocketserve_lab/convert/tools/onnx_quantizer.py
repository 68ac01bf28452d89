"""ONNX to smaller ONNX by ONNX Runtime's own tools: half floats, int8 weights, or int8 throughout after calibration.

What goes in and comes out stays float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import sample_inputs

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
        *(
            "QuantizeLinear",
            "DequantizeLinear",
            "DynamicQuantizeLinear",
            "DynamicQuantizeLSTM",
            "QLinearConv",
        ),
        *("QLinearMatMul", "MatMulInteger", "ConvInteger", "MatMulNBits"),
    }
)
"""Operators that show that a model, or a result, computes with integers."""

_OPSET_OF_CHANNELS = 13
"""The first whose QuantizeLinear and DequantizeLinear take a scale for each channel."""

_OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS = 4
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
    model = onnx.load(request.output)
    if request.quantize != "fp16" and not _QUANTIZED & {
        node.op_type for node in model.graph.node
    }:
        raise ConversionError(
            f"{request.title} has no operator that can be computed in int8; use it as it is",
            nearest="--to onnx --quantize fp16",
        )
    return ConversionOutcome(CONVERTER.name, version("onnxruntime"), options)


def _prepare(request: ConversionRequest, prepared: Path) -> None:
    """Write the model with constants folded and shapes inferred: without, many graphs are refused.

    Without shapes that it cannot infer, the model is taken as it is, and the tools that follow have their say.
    """
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source = (
        _modern(request, prepared) if request.quantize == "int8" else request.source
    )
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
    except Exception:
        model = onnx.load(source)
    close_inputs(model)
    if request.quantize == "dynamic":
        del model.graph.value_info[
            :
        ]  # the tool transposes weights and keeps the shapes that they had
    if request.quantize == "int8":
        _flatten_biases(model)
        _separate_weights(model)
    onnx.save(model, prepared)


def _modern(request: ConversionRequest, prepared: Path) -> Path:
    """Return the source in operators that take a scale for each channel; as it is where the tool knows no way."""
    import onnx
    from onnx import version_converter

    model = onnx.load(request.source)
    if _opset(model) >= _OPSET_OF_CHANNELS:
        return request.source
    modern = prepared.with_name("modern.onnx")
    try:
        onnx.save(version_converter.convert_version(model, _OPSET_OF_CHANNELS), modern)
    except Exception:  # an operator whose history it does not know
        return request.source
    return modern


def _opset(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    return max(
        (entry.version for entry in model.opset_import if not entry.domain), default=1
    )


def close_inputs(model: Any) -> None:
    """Take the weights out of a model's inputs, where files of old releases list them."""
    weights = {weight.name for weight in model.graph.initializer}
    for entry in [entry for entry in model.graph.input if entry.name in weights]:
        model.graph.input.remove(entry)
    model.ir_version = max(model.ir_version, _OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS)


def _flatten_biases(model: Any) -> None:
    """Give a bias of Gemm one axis: any that is repeated for all rows may have two, but the tool reads the first."""
    import numpy as np
    from onnx import numpy_helper

    weights = {weight.name: weight for weight in model.graph.initializer}
    used = [name for node in model.graph.node for name in node.input]
    for node in model.graph.node:
        matrix, bias = (weights.get(name) for name in (*node.input[1:3], "", "")[:2])
        if (
            node.op_type != "Gemm"
            or matrix is None
            or bias is None
            or used.count(bias.name) > 1
        ):
            continue
        if len(bias.dims) != 1 and all(size == 1 for size in bias.dims[:-1]):
            transposed = any(
                attribute.name == "transB" and attribute.i
                for attribute in node.attribute
            )
            values = np.broadcast_to(
                numpy_helper.to_array(bias).reshape(-1),
                matrix.dims[0 if transposed else 1],
            )
            bias.CopyFrom(numpy_helper.from_array(values.copy(), bias.name))


def _separate_weights(model: Any) -> None:
    """Give each operator vectors of its own: ONNX Runtime cannot load a file whose layers share one in int8.

    It shares alike ones itself, such as the scales of new layer normalisations. Its ``x64quantprecision``, which the
    server sets on x86-64 without VNNI, rewrites a shared one twice and fails ("Attempt to replace the existing tensor",
    1.31.1).
    """
    vectors = {
        weight.name: weight
        for weight in model.graph.initializer
        if len(weight.dims) <= 1
    }
    users: dict[str, int] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name not in vectors or vectors[name].data_type != _FLOAT32:
                continue
            users[name] = users.get(name, 0) + 1
            if users[name] > 1:
                own = model.graph.initializer.add()
                own.CopyFrom(vectors[name])
                own.name = node.input[position] = f"{name}_of_user_{users[name]}"


def _check_is_float(request: ConversionRequest, model: Any) -> None:
    operators = {node.op_type for node in model.graph.node}
    if operators & _QUANTIZED:
        operator = sorted(operators & _QUANTIZED)[0]
        raise ConversionError(
            f"{request.title} is quantised already (it has {operator}); convert the float model"
        )
    if not any(weight.data_type == _FLOAT32 for weight in model.graph.initializer):
        raise ConversionError(
            f"{request.title} has no weights in float32, so that it would not become smaller; use it as it is"
        )


def _write_half(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(prepared), keep_io_types=True)
    if not any(weight.data_type == _FLOAT16 for weight in model.graph.initializer):
        raise ConversionError(
            f"{request.title} has no weights that half floats can hold; use it as it is"
        )
    onnx.save(model, request.output)
    return {"weights": "float16"}


def _write_dynamic(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(prepared, load_external_data=False)
    # The kernel of ConvInteger on processors takes weights without sign only.
    has_convolutions = any(node.op_type == "Conv" for node in model.graph.node)
    kind = QuantType.QUInt8 if has_convolutions else QuantType.QInt8
    quantize_dynamic(
        prepared, request.output, weight_type=kind, per_channel=not has_convolutions
    )
    return {"weights": kind.name, "per_channel": not has_convolutions}


def _write_static(request: ConversionRequest, prepared: Path) -> dict[str, Any]:
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    model = onnx.load(prepared, load_external_data=False)
    per_channel = _opset(model) >= _OPSET_OF_CHANNELS
    own = (entry.name for entry in model.graph.input)
    names = dict(zip((tensor.name for tensor in request.inputs), own, strict=True))

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the tool is not typed here
        def __init__(self) -> None:
            self._samples: Iterator[dict[str, Any]] = sample_inputs(request)

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self._samples, None)
            return (
                None
                if sample is None
                else {names[name]: array for name, array in sample.items()}
            )

    # Both with sign: the fast kernels of ARM processors want it so.
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(
        prepared,
        request.output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        **kinds,
    )
    return {"format": "QDQ", "per_channel": per_channel}


_WRITERS = {"fp16": _write_half, "dynamic": _write_dynamic, "int8": _write_static}


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    words = " ".join(str(error).split())
    nearest = "--to onnx --quantize dynamic" if request.quantize == "int8" else ""
    message = f"ONNX Runtime cannot quantise {request.title} to {request.quantize}: {words:.300}"
    return ConversionError(message, detail=str(error), nearest=nearest)
