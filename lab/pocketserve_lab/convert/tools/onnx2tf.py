"""ONNX to TFLite by onnx2tf.

Inputs keep their layout, such as NCHW, and are transposed first. The tool needs fixed
sizes, and no weights among the inputs.
"""

from __future__ import annotations

import re
import shutil
import tempfile
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
from pocketserve_lab.convert.tools.onnx_quantizer import close_inputs

CONVERTER = Converter(
    name="onnx2tf",
    sources=("onnx",),
    kind="tflite",
    module="onnx2tf",
    quantize=("none", "fp16"),
    environment="onnx2tf",
    single=True,
)

_LAYER = re.compile(r"onnx_op_name: (\S+)")
_NEAREST = "--to onnx --quantize dynamic, or convert the model that it was made from"
_MISSING = re.compile(r"No module named 'onnx2tf\.ops\.(\w+)'")
_COLOUR = re.compile(r"\x1b\[\d*m")

_WAYS = ("keep_ncw_or_nchw_or_ncdhw_input_names", "keep_shape_absolutely_input_names")
"""The tool's options for inputs that keep their layout.

Which one works depends on the model's first operators."""

_MAX_ERROR = 1e-2
"""Accepted difference from ONNX Runtime, as a share of the outputs' size.

It distinguishes a correct result from a wrong one."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output``, for inputs of one shape.

    Raises:
        ConversionError: the tool fails, and the text names the layer if the tool does;
            or its result answers otherwise.
    """
    refusals = []
    for way in _WAYS:
        try:
            outcome = _try_way(request, way)
        except ConversionError as refusal:
            refusals.append(refusal)
            continue
        if outcome is not None:
            return outcome
    if refusals:
        raise refusals[0]
    raise ConversionError(
        f"what {CONVERTER.name} makes of {request.title} answers differently",
        nearest=_NEAREST,
    )


def _try_way(request: ConversionRequest, way: str) -> ConversionOutcome | None:
    """Run the tool with one of the options.

    Return None if the result is wrong.
    """
    suffix = "float16" if request.quantize == "fp16" else "float32"
    with tempfile.TemporaryDirectory(dir=request.output.parent) as name:
        folder = Path(name)
        prepared = _run(request, folder, way)
        result = folder / f"model_{suffix}.tflite"
        if not _answers_alike(prepared, result, request):
            return None
        size = (folder / "model_float32.tflite").stat().st_size
        shutil.move(result, request.output)
    options = {"weights": suffix, "way": way}
    return ConversionOutcome(
        CONVERTER.name, version("onnx2tf"), options, float_bytes=size
    )


def _run(request: ConversionRequest, folder: Path, way: str) -> Path:
    """Run the tool and return its ONNX input, with all sizes fixed."""
    import contextlib
    import io

    import onnx
    import onnx2tf

    printed = io.StringIO()
    prepared = folder / "model.onnx"
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            model = _fixed(onnx.load(request.source), request)
            onnx.save(model, prepared)
            onnx2tf.convert(
                input_onnx_file_path=str(prepared),
                output_folder_path=str(folder),
                not_use_onnxsim=True,
                non_verbose=True,
                copy_onnx_input_output_names_to_tflite=True,
                **{way: _pictures(model) or None},
            )
    # The tool ends the process if it gives up.
    except (Exception, SystemExit) as error:
        raise _refusal(request, printed.getvalue(), error) from error
    return prepared


def _pictures(model: Any) -> list[str]:
    """Return the names of inputs that may have channels."""
    names = []
    for entry in model.graph.input:
        if 3 <= len(_dimensions(entry)) <= 5:
            names.append(entry.name)
    return names


def _answers_alike(prepared: Path, result: Path, request: ConversionRequest) -> bool:
    """Return whether the result has equal shapes and answers."""
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(prepared), providers=providers)
    interpreter = Interpreter(str(result))
    interpreter.allocate_tensors()
    names = [entry.name for entry in session.get_inputs()]
    shapes = {entry.name: entry.shape for entry in session.get_inputs()}
    own_shapes = {}
    for entry in interpreter.get_input_details():
        own_shapes[entry["name"]] = entry["shape"].tolist()
    if own_shapes != shapes:
        return False
    if request.samples is None:
        return True
    sample = next(iter(sample_inputs(request)))
    arrays = {}
    for name, tensor in zip(names, request.inputs, strict=True):
        arrays[name] = sample[tensor.name]
    expected = session.run(None, arrays)
    results = _run_tflite(interpreter, arrays)
    if len(expected) != len(results):
        return False
    return all(map(_is_close, expected, results))


def _run_tflite(interpreter: Any, arrays: dict[str, Any]) -> list[Any]:
    for entry in interpreter.get_input_details():
        interpreter.set_tensor(entry["index"], arrays[entry["name"]])
    interpreter.invoke()
    results = []
    for entry in interpreter.get_output_details():
        results.append(interpreter.get_tensor(entry["index"]))
    return results


def _is_close(expected: Any, result: Any) -> bool:
    import numpy as np

    error = np.linalg.norm(expected - result.reshape(expected.shape))
    size = max(float(np.linalg.norm(expected)), 1e-6)
    return bool(error <= _MAX_ERROR * size)


def _fixed(model: Any, request: ConversionRequest) -> Any:
    """Return the model with constants folded and all sizes fixed.

    It takes one row; the other sizes are those of the samples.
    """
    import onnxsim

    close_inputs(model)
    shapes = _sample_shapes(request)
    for entry, tensor in zip(model.graph.input, request.inputs, strict=True):
        _fix_input(entry, shapes.get(tensor.name, ()))
    for entry in model.graph.output:
        for dimension in _dimensions(entry):
            dimension.Clear()
    del model.graph.value_info[:]
    simple, _ = onnxsim.simplify(model)
    return simple


def _fix_input(entry: Any, shape: tuple[int, ...]) -> None:
    """Fix the free sizes of an input to those of a shape, and one row."""
    for axis, dimension in enumerate(_dimensions(entry)):
        if dimension.dim_value < 1:
            dimension.Clear()
            dimension.dim_value = shape[axis] if 0 < axis < len(shape) else 1


def _sample_shapes(request: ConversionRequest) -> dict[str, tuple[int, ...]]:
    import numpy as np

    if request.samples is None:
        return {}
    with np.load(request.samples, allow_pickle=False) as arrays:
        return {name: arrays[name].shape for name in arrays.files}


def _dimensions(entry: Any) -> list[Any]:
    return list(entry.type.tensor_type.shape.dim)


def _refusal(
    request: ConversionRequest, printed: str, error: BaseException
) -> ConversionError:
    text = _COLOUR.sub("", f"{printed}\n{error}")
    layer = _LAYER.search(text)
    reason = " ".join(_COLOUR.sub("", str(error)).split())[:300]
    missing = _MISSING.search(text)
    if missing:
        reason = f"the operator {missing[1]} has no counterpart; use it as it is"
        return request.refusal(CONVERTER.name, text, reason)
    if layer:
        reason = f"it cannot do the layer {layer[1]}"
    return request.refusal(CONVERTER.name, text, reason, _NEAREST)
