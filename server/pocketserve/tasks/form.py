"""Describe a task's inputs and parameters for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from pocketserve.tasks.parameters import Parameter

ACCEPTED: Final[Mapping[str, str]] = {
    "picture": "a picture file; with the parameter format also a raw camera frame",
    "sound": "a WAV file, or raw samples with the parameter format",
    "text": "a text in UTF-8",
    "texts": "a JSON list of texts",
    "pair": 'JSON: {"text": "...", "text_pair": "..."}, two texts that are read together',
    "query": 'JSON: {"query": "...", "texts": ["..."]}',
    "question": 'JSON: {"question": "...", "context": "..."}',
    "rows": "a row of numbers, an object by feature name, a list of either, or lines of CSV",
    "items": "a JSON list of items, by number or title",
    "tensors": "the input tensors as JSON or .npy",
    "file": "whatever the model's own task.py reads",
}
"""The kinds of raw input, each with its meaning."""


class Feature(NamedTuple):
    """A column of a table."""

    name: str
    unit: str = ""
    kind: str = "number"  # or ``string``, as in JSON Schema
    minimum: float | None = None  # the usual range; values outside are answered, too
    maximum: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return the column's facts as JSON."""
        facts = {"name": self.name, "unit": self.unit, "type": self.kind}
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {
            key: value
            for key, value in {**facts, **limits}.items()
            if value is not None and value != ""
        }


class Form(NamedTuple):
    """The raw input and the parameters that a model's task takes."""

    accepts: tuple[str, ...]  # keys of ``ACCEPTED``, the usual one first
    # Parameters that the task reads, with their defaults.
    parameters: tuple[Parameter, ...] = ()
    features: Sequence[Feature] = ()  # of rows; empty where they have no names
    # Names of a body's points; empty for other tasks and for unnamed points.
    keypoints: Sequence[str] = ()
    skeleton: Sequence[tuple[int, int]] = ()  # pairs of keypoints that a drawing joins

    def facts(self) -> dict[str, Any]:
        """Return the form as JSON for a model's card, without empty parts."""
        facts: dict[str, Any] = {
            "features": [feature.facts() for feature in self.features],
            "keypoints": list(self.keypoints),
            "skeleton": [list(pair) for pair in self.skeleton],
        }
        parameters = {
            parameter.name: parameter.described_schema()
            for parameter in self.parameters
        }
        filled = {key: value for key, value in facts.items() if value}
        return {"accepts": list(self.accepts), "parameters": parameters, **filled}


@runtime_checkable
class FormProvider(Protocol):
    """A task with a form."""

    def form(self) -> Form:
        """Return the task's inputs and parameters."""
        ...
