"""Define the request parameters of all tasks.

They are the query of ``/predictions``, and ``parameters`` in OIP. A parameter that a
model's task doesn't use is ignored; the interface rejects one that no task knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.tasks.base import AnswerOptions, Hints, invalid_parameter

MAX_TEXT = 256


class Parameter(NamedTuple):
    """A request parameter."""

    name: str
    kind: str  # ``integer``, ``number`` or ``string``, as in JSON Schema
    text: str  # one sentence for the interface's description
    low: float = -math.inf  # the range of a number
    high: float = math.inf
    # All valid values; empty if any text or number in the range is valid.
    choices: tuple[Any, ...] = ()
    default: Any = None  # of a model's task; None if there is none, or if it varies
    longest: int = MAX_TEXT  # characters of a text
    examples: tuple[Any, ...] = ()  # some of the values that make a difference

    def read(self, value: Any) -> Any:
        """Convert a request's value to the parameter's type."""
        if self.kind == "string":
            fits = isinstance(value, str) and len(value) <= self.longest
        else:
            value = _number(value)
            fits = self.low <= value <= self.high
            if fits and self.kind == "integer":
                fits = value.is_integer()
                if fits:
                    value = int(value)
        if not fits or (self.choices and value not in self.choices):
            text = f"parameter {self.name} must be {self._expected()}"
            raise invalid_parameter(text, self.name)
        return value

    def schema(self) -> dict[str, Any]:
        """Return the parameter's JSON Schema."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.choices:
            schema["enum"] = list(self.choices)
        for name, limit in (("minimum", self.low), ("maximum", self.high)):
            if math.isfinite(limit):
                schema[name] = int(limit) if limit == int(limit) else limit
        return schema

    def described_schema(self) -> dict[str, Any]:
        """Return the JSON Schema with description, default and examples."""
        schema = self.schema()
        schema["description"] = self.text
        if self.examples:
            schema["examples"] = list(self.examples)
        if self.default is not None:
            # A model's file may have any number as its threshold; JSON has no infinity.
            is_text = self.kind == "string"
            if is_text or math.isfinite(self.default):
                schema["default"] = self.default
        return schema

    def _expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind == "string":
            return f"a text of at most {self.longest} characters"
        number = "a number"
        if self.kind == "integer":
            number = "a whole number"
        if math.isfinite(self.high):
            number += f" from {self.low:g} to {self.high:g}"
        return number


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("top_k", "integer", "Maximum number of entries.", 1, 10_000),
    Parameter("threshold", "number", "Lowest score to return."),
    Parameter(
        "language",
        "string",
        "Language of the labels or of the text, such as de or en-US.",
    ),
    Parameter(
        "annotate",
        "string",
        "png or jpeg: answer the picture with the answer drawn on it. both: the answer, with that picture in base64.",
        choices=("png", "jpeg", "both"),
    ),
    Parameter(
        "mask",
        "string",
        "Segmentation: also answer the mask as a PNG in base64.",
        choices=("png",),
    ),
    Parameter(
        "iou",
        "number",
        "Detection: overlap above which the weaker of two boxes is dropped.",
        0,
        1,
    ),
    Parameter(
        "region",
        "string",
        "Use only this part of the picture: x,y,width,height in pixels.",
    ),
    Parameter(
        "format",
        "string",
        "What raw bytes without a header are: nv21, yuv420, rgba, rgb, gray for pictures; pcm16 and others for sound.",
    ),
    Parameter("rate", "integer", "Samples per second of raw sound.", 1000, 768_000),
    Parameter("channels", "integer", "Of raw sound, interleaved.", 1, 64),
    Parameter(
        "pool",
        "string",
        "Sound: pooling over windows; none returns each window.",
        choices=("mean", "max", "none"),
    ),
    Parameter(
        "speech_task",
        "string",
        "Speech: transcribe it, or translate it into English.",
        choices=("transcribe", "translate"),
    ),
    Parameter(
        "prompt",
        "string",
        "Speech: names and words that guide the spelling.",
        longest=4096,
    ),
    Parameter("temperature", "number", "Speech: 0 takes the most likely words.", 0, 1),
    Parameter("width", "integer", "Of a raw camera frame, in pixels.", 1, 1 << 16),
    Parameter("height", "integer", "Of a raw camera frame, in pixels.", 1, 1 << 16),
    Parameter(
        "rotation",
        "integer",
        "Degrees clockwise that turn a raw frame upright.",
        choices=(0, 90, 180, 270),
    ),
    Parameter(
        "row_stride",
        "integer",
        "Bytes from row to row of a raw frame's first plane.",
        1,
        1 << 18,
    ),
    Parameter(
        "uv_row_stride",
        "integer",
        "yuv420: bytes from row to row of the colour planes.",
        1,
        1 << 18,
    ),
    Parameter(
        "pixel_stride",
        "integer",
        "yuv420: bytes from value to value in the colour planes.",
        1,
        4,
    ),
)

_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}
NAMES = tuple(_BY_NAME)


def parameter(name: str, **more: Any) -> Parameter:
    """Return a parameter; ``more`` has a task's default or fewer choices."""
    return _BY_NAME[name]._replace(**more)


def hints_and_options(
    query: Mapping[str, Any], content_type: str
) -> tuple[Hints, AnswerOptions]:
    """Split a request's parameters into hints about the input and answer options."""
    values = {}
    for name, value in query.items():
        definition = _BY_NAME.get(name)
        if definition is not None:
            values[name] = definition.read(value)
    options = AnswerOptions(
        values.get("top_k"), values.get("threshold"), values.get("language"), values
    )
    return Hints(content_type, values), options


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
