"""ONNX, TFLite and SavedModel to OpenVINO's own files, which its runtime on desktops and servers takes."""

from __future__ import annotations

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

CONVERTER = Converter(
    name="openvino",
    sources=("onnx", "tflite", "savedmodel"),
    kind="openvino",
    module="openvino",
    quantize=("none", "fp16", "dynamic", "int8"),
    environment="openvino",
)

ANSWERS_NAME = "answers.npz"
_NEAREST = "--to onnx, which OpenVINO reads as well"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write ``model.xml`` and ``model.bin`` into the folder ``request.output``; dynamic stores weights in int8.

    What was written is read again and run on every sample: its answers are compared with the original's.

    Raises:
        ConversionError: the tool refuses the model, or cannot run the result.
    """
    import openvino

    try:
        model = openvino.convert_model(request.source)
        float_bytes = (
            _float_bytes(openvino, model, request) if request.quantize != "none" else 0
        )
        if request.quantize in ("dynamic", "int8"):
            model = _quantized(model, request)
        request.output.mkdir()
        path = request.output / "model.xml"
        openvino.save_model(model, path, compress_to_fp16=request.quantize == "fp16")
        answers = _answers(openvino, path, request)
    except ConversionError:
        raise
    except Exception as error:  # the tool's errors have no common class
        words = " ".join(str(error).split())
        message = f"OpenVINO cannot convert {request.title}: {words:.300}"
        raise ConversionError(message, detail=str(error), nearest=_NEAREST) from error
    options = {"quantize": request.quantize}
    return ConversionOutcome(
        CONVERTER.name,
        version("openvino"),
        options,
        answers=answers,
        float_bytes=float_bytes,
    )


def _float_bytes(openvino: Any, model: Any, request: ConversionRequest) -> int:
    """Return the size of a model's files before it is quantised: their XML is large beside few weights."""
    with tempfile.TemporaryDirectory(dir=request.output.parent) as folder:
        openvino.save_model(model, Path(folder) / "model.xml", compress_to_fp16=False)
        return sum(file.stat().st_size for file in Path(folder).iterdir())


def _quantized(model: Any, request: ConversionRequest) -> Any:
    import nncf

    if request.quantize == "dynamic":
        return nncf.compress_weights(model)
    samples = [_arguments(sample, request) for sample in sample_inputs(request)]
    return nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples))


def _answers(openvino: Any, path: Path, request: ConversionRequest) -> str:
    """Have the files that were written answer every sample; return the .npz with the outputs, empty without samples.

    Outputs have the source's names where the files kept them, else numbers, in the files' order.
    """
    import numpy as np

    if request.samples is None:
        return ""
    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    expected = [tensor.name for tensor in request.outputs]
    names = [
        next((n for n in expected if n in output.names), "")
        for output in compiled.outputs
    ]
    names = (
        names
        if sorted(names) == sorted(expected)
        else [str(number) for number in range(len(names))]
    )
    runs = [compiled(_arguments(sample, request)) for sample in sample_inputs(request)]
    outputs = {
        name: np.stack([np.array(run[output]) for run in runs])
        for name, output in zip(names, compiled.outputs, strict=True)
    }
    answers = request.output.with_name(ANSWERS_NAME)
    np.savez(answers, **outputs)  # type: ignore[arg-type]  # NumPy's stubs take no arrays by name
    return str(answers)


def _arguments(sample: dict[str, Any], request: ConversionRequest) -> list[Any]:
    """Return a sample's inputs in the model's order."""
    return [sample[tensor.name] for tensor in request.inputs]
