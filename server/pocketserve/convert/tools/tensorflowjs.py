"""Keras and SavedModel to a TensorFlow.js graph model, by the tool of that name."""

from __future__ import annotations

from importlib.metadata import version

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest, Converter
from pocketserve.convert.tools.tensorflow_model import FORMATS, missing_operators, saved_signature

CONVERTER = Converter(
    name="tensorflowjs",
    sources=FORMATS,
    kind="tfjs",
    module="tensorflowjs",
    quantize=("none", "fp16", "dynamic"),
    environment="tensorflowjs",
)

_WEIGHTS = {"none": None, "fp16": {"float16": True}, "dynamic": {"uint8": True}}
"""Only how weights are stored: the library makes float32 of them when it loads the model."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the folder ``request.output`` with ``model.json`` and the shards of its weights.

    Raises:
        ConversionError: the tool refuses it; the sentence names the operator where the tool does.
    """
    with saved_signature(request) as source:
        from tensorflowjs.converters import tf_saved_model_conversion_v2 as tool

        try:
            tool.convert_tf_saved_model(
                str(source.folder),
                str(request.output),
                signature_def=source.key,
                quantization_dtype_map=_WEIGHTS[request.quantize],
                use_structured_outputs_names=True,
            )
        except Exception as error:  # TensorFlow's errors have no common class with Python's
            raise _refusal(request, error) from error
    options = {"quantize": request.quantize, "signature": source.key}
    return ConversionOutcome(CONVERTER.name, version("tensorflowjs"), options, source.inputs, source.outputs)


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    operators = ", ".join(missing_operators(error)[:3])
    reason = f"TensorFlow.js has no operator for {operators}" if operators else " ".join(str(error).split())[:300]
    return ConversionError(
        f"{CONVERTER.name} cannot convert {request.source.name}: {reason}", detail=str(error), nearest="--to tflite"
    )
