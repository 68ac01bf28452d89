"""ONNX, TFLite and SavedModel to OpenVINO's own files, which its runtime on desktops and servers takes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest, Converter
from pocketserve.convert.tools.calibration import sample_inputs

CONVERTER = Converter(
    name="openvino",
    sources=("onnx", "tflite", "savedmodel"),
    kind="openvino",
    module="openvino",
    quantize=("none", "fp16", "dynamic", "int8"),
    environment="openvino",
)

_NEAREST = "--to onnx, which OpenVINO reads as well"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write ``model.xml`` and ``model.bin`` into the folder ``request.output``; dynamic stores weights in int8.

    The result is run on the first sample: what does not run, or gives no numbers, is refused.

    Raises:
        ConversionError: the tool refuses the model, or the result fails.
    """
    import openvino

    try:
        model = openvino.convert_model(request.source)
        if request.quantize in ("dynamic", "int8"):
            model = _quantized(model, request)
        _check(openvino, model, request)
        request.output.mkdir()
        openvino.save_model(model, request.output / "model.xml", compress_to_fp16=request.quantize == "fp16")
    except ConversionError:
        raise
    except Exception as error:  # the tool's errors have no common class
        words = " ".join(str(error).split())
        message = f"OpenVINO cannot convert {request.source.name}: {words:.300}"
        raise ConversionError(message, detail=str(error), nearest=_NEAREST) from error
    return ConversionOutcome(CONVERTER.name, version("openvino"), {"quantize": request.quantize})


def _quantized(model: Any, request: ConversionRequest) -> Any:
    import nncf

    if request.quantize == "dynamic":
        return nncf.compress_weights(model)
    samples = [_arguments(sample, request) for sample in sample_inputs(request)]
    return nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples))


def _check(openvino: Any, model: Any, request: ConversionRequest) -> None:
    """Run the model once."""
    import numpy as np

    if request.samples is None:
        return
    compiled = openvino.Core().compile_model(model, "CPU")
    results = compiled(_arguments(next(iter(sample_inputs(request))), request))
    if not all(np.isfinite(results[output]).all() for output in compiled.outputs):
        raise ConversionError(f"what OpenVINO made of {request.source.name} gives no numbers", nearest=_NEAREST)


def _arguments(sample: dict[str, Any], request: ConversionRequest) -> list[Any]:
    """Return a sample's inputs in the model's order."""
    return [sample[tensor.name] for tensor in request.inputs]
