"""ONNX to smaller ONNX by ONNX Runtime's own tools.

They make half floats, int8 weights, or int8 throughout after calibration. Inputs and
outputs stay float32.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import sample_inputs
from pocketserve_lab.convert.tools.precision.onnx_static import (
    PlainSession,
    input_names,
    write_static,
)

CONVERTER = Converter(
    name="onnxruntime-quantization",
    sources=("onnx",),
    kind="onnx",
    module="onnx_quantizer",
    quantize=("fp16", "dynamic", "int8"),
    environment="onnx",
    wishes=("max_loss", "exclude", "calibration"),
)

_QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "DynamicQuantizeLSTM",
        "QLinearConv",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "MatMulNBits",
    }
)
"""Operators that compute with integers."""

_OPSET_OF_CHANNELS = 13
"""The first opset whose quantisation has a scale for each channel."""

_OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS = 4
# TensorProto.DataType.
_FLOAT32 = 1
_FLOAT16 = 10


class _QuantizedFile(NamedTuple):
    """Options and notes of the outcome."""

    options: dict[str, Any]
    notes: tuple[str, ...] = ()


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output``, with its weights in the file.

    Raises:
        ConversionError: nothing in it can be made smaller, the tool fails, or samples
            are missing.
    """
    import onnx

    with tempfile.TemporaryDirectory(dir=request.output.parent) as folder:
        prepared = Path(folder) / "prepared.onnx"
        _prepare(request, prepared)
        _check_is_float(request, onnx.load(prepared, load_external_data=False))
        try:
            written = _WRITERS[request.quantize](request, prepared)
        except ConversionError:
            raise
        # The tool may raise anything.
        except Exception as error:
            raise _refusal(request, error) from error
    operators = _operators(onnx.load(request.output))
    if request.quantize != "fp16" and not _QUANTIZED & operators:
        raise ConversionError(
            f"{request.title} has no operator that can be computed in int8; "
            "use it as it is",
            nearest="--to onnx --quantize fp16",
        )
    return ConversionOutcome(
        CONVERTER.name,
        version("onnxruntime"),
        written.options,
        notes=written.notes,
        answers=_plain_answers(request),
    )


def _plain_answers(request: ConversionRequest) -> str:
    """Run the file as other programs do; return the .npz with the outputs.

    The server sets an option for exact sums, which others may not.
    """
    import numpy as np

    if request.samples is None or request.quantize == "fp16":
        return ""
    session = PlainSession(request.output, input_names(request, request.output))
    runs = [session.answer(sample) for sample in sample_inputs(request)]
    shapes = {tuple(output.shape for output in run.values()) for run in runs}
    if len(shapes) > 1:
        # Outputs whose sizes depend on values can't be stacked.
        return ""
    outputs: dict[str, Any] = {}
    for number, tensor in enumerate(request.outputs):
        outputs[tensor.name] = np.stack([run[str(number)] for run in runs])
    answers = request.output.with_name("plain.npz")
    np.savez(answers, **outputs)
    return str(answers)


def _operators(model: Any) -> set[str]:
    return {node.op_type for node in model.graph.node}


def _prepare(request: ConversionRequest, prepared: Path) -> None:
    """Write the model with constants folded and shapes inferred.

    The tools reject many graphs otherwise. If shapes cannot be inferred, the model is
    not changed, and the tools decide.
    """
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source = request.source
    if request.quantize == "int8":
        source = _modern(request, prepared)
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
    except Exception:
        model = onnx.load(source)
    close_inputs(model)
    if request.quantize == "dynamic":
        # The tool transposes weights, but keeps their old shapes.
        del model.graph.value_info[:]
    if request.quantize == "int8":
        _flatten_biases(model)
        _separate_weights(model)
    onnx.save(model, prepared)


def _modern(request: ConversionRequest, prepared: Path) -> Path:
    """Convert the source to a newer opset, if possible."""
    import onnx
    from onnx import version_converter

    model = onnx.load(request.source)
    if _opset(model) >= _OPSET_OF_CHANNELS:
        return request.source
    modern = prepared.with_name("modern.onnx")
    try:
        onnx.save(version_converter.convert_version(model, _OPSET_OF_CHANNELS), modern)
    # An operator whose history it does not know.
    except Exception:
        return request.source
    return modern


