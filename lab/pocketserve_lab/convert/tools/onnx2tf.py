"""ONNX to TFLite by onnx2tf. Inputs keep their layout, such as NCHW, with a transposition at the model's door.

The tool wants every size to be fixed, and no weights among the inputs.
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
_COLOUR = re.compile(r"\x1b\[\d*m")

_WAYS = ("keep_ncw_or_nchw_or_ncdhw_input_names", "keep_shape_absolutely_input_names")
"""The tool's options for inputs that keep their layout; which one does so depends on the model's first operators."""

_MAX_ERROR = 1e-2
"""Of the outputs' size, beside ONNX Runtime's: to tell the right way from the wrong one."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output``, for inputs of one shape.

    Raises:
        ConversionError: the tool refuses it, and the sentence names the layer where the tool does; or what it makes
            answers otherwise.
    """
    suffix = "float16" if request.quantize == "fp16" else "float32"
    refusals = []
    for way in _WAYS:
        with tempfile.TemporaryDirectory(dir=request.output.parent) as folder:
            try:
                prepared = _run(request, Path(folder), way)
            except ConversionError as refusal:
                refusals.append(refusal)
                continue
            result = Path(folder) / f"model_{suffix}.tflite"
            if _answers_alike(prepared, result, request):
                size = (Path(folder) / "model_float32.tflite").stat().st_size
                shutil.move(result, request.output)
                options = {"weights": suffix, "way": way}
                return ConversionOutcome(
                    CONVERTER.name, version("onnx2tf"), options, float_bytes=size
                )
    if refusals:
        raise refusals[0]
    raise ConversionError(
        f"what {CONVERTER.name} makes of {request.title} answers otherwise",
        nearest=_NEAREST,
    )


def _run(request: ConversionRequest, folder: Path, way: str) -> Path:
    """Run the tool and return the ONNX model that it was given, with all sizes fixed."""
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
            pictures = [
                entry.name
                for entry in model.graph.input
                if 3 <= len(_dimensions(entry)) <= 5
            ]
            onnx2tf.convert(
                input_onnx_file_path=str(prepared),
                output_folder_path=str(folder),
                not_use_onnxsim=True,
                non_verbose=True,
                copy_onnx_input_output_names_to_tflite=True,
                **{way: pictures or None},
            )
    except (
        Exception,
        SystemExit,
    ) as error:  # the tool ends the process where it gives up
        raise _refusal(request, printed.getvalue(), error) from error
    return prepared


def _answers_alike(prepared: Path, result: Path, request: ConversionRequest) -> bool:
    """Return whether the result takes the same shapes, and gives the same numbers for the first sample."""
    import numpy as np
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    session = onnxruntime.InferenceSession(
        str(prepared), providers=["CPUExecutionProvider"]
    )
    interpreter = Interpreter(str(result))
    interpreter.allocate_tensors()
    own = {entry["name"]: entry for entry in interpreter.get_input_details()}
    if {entry.name: entry.shape for entry in session.get_inputs()} != {
        n: e["shape"].tolist() for n, e in own.items()
    }:
        return False
    if request.samples is None:
        return True
    sample = next(iter(sample_inputs(request)))
    values = [sample[tensor.name] for tensor in request.inputs]
    arrays = dict(
        zip((entry.name for entry in session.get_inputs()), values, strict=True)
    )
    expected = session.run(None, arrays)
    for name, entry in own.items():
        interpreter.set_tensor(entry["index"], arrays[name])
    interpreter.invoke()
    results = [
        interpreter.get_tensor(entry["index"])
        for entry in interpreter.get_output_details()
    ]
    sizes = [
        (np.linalg.norm(a - b.reshape(a.shape)), np.linalg.norm(a))
        for a, b in zip(expected, results, strict=True)
    ]
    return all(error <= _MAX_ERROR * max(float(size), 1e-6) for error, size in sizes)


def _fixed(model: Any, request: ConversionRequest) -> Any:
    """Return the model with all sizes fixed to those of the samples, and one row; and constants folded."""
    import numpy as np
    import onnxsim

    close_inputs(model)
    samples = (
        {}
        if request.samples is None
        else dict(np.load(request.samples, allow_pickle=False))
    )
    for entry, tensor in zip(model.graph.input, request.inputs, strict=True):
        shape = samples[tensor.name].shape if tensor.name in samples else ()
        for axis, dimension in enumerate(_dimensions(entry)):
            if dimension.dim_value < 1:
                dimension.Clear()
                dimension.dim_value = shape[axis] if 0 < axis < len(shape) else 1
    for entry in model.graph.output:
        for dimension in _dimensions(entry):
            dimension.Clear()
    del model.graph.value_info[:]
    simple, _ = onnxsim.simplify(model)
    return simple


def _dimensions(entry: Any) -> list[Any]:
    return list(entry.type.tensor_type.shape.dim)


def _refusal(
    request: ConversionRequest, printed: str, error: BaseException
) -> ConversionError:
    text = _COLOUR.sub("", f"{printed}\n{error}")
    layer = _LAYER.search(text)
    reason = (
        f"it cannot do the layer {layer[1]}"
        if layer
        else " ".join(_COLOUR.sub("", str(error)).split())[:300]
    )
    return request.refusal(CONVERTER.name, text, reason, _NEAREST)
