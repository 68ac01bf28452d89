"""The list of converters, which imports no packages of tools.

A new converter is its file in ``tools`` and its name here.
"""

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
    "pocketserve_lab.language.gguf_tool",
)
"""Modules in ``tools``, or their full names, each with ``CONVERTER`` or ``CONVERTERS``.

Of two converters for one path, the first is taken."""


@functools.cache
def converters() -> tuple[Converter, ...]:
    """Return all converters, in the order of preference."""
    entries: list[Converter] = []
    for name in TOOLS:
        full_name = name if "." in name else f"{__package__}.tools.{name}"
        module = importlib.import_module(full_name)
        entries += getattr(module, "CONVERTERS", None) or (module.CONVERTER,)
    return tuple(entries)