def _opset(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    return max(
        (entry.version for entry in model.opset_import if not entry.domain), default=1
    )


def close_inputs(model: Any) -> None:
    """Remove weights from a model's inputs.

    Files of old releases list them there.
    """
    weights = {weight.name for weight in model.graph.initializer}
    for entry in list(model.graph.input):
        if entry.name in weights:
            model.graph.input.remove(entry)
    model.ir_version = max(model.ir_version, _OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS)


def _flatten_biases(model: Any) -> None:
    """Give each bias of Gemm one axis.

    A bias that is repeated for all rows may have two, but the tool reads the first.
    """
    weights = {weight.name: weight for weight in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    for node in model.graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3:
            continue
        matrix, bias = weights.get(node.input[1]), weights.get(node.input[2])
        if matrix is None or bias is None or uses[bias.name] > 1:
            continue
        if _is_repeated(bias):
            _flatten_bias(node, matrix, bias)


def _is_repeated(bias: Any) -> bool:
    """Return whether a bias has several axes, and is the same for all rows."""
    return len(bias.dims) != 1 and all(size == 1 for size in bias.dims[:-1])


def _flatten_bias(node: Any, matrix: Any, bias: Any) -> None:
    import numpy as np
    from onnx import numpy_helper

    columns = matrix.dims[1]
    for attribute in node.attribute:
        if attribute.name == "transB" and attribute.i:
            columns = matrix.dims[0]
    flat = numpy_helper.to_array(bias).reshape(-1)
    values = np.broadcast_to(flat, columns).copy()
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))


def _separate_weights(model: Any) -> None:
    """Give each operator its own vectors.

    ONNX Runtime cannot load shared int8 ones. It shares equal ones itself, such as the
    scales of new layer normalisations. Its ``x64quantprecision``, which the server sets
    on x86-64 without VNNI, rewrites a shared one twice and fails ("Attempt to replace
    the existing tensor", 1.31.1).
    """
    vectors = _vectors(model)
    users: Counter[str] = Counter()
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name not in vectors:
                continue
            users[name] += 1
            if users[name] > 1:
                own = model.graph.initializer.add()
                own.CopyFrom(vectors[name])
                own.name = node.input[position] = f"{name}_of_user_{users[name]}"


def _vectors(model: Any) -> dict[str, Any]:
    """Return the float32 weights with at most one axis, by name."""
    vectors = {}
    for weight in model.graph.initializer:
        if len(weight.dims) <= 1 and weight.data_type == _FLOAT32:
            vectors[weight.name] = weight
    return vectors


def _check_is_float(request: ConversionRequest, model: Any) -> None:
    quantized = _operators(model) & _QUANTIZED
    if quantized:
        raise ConversionError(
            f"{request.title} is quantised already (it has {min(quantized)}); "
            "convert the float model"
        )
    if not any(weight.data_type == _FLOAT32 for weight in model.graph.initializer):
        raise ConversionError(
            f"{request.title} has no weights in float32, so that it would not become "
            "smaller; use it as it is"
        )


def _write_half(request: ConversionRequest, prepared: Path) -> _QuantizedFile:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(prepared), keep_io_types=True)
    if not any(weight.data_type == _FLOAT16 for weight in model.graph.initializer):
        raise ConversionError(
            f"{request.title} has no weights that half floats can hold; use it as it is"
        )
    onnx.save(model, request.output)
    return _QuantizedFile({"weights": "float16"})


def _write_dynamic(request: ConversionRequest, prepared: Path) -> _QuantizedFile:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(prepared, load_external_data=False)
    # The CPU kernel of ConvInteger takes unsigned weights only.
    has_convolutions = "Conv" in _operators(model)
    kind = QuantType.QUInt8 if has_convolutions else QuantType.QInt8
    quantize_dynamic(
        prepared, request.output, weight_type=kind, per_channel=not has_convolutions
    )
    return _QuantizedFile({"weights": kind.name, "per_channel": not has_convolutions})


def _write_static(request: ConversionRequest, prepared: Path) -> _QuantizedFile:
    import onnx

    model = onnx.load(prepared, load_external_data=False)
    per_channel = _opset(model) >= _OPSET_OF_CHANNELS
    precision = write_static(request, prepared, per_channel=per_channel)
    options = {"format": "QDQ", "per_channel": per_channel, **precision.options}
    return _QuantizedFile(options, precision.notes)


_WRITERS = {"fp16": _write_half, "dynamic": _write_dynamic, "int8": _write_static}


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    text = " ".join(str(error).split())
    return ConversionError(
        f"ONNX Runtime cannot quantise {request.title} to {request.quantize}: "
        f"{text:.300}",
        detail=str(error),
        nearest="--to onnx --quantize dynamic" if request.quantize == "int8" else "",
    )
