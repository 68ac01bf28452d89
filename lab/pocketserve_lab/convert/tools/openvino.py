"""ONNX, TFLite and SavedModel to OpenVINO's own files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import (
    sample_inputs,
    write_variant_answers,
)

CONVERTER = Converter(
    name="openvino",
    sources=("onnx", "tflite", "savedmodel"),
    kind="openvino",
    module="openvino",
    quantize=("none", "fp16", "dynamic", "int8"),
    environment="openvino",
)

ANSWERS_NAME = "answers.npz"
_FAILED = re.compile(r"Conversion failed for (\w+)-\d+")
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
        _fix_sizes(openvino, model, request)
        request.output.mkdir()
        path = request.output / "model.xml"
        openvino.save_model(model, path, compress_to_fp16=request.quantize == "fp16")
        answers, variants = _answers(openvino, path, request)
    except ConversionError:
        raise
    # The tool's errors have no common class.
    except Exception as error:
        raise _refusal(request, error) from error
    return ConversionOutcome(
        CONVERTER.name,
        version("openvino"),
        {"quantize": request.quantize},
        answers=answers,
        variant_answers=variants,
        float_bytes=float_bytes,
    )


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    reason = " ".join(str(error).split())[:300]
    failed = _FAILED.search(str(error))
    if failed:
        reason = f"OpenVINO has no operator for {failed[1]}"
    message = f"OpenVINO cannot convert {request.title}: {reason}"
    return ConversionError(message, detail=str(error), nearest=_NEAREST)


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


def _fix_sizes(openvino: Any, model: Any, request: ConversionRequest) -> None:
    """Declare the sizes of the request that must be fixed."""
    if not request.fixed:
        return
    shapes = {}
    for number, tensor in enumerate(request.inputs):
        shape = model.input(number).partial_shape
        for name, axis in request.fixed:
            if name == tensor.name:
                shape[axis] = openvino.Dimension(tensor.shape[axis])
        shapes[number] = shape
    model.reshape(shapes)


def _answers(
    openvino: Any, path: Path, request: ConversionRequest
) -> tuple[str, tuple[str, ...]]:
    """Run the written files on every sample, and on the variants.

    Return the .npz files with the outputs. Without samples there are none. Outputs have
    the source's names if the files kept them, else numbers, in the files' order.
    """
    if request.samples is None:
        return "", ()
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", options)
    names = _output_names(compiled, request)
    answers = _write_answers(compiled, names, request)
    answer = partial(_answer, compiled, names, request)
    return answers, write_variant_answers(request, answer)


def _write_answers(compiled: Any, names: list[str], request: ConversionRequest) -> str:
    """Run the files on every sample; return the .npz with the outputs."""
    import numpy as np

    runs = [compiled(_arguments(sample, request)) for sample in sample_inputs(request)]
    outputs: dict[str, Any] = {}
    for name, output in zip(names, compiled.outputs, strict=True):
        outputs[name] = _stack(runs, output)
    answers = request.output.with_name(ANSWERS_NAME)
    np.savez(answers, **outputs)
    return str(answers)


def _answer(
    compiled: Any,
    names: list[str],
    request: ConversionRequest,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the outputs for one run."""
    run = compiled([inputs[tensor.name] for tensor in request.inputs])
    outputs = {}
    for name, output in zip(names, compiled.outputs, strict=True):
        outputs[name] = run[output].copy()
    return outputs


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
