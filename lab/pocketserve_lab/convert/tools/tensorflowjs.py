"""Keras and SavedModel to a TensorFlow.js graph model."""

from __future__ import annotations

import base64
import shutil
from importlib.metadata import version
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.tensorflow_model import (
    FORMATS,
    SavedSignature,
    missing_operators,
    saved_signature,
)

CONVERTER = Converter(
    name="tensorflowjs",
    sources=FORMATS,
    kind="tfjs",
    module="tensorflowjs",
    quantize=("none", "fp16", "dynamic"),
    environment="tensorflowjs",
)

_WEIGHTS = {"none": None, "fp16": {"float16": True}, "dynamic": {"uint8": True}}
"""Storage of weights; the library converts them to float32 when it loads the model."""

_NO_KERNEL = base64.b64encode(b"_FusedHardSwish").decode()
"""An activation that the tool fuses into convolutions, as it is in ``model.json``.

WebAssembly has no kernel for it."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the folder ``request.output``: ``model.json`` and shards of weights.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    with saved_signature(request) as source:
        from tensorflowjs.converters import tf_saved_model_conversion_v2 as tool

        try:
            _write(tool, source, request)
            description = request.output / "model.json"
            if _NO_KERNEL in description.read_text(encoding="utf-8"):
                shutil.rmtree(request.output)
                _leave_apart(tool)
                _write(tool, source, request)
        # TensorFlow's errors have no common class with Python's.
        except Exception as error:
            raise _refusal(request, error) from error
    options = {"quantize": request.quantize, "signature": source.key}
    return ConversionOutcome(
        CONVERTER.name, version("tensorflowjs"), options, source.inputs, source.outputs
    )


def _write(tool: Any, source: SavedSignature, request: ConversionRequest) -> None:
    tool.convert_tf_saved_model(
        str(source.folder),
        str(request.output),
        signature_def=source.key,
        quantization_dtype_map=_WEIGHTS[request.quantize],
        use_structured_outputs_names=True,
    )


def _leave_apart(tool: Any) -> None:
    """Patch the tool in this process to fuse no operators."""
    optimize = tool._run_grappler

    def optimize_apart(config: Any, *rest: Any) -> Any:
        optimizers = config.graph_options.rewrite_options.optimizers
        optimizers[:] = [name for name in optimizers if name != "remap"]
        return optimize(config, *rest)

    tool._run_grappler = optimize_apart


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    operators = ", ".join(missing_operators(error)[:3])
    reason = f"TensorFlow.js has no operator for {operators}" if operators else ""
    return request.refusal(CONVERTER.name, str(error), reason, "--to tflite")
