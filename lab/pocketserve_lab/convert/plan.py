"""Choose one converter, or a chain of two."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pocketserve.messages import did_you_mean
from pocketserve.runtimes.engines import engine_advice
from pocketserve_lab.convert.converter import (
    GGUF_MODES,
    INT8_OPTIONS,
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
"""Formats that a conversion can start from, the one closest to the training first."""

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
    "gguf": "GGUF",
    "transformers": "a Hugging Face folder",
    "whisper-torch": "unconverted Whisper",
}


class Step(NamedTuple):
    """A run of a converter in a plan."""

    converter: Converter
    format: str
    quantize: str


ConversionPlan = tuple[Step, ...]


def plans_for(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[ConversionPlan]:
    """Return the plans from a format to a kind, best first.

    One step is better than two; then the order of the converters counts.

    Raises:
        ConversionError: there is none; the text has the reason, and ``nearest`` an
            alternative.
    """
    plans = _direct(format, kind, quantize, converters)
    for middle in dict.fromkeys(converter.kind for converter in converters):
        if not _is_detour(format, middle, kind, quantize):
            continue
        for first in _direct(format, middle, "none", converters):
            for second in _direct(middle, kind, quantize, converters):
                plans.append((*first, *second))
    if not plans:
        raise _refusal(format, kind, quantize, converters)
    return plans


def plans_with_options(
    plans: Sequence[ConversionPlan], kind: str, options: AbstractSet[str]
) -> list[ConversionPlan]:
    """Return the plans whose quantisation knows some options of INT8_OPTIONS.

    Raises:
        ConversionError: there is none.
    """
    suited = []
    for plan in plans:
        if options <= frozenset(plan[-1].converter.wishes):
            suited.append(plan)
    if not suited:
        names = " and ".join(INT8_OPTIONS[option] for option in sorted(options))
        raise ConversionError(
            f"no converter of {TITLES[plans[0][0].format]} to {TITLES[kind]} has {names}",
            nearest="--to onnx, or leave the option out",
        )
    return suited


def _is_detour(format: str, middle: str, kind: str, quantize: str) -> bool:
    """Return whether a chain by way of another kind makes sense.

    A result may also be quantised in a second step.
    """
    if middle == kind:
        return quantize != "none"
    return format not in (middle, kind)


def milder_mode(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> str:
    """Return the option of a milder mode without samples.

    Empty if there is none.
    """
    modes = ["dynamic", "fp16", "none"]
    if quantize == "int16x8":
        modes = ["fp16", "dynamic", "none"]
    if quantize in modes:
        modes = modes[modes.index(quantize) + 1 :]
    for mode in modes:
        is_copy = format == kind and mode == "none"
        if not is_copy and _reaches(format, kind, mode, converters):
            return f"--quantize {mode}"
    return ""


def _direct(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[ConversionPlan]:
    """Return the plans of one step."""
    plans: list[ConversionPlan] = []
    for converter in converters:
        if converter.kind != kind or format not in converter.sources:
            continue
        if quantize in converter.quantize:
            plans.append((Step(converter, format, quantize),))
    return plans


def _refusal(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> ConversionError:
    """Return the error of a plan that does not exist, with an alternative."""
    source, target = TITLES.get(format, format), TITLES.get(kind, kind)
    modes = _other_modes(format, kind, quantize, converters)
    nearest = f"--quantize {' or '.join(modes)}" if modes else ""
    if format == kind and quantize == "none":
        return ConversionError(f"it is {target} already", nearest=nearest)
    message = f"no converter makes {target} from {source}"
    if modes:
        return ConversionError(f"{message} with --quantize {quantize}", nearest=nearest)
    kinds = _other_kinds(format, kind, quantize, converters)
    nearest = f"--to {' or '.join(kinds)}" if kinds else ""
    return ConversionError(message, nearest=nearest)


def _other_modes(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[str]:
    """Return the other quantisations that a format can be converted with."""
    modes = []
    for mode in (*QUANTIZE_MODES, *GGUF_MODES):
        if mode != quantize and _reaches(format, kind, mode, converters):
            modes.append(mode)
    return modes


def _other_kinds(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> list[str]:
    """Return the other kinds that a format can be converted to."""
    kinds = []
    for other in KINDS:
        if other in (kind, format):
            continue
        if _reaches(format, other, quantize, converters):
            kinds.append(other)
    return kinds


def _reaches(
    format: str, kind: str, quantize: str, converters: Sequence[Converter]
) -> bool:
    """Return whether a plan leads from a format to a kind."""
    if _direct(format, kind, quantize, converters):
        return True
    for first in converters:
        if format not in first.sources or "none" not in first.quantize:
            continue
        if first.kind == format:
            continue
        if _direct(first.kind, kind, quantize, converters):
            return True
    return False


def reachable_kinds(
    formats: Sequence[str], quantize: str, converters: Sequence[Converter]
) -> list[str]:
    """Return the kinds that any of the formats can become."""
    kinds = []
    for kind in KINDS:
        if any(_reaches(format, kind, quantize, converters) for format in formats):
            kinds.append(kind)
    return kinds


def environment_of(converter: Converter) -> str | None:
    """Return the environment that a converter needs here.

    None if it runs in the server's own.
    """
    if converter.environment is not None or converter.fallback is None:
        return converter.environment
    for package in converter.packages:
        if importlib.util.find_spec(package) is None:
            return converter.fallback
    return None


def runs_on_device(converter: Converter) -> bool:
    """Return whether a converter can run on the server's device.

    Then it needs only packages that serve models, too.
    """
    return converter.environment is None


def check_kinds(text: str) -> list[str]:
    """Return the kinds that ``--to`` names; empty for ``all``.

    Raises:
        ConversionError: a name is not a kind.
    """
    names = []
    for part in text.split(","):
        if part.strip():
            names.append(part.strip())
    if names == ["all"]:
        return []
    for name in names:
        if name not in KINDS:
            raise ConversionError(f"{name!r} is not a kind of file{_kind_hint(name)}")
    if not names:
        raise ConversionError(
            f"--to names no kind; there are {', '.join(KINDS)}, and all"
        )
    return list(dict.fromkeys(names))


def _kind_hint(name: str) -> str:
    """Return advice about an unknown kind of file."""
    advice = engine_advice(name)
    if advice is not None:
        return f"; {advice}"
    suggestion = did_you_mean(name, KINDS)
    return suggestion or f"; there are {', '.join(KINDS)}, and all"
