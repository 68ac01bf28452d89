"""Choose the way from a format to a kind: one converter, or a short chain of two; or say why there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from pocketserve.messages import did_you_mean
from pocketserve.runtimes.engines import engine_advice
from pocketserve_lab.convert.converter import (
    KINDS,
    QUANTIZE_MODES,
    ConversionError,
    Converter,
)

SOURCE_ORDER = (
    "torch",
    "keras",
    "savedmodel",
    "pt2",
    "torchscript",
    "onnx",
    "ptl",
    "tflite",
)
"""Formats that a conversion begins with, the one nearest to the training first."""

TITLES = {
    "torch": "unconverted PyTorch",
    "torchscript": "TorchScript",
    "ptl": "PyTorch Mobile",
    "pt2": "torch.export",
    "tflite": "TFLite",
    "onnx": "ONNX",
    "executorch": "ExecuTorch",
    "keras": "Keras",
    "savedmodel": "SavedModel",
    "tfjs": "TensorFlow.js",
    "openvino": "OpenVINO",
    "coreml": "Core ML",
}


class Step(NamedTuple):
    """Describe one run of a converter: what it reads, and how it makes it smaller."""

    converter: Converter
    format: str
    quantize: str


Plan = tuple[Step, ...]


def plans_for(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[Plan]:
    """Return the ways from a format to a kind, the best first: one step before two, then the converters' order.

    Raises:
        ConversionError: there is none; the sentence has the reason, and ``nearest`` what to try instead.
    """
    direct = _direct(format, kind, quantize, converters)
    chains = [
        (*first, *second)
        for middle in dict.fromkeys(converter.kind for converter in converters)
        if (middle not in (format, kind) and format != kind)
        or (middle == kind and quantize != "none")
        for first in _direct(format, middle, "none", converters)
        for second in _direct(middle, kind, quantize, converters)
    ]
    plans = [*direct, *chains]
    if not plans:
        raise _refusal(format, kind, quantize, converters)
    return plans


def milder_mode(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> str:
    """Return the option of the mode that loses less, needs no samples and has a way; empty where there is none."""
    modes = (
        ("fp16", "dynamic", "none")
        if quantize == "int16x8"
        else ("dynamic", "fp16", "none")
    )
    milder = modes[modes.index(quantize) + 1 :] if quantize in modes else modes
    return next((f"--quantize {mode}" for mode in milder
                 if (format, mode) != (kind, "none") and _reaches(format, kind, mode, converters)), "")  # fmt: skip


def _direct(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[Plan]:
    return [
        (Step(converter, format, quantize),)
        for converter in converters
        if format in converter.sources
        and kind == converter.kind
        and quantize in converter.quantize
    ]


def _refusal(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> ConversionError:
    source, target = TITLES.get(format, format), TITLES.get(kind, kind)
    modes = [
        mode
        for mode in QUANTIZE_MODES
        if mode != quantize and _reaches(format, kind, mode, converters)
    ]
    if format == kind and quantize == "none":
        nearest = f"--quantize {' or '.join(modes)}" if modes else ""
        return ConversionError(f"it is {target} already", nearest=nearest)
    if modes:
        message = (
            f"no converter makes {target} from {source} with --quantize {quantize}"
        )
        return ConversionError(message, nearest=f"--quantize {' or '.join(modes)}")
    kinds = [
        other
        for other in KINDS
        if other not in (kind, format) and _reaches(format, other, quantize, converters)
    ]
    nearest = f"--to {' or '.join(kinds)}" if kinds else ""
    return ConversionError(
        f"no converter makes {target} from {source}", nearest=nearest
    )


def _reaches(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> bool:
    if _direct(format, kind, quantize, converters):
        return True
    middles = {
        c.kind for c in converters if format in c.sources and "none" in c.quantize
    } - {format}
    return any(_direct(middle, kind, quantize, converters) for middle in middles)


def reachable_kinds(
    formats: Sequence[str], quantize: str, converters: Sequence[Converter]
) -> list[str]:
    """Return the kinds that any of the formats can become, in the order of :data:`KINDS`."""
    return [
        kind
        for kind in KINDS
        if any(_reaches(format, kind, quantize, converters) for format in formats)
    ]


def environment_of(converter: Converter) -> str | None:
    """Return the environment that a converter needs here; None where it runs in the server's own."""
    if converter.environment is not None or converter.fallback is None:
        return converter.environment
    installed = all(
        importlib.util.find_spec(package) is not None for package in converter.packages
    )
    return None if installed else converter.fallback


def runs_on_device(converter: Converter) -> bool:
    """Return whether a converter can run where the server does: it needs at most packages that serve models, too."""
    return converter.environment is None


def check_kinds(text: str) -> list[str]:
    """Return the kinds that ``--to`` names; empty for ``all``.

    Raises:
        ConversionError: a name is none of a kind.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return []
    for name in names:
        if name not in KINDS:
            if (advice := engine_advice(name)) is not None:
                raise ConversionError(f"{name!r} is no kind of file; {advice}")
            hint = (
                did_you_mean(name, KINDS) or f"; there are {', '.join(KINDS)}, and all"
            )
            raise ConversionError(f"{name!r} is no kind of file{hint}")
    if not names:
        raise ConversionError(
            f"--to names no kind; there are {', '.join(KINDS)}, and all"
        )
    return list(dict.fromkeys(names))
