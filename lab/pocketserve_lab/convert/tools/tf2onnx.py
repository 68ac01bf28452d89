"""Keras, SavedModel and TFLite to ONNX by tf2onnx."""

from __future__ import annotations

import re
from importlib.metadata import version

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.cleaning import clean_onnx
from pocketserve_lab.convert.tools.tensorflow_model import (
    FORMATS,
    missing_operators,
    saved_signature,
)

CONVERTER = Converter(
    name="tf2onnx",
    sources=(*FORMATS, "tflite"),
    kind="onnx",
    module="tf2onnx",
    environment="tf2onnx",
)

OPSET = 18
"""The newest that the tool writes; ONNX Runtime supports it since 1.14."""

_FAILED = re.compile(
    r"(?:Tensorflow op \[[^:]*: |Unsupported op type |No handler for )(\w+)"
)


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output`` with a free batch size.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    log = _Log()
    if request.format == "tflite":
        _run(request, log, ["--tflite", str(request.source)])
        clean_onnx(request.output)
        return ConversionOutcome(CONVERTER.name, version("tf2onnx"), {"opset": OPSET})
    with saved_signature(request) as source:
        folder = str(source.folder)
        signature = ["--tag", "serve", "--signature_def", source.key]
        _run(request, log, ["--saved-model", folder, *signature])
    clean_onnx(request.output)
    options = {"opset": OPSET, "signature": source.key}
    return ConversionOutcome(
        CONVERTER.name, version("tf2onnx"), options, source.inputs, source.outputs
    )


class _Log:
    """Errors that the tool only logs, for operators that it then omits."""

    def __init__(self) -> None:
        import logging

        self.lines: list[str] = []

        class Handler(logging.Handler):
            def emit(_, record: logging.LogRecord) -> None:
                self.lines.append(record.getMessage())

        logging.getLogger("tf2onnx").addHandler(Handler(logging.ERROR))


def _run(request: ConversionRequest, log: _Log, arguments: list[str]) -> None:
    import sys

    from tf2onnx import convert as tool

    output = ["--opset", str(OPSET), "--output", str(request.output)]
    sys.argv = ["tf2onnx", *arguments, *output]
    try:
        tool.main()
    except (Exception, SystemExit) as error:
        raise _refusal(request, "\n".join([*log.lines, str(error)])) from error
    if log.lines:
        raise _refusal(request, "\n".join(log.lines))


def _refusal(request: ConversionRequest, text: str) -> ConversionError:
    operators = sorted(set(_FAILED.findall(text))) or missing_operators(Exception(text))
    reason = f"ONNX has no operator for {', '.join(operators[:3])}" if operators else ""
    return request.refusal(CONVERTER.name, text, reason, "--to tflite")
