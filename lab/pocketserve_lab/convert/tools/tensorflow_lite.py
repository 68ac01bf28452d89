"""Keras and SavedModel to TFLite by TensorFlow's own converter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import sample_inputs
from pocketserve_lab.convert.tools.tensorflow_model import (
    FORMATS,
    SavedSignature,
    missing_operators,
    saved_signature,
)

CONVERTER = Converter(
    name="tensorflow-lite",
    sources=FORMATS,
    kind="tflite",
    module="tensorflow_lite",
    quantize=("none", "fp16", "dynamic", "int8", "int16x8"),
    environment="tensorflow",
)

_FEW_BYTES = 1 << 16
"""A smaller file may have so few weights that quantising adds more than it saves.

Such a file is compared with the float one."""

_WHOLE = ("int8", "int16x8")
"""Modes in which sums are integers, too."""

_WANTS_ROWS = re.compile("TensorList|Lowering tensor list ops")
"""In an error: a recurrent layer, which needs a fixed number of rows."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output``; inputs and outputs stay float32.

    Batches stay free, except for recurrent layers of Keras: these take one row at a
    time.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    try:
        return _convert(request, None)
    except ConversionError as refusal:
        # With sums in integers the tool crashes on one row.
        can_fix_rows = request.format == "keras" and request.quantize not in _WHOLE
        if not can_fix_rows or not _WANTS_ROWS.search(refusal.detail):
            raise
    outcome = _convert(request, 1)
    note = "it takes one row at a time, as TFLite's recurrent layers do"
    return replace(outcome, notes=(note,))


def _convert(request: ConversionRequest, rows: int | None) -> ConversionOutcome:
    import tensorflow as tf

    with saved_signature(request, rows) as source:
        converter = _converter(tf, source)
        _set_quantization(tf, converter, request, source)
        try:
            content = converter.convert()
        except ConversionError:
            raise
        # Errors of MLIR have no common class with Python's.
        except Exception as error:
            raise _refusal(request, error) from error
        float_bytes = 0
        if request.quantize != "none" and len(content) < _FEW_BYTES:
            float_bytes = len(_converter(tf, source).convert())
    request.output.write_bytes(content)
    options = {"quantize": request.quantize, "signature": source.key}
    return ConversionOutcome(
        "tensorflow",
        tf.__version__,
        options,
        source.inputs,
        source.outputs,
        float_bytes=float_bytes,
    )


def _converter(tf: Any, source: SavedSignature) -> Any:
    return tf.lite.TFLiteConverter.from_saved_model(
        str(source.folder), signature_keys=[source.key]
    )


def _set_quantization(
    tf: Any, converter: Any, request: ConversionRequest, source: SavedSignature
) -> None:
    if request.quantize == "none":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if request.quantize == "fp16":
        converter.target_spec.supported_types = [tf.float16]
    if request.quantize not in _WHOLE:
        return
    sets = tf.lite.OpsSet
    whole = sets.TFLITE_BUILTINS_INT8
    if request.quantize == "int16x8":
        whole = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    converter.target_spec.supported_ops = [whole]

    converter.representative_dataset = partial(_samples, request, source)


def _samples(
    request: ConversionRequest, source: SavedSignature
) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each sample by the names of the signature."""
    for sample in sample_inputs(request):
        yield {source.inputs[name]: array for name, array in sample.items()}


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    operators = ", ".join(missing_operators(error)[:3])
    reason = " ".join(str(error).split())[:300]
    if operators:
        reason = f"TFLite has no operator for {operators}"
    nearest = "--to onnx"
    can_fix_rows = request.format == "keras" or not _WANTS_ROWS.search(str(error))
    if request.quantize in _WHOLE and can_fix_rows:
        nearest = "--to tflite --quantize dynamic, or --to onnx"
    return ConversionError(
        f"TensorFlow cannot convert {request.title} with --quantize "
        f"{request.quantize}: {reason}",
        detail=str(error),
        nearest=nearest,
    )
