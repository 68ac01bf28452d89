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

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest, Converter

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
_COLOUR = re.compile(r"\x1b\[\d*m")
_OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS = 4


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output``, for inputs of one shape.

    Raises:
        ConversionError: the tool refuses it; the sentence names the layer where the tool does.
    """
    import contextlib
    import io

    import onnx
    import onnx2tf

    printed = io.StringIO()
    with tempfile.TemporaryDirectory(dir=request.output.parent) as folder:
        prepared = Path(folder) / "model.onnx"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                model = _fixed(onnx.load(request.source), request)
                onnx.save(model, prepared)
                pictures = [entry.name for entry in model.graph.input if 3 <= len(_dimensions(entry)) <= 5]
                onnx2tf.convert(
                    input_onnx_file_path=str(prepared),
                    output_folder_path=folder,
                    not_use_onnxsim=True,
                    non_verbose=True,
                    copy_onnx_input_output_names_to_tflite=True,
                    keep_ncw_or_nchw_or_ncdhw_input_names=pictures or None,
                )
        except (Exception, SystemExit) as error:  # the tool ends the process where it gives up
            raise _refusal(request, printed.getvalue(), error) from error
        suffix = "float16" if request.quantize == "fp16" else "float32"
        shutil.move(f"{folder}/model_{suffix}.tflite", request.output)
    return ConversionOutcome(CONVERTER.name, version("onnx2tf"), {"weights": suffix})


def _fixed(model: Any, request: ConversionRequest) -> Any:
    """Return the model with all sizes fixed to those of the samples, and one row; and constants folded."""
    import numpy as np
    import onnxsim

    weights = {weight.name for weight in model.graph.initializer}
    for entry in [entry for entry in model.graph.input if entry.name in weights]:
        model.graph.input.remove(entry)
    model.ir_version = max(model.ir_version, _OLDEST_IR_WITHOUT_WEIGHTS_AMONG_INPUTS)
    samples = {} if request.samples is None else dict(np.load(request.samples, allow_pickle=False))
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


def _refusal(request: ConversionRequest, printed: str, error: BaseException) -> ConversionError:
    text = _COLOUR.sub("", f"{printed}\n{error}")
    layer = _LAYER.search(text)
    reason = f"it cannot do the layer {layer[1]}" if layer else " ".join(_COLOUR.sub("", str(error)).split())[:300]
    nearest = "--to onnx --quantize dynamic, or convert the model that it was made from"
    return ConversionError(
        f"{CONVERTER.name} cannot convert {request.source.name}: {reason}", detail=text, nearest=nearest
    )
