"""The list of converters: a new one is its file in ``tools`` and a name here. No tool's packages are imported."""

from __future__ import annotations

import functools
import importlib

from pocketserve_lab.convert.converter import Converter

TOOLS: tuple[str, ...] = (
    "tflite_weights",
    "ai_edge_quantizer",
    "litert_torch",
    "executorch",
    "pytorch",
    "onnx_quantizer",
    "tensorflow_lite",
    "onnx2tf",
    "tf2onnx",
    "tensorflowjs",
    "openvino",
    "coreml",
)
"""Modules in ``tools``, each with ``CONVERTER`` (or ``CONVERTERS``). Of two for one path, the first is taken."""


@functools.cache
def converters() -> tuple[Converter, ...]:
    """Return all converters, in the order of preference."""
    modules = (importlib.import_module(f"{__package__}.tools.{name}") for name in TOOLS)
    return tuple(
        entry
        for module in modules
        for entry in getattr(module, "CONVERTERS", None) or (module.CONVERTER,)
    )
