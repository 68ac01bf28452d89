"""ONNX, TFLite and SavedModel to OpenVINO's own files."""

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
    """Write ``model.xml`` and ``model.bin`` into the folder ``request.output``.

    The mode dynamic stores weights in int8. The result is loaded and run on every
    sample: its answers are compared with the original's.

    Raises:
        ConversionError: the tool fails, or cannot run the result.
    """
    import openvino

    float_bytes = 0
    try:
        model = openvino.convert_model(request.source)
        if request.quantize != "none":
            float_bytes = _float_bytes(openvino, model, request)
        if request.quantize in ("dynamic", "int8"):
            model = _quantized(model, request)
        request.output.mkdir()
        path = request.output / "model.xml"
        openvino.save_model(model, path, compress_to_fp16=request.quantize == "fp16")
        answers = _answers(openvino, path, request)
    except ConversionError:
        raise
    # The tool's errors have no common class.
    except Exception as error:
        text = " ".join(str(error).split())
        message = f"OpenVINO cannot convert {request.title}: {text:.300}"
        raise ConversionError(message, detail=str(error), nearest=_NEAREST) from error
    return ConversionOutcome(
        CONVERTER.name,
        version("openvino"),
        {"quantize": request.quantize},
        answers=answers,
        float_bytes=float_bytes,
    )


def _float_bytes(openvino: Any, model: Any, request: ConversionRequest) -> int:
    """Return the size of a model's files before quantisation.

    Their XML is large in comparison with few weights.
    """
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
    """Run the written files on every sample.

    Return the .npz with the outputs. It is empty without samples. Outputs have the
    source's names if the files kept them, else numbers, in the files' order.
    """
    import numpy as np

    if request.samples is None:
        return ""
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", options)
    runs = [compiled(_arguments(sample, request)) for sample in sample_inputs(request)]
    names = _output_names(compiled, request)
    outputs: dict[str, Any] = {}
    for name, output in zip(names, compiled.outputs, strict=True):
        outputs[name] = _stack(runs, output)
    answers = request.output.with_name(ANSWERS_NAME)
    np.savez(answers, **outputs)
    return str(answers)


def _stack(runs: list[Any], output: Any) -> Any:
    import numpy as np

    return np.stack([np.array(run[output]) for run in runs])


def _output_names(compiled: Any, request: ConversionRequest) -> list[str]:
    """Return the source's names of outputs, else numbers."""
    expected = [tensor.name for tensor in request.outputs]
    names = []
    for output in compiled.outputs:
        names.append(next((name for name in expected if name in output.names), ""))
    if sorted(names) == sorted(expected):
        return names
    return [str(number) for number in range(len(names))]


def _arguments(sample: dict[str, Any], request: ConversionRequest) -> list[Any]:
    """Return a sample's inputs in the model's order."""
    return [sample[tensor.name] for tensor in request.inputs]
