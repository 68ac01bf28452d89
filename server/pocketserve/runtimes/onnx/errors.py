"""Explain ONNX Runtime's errors in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

from pocketserve.messages import excerpt

_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .* failed:|/\S+:\d+ .*?\) (?=[A-Z])|Please fix either .*"
)

# The prefixes of a failed run's reason, and of a failed check in the C++ source.
_STEP = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:'[^']*' Status Message: "
)
_CHECK = re.compile(r"(?:/\S+|\b\w+\.(?:h|cc)):\d+ (?:.*? was false\. |\w+ (?=[A-Z]))")

_SIZES = re.compile(
    r"\b(?:shapes?|dimensions?|reshaped|broadcast|split|channels|bounds)\b",
    re.IGNORECASE,
)

_MAX_READ = 6000
"""Characters of a text that are searched.

The file's names may be in it, and the time grows with the square of the length.
"""

_EXPLANATIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"
        ),
        "has IR version {0}, and {framework} knows those up to {1}; install a newer onnxruntime, or save the model "
        "with an older IR version",
    ),
    (
        re.compile(
            r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)",
            re.DOTALL,
        ),
        "has opset {0} of {1}, and {framework} knows those up to {2}; install a newer onnxruntime, or export the model "
        "with an older opset",
    ),
    (
        re.compile(r"(\S*:\w+)\(-?\d+\) is not a registered function/op"),
        "uses the operator {0}, which {framework} does not have; export the model without custom operators, or install "
        "a newer onnxruntime",
    ),
    (
        re.compile(r"No Op registered for (\w+) with domain_version of (\d+)"),
        "uses the operator {0} of opset {1}, which {framework} does not have; install a newer onnxruntime, or export "
        "the model without it",
    ),
    (
        re.compile(r"Could not find an implementation for (\w+)\((\d+)\)"),
        "uses the operator {0} (opset {1}) with a type or in a form that {framework} cannot compute with; convert it "
        "to float32, or to opset 7 or newer where it is older",
    ),
    (
        re.compile(r"MLDataType for: tensor\((\w+)\)"),
        "has a tensor of type {0}, which {framework} does not have; convert the model with another type",
    ),
    (
        re.compile(r"Failed to construct locale with name:([\w.-]+)"),
        "compares texts by the rules of the locale {0}, which this system does not have; install it, or export the "
        "model with the locale C",
    ),
    (
        re.compile(r"bad_alloc|bad allocation|Failed to allocate memory"),
        "needs more memory than is available",
    ),
)
"""Patterns of ONNX Runtime's errors, and their explanations."""


def explain_onnx_error(path: Path, framework: str, text: str) -> str:
    """Turn ONNX Runtime's error text into a sentence for users."""
    text = text[:_MAX_READ]
    for pattern, sentence in _EXPLANATIONS:
        match = pattern.search(text)
        if match:
            explanation = sentence.format(*match.groups(), framework=framework)
            return f"{path.name} {explanation}"
    reason = clean_text(text, 200) or "no reason given"
    return (
        f"{framework} cannot load {path.name} ({reason}): it is damaged, or needs what "
        "this version does not have; copy or export the file again, or install a newer "
        "onnxruntime"
    )


def foreign_operator(domain: str, kind: str, framework: str) -> str:
    """Explain an operator that is not allowed."""
    if kind in ("EPContext", "Snpe"):
        return (
            "was compiled for one kind of accelerator, whose files are not opened; use "
            "the model as it was before"
        )
    return (
        f"uses the operator {domain}:{kind}, which {framework} does not have, or which "
        "does more than compute; export the model without custom operators"
    )


def clean_text(text: str, maximum: int) -> str:
    """Return an error text in one line, without codes and source locations."""
    line = " ".join(text[:_MAX_READ].split())
    line = _STEP.sub(r"\1: ", line)
    line = _CHECK.sub("", line)
    line = _NOISE.sub("", line)
    return excerpt(line, maximum)


def is_about_sizes(text: str) -> bool:
    """Return whether a run failed because sizes don't fit.

    Dimensions that the file declares free may still be limited. Only the innermost
    reason counts; the names of enclosing loops are before it.
    """
    _, *steps, reason = _STEP.split(" ".join(text[:_MAX_READ].split()))
    return bool(steps) and _SIZES.search(_CHECK.sub("", reason)) is not None
