"""Made-up inputs: what a trial runs a model on, of which nobody knows what it takes."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pocketserve.tasks.base import Described, Hints, Task
from pocketserve.tensors import Array, TensorSpec, zeros

MAX_ELEMENTS: Final = 1 << 26
"""Inputs larger than this are not made up: the trial only loads such a model."""

_LARGER: Final = 64
"""A size of which strides and windows leave something."""

_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR42mNoaGBoaAAABgYCATGpHqEAAAAASUVORK5CYII="
"""A grey picture of 2 x 2 pixels, PNG."""

_SOUND: Final = (
    b"RIFF\x24\x10\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\0\x10\0\0" + b"\0\x10\0\xf0" * 1024
)
"""An eighth of a second at 16 kHz, WAV."""

_BODIES: Final = {
    "text.txt": ("text/plain", b"a good text"),
    "question.json": ("application/json", b'{"question": "who is it", "context": "it is a good text"}'),
    "photo.jpg": ("image/png", base64.b64decode(_PIXEL)),
    "sound.wav": ("audio/wav", _SOUND),
}
"""By the example that a task names: the content type, and the smallest body of that kind."""

Make = Callable[[TensorSpec], Array]


def made_body(task: Task) -> tuple[memoryview, Hints] | None:
    """A body for a task's own steps; None for a task that takes plain numbers, or what only its owner knows."""
    described = task.describe() if isinstance(task, Described) else {}
    kind, body = _BODIES.get(described.get("example", ""), ("", b""))
    return (memoryview(body), Hints(kind)) if body else None


def make_inputs(specs: Sequence[TensorSpec], make: Make) -> dict[str, Array] | None:
    """Made-up inputs, variable dimensions as 1; None where the file does not tell what it takes."""
    if any(spec.open or math.prod(max(1, dim) for dim in spec.shape) > MAX_ELEMENTS for spec in specs):
        return None
    return {spec.name: make(spec) for spec in specs}


def small_numbers(spec: TensorSpec) -> Array:
    """Reals between 0 and 1; integers stay 0: they may be indices, which only 0 is sure to fit."""
    base = zeros(spec)
    if base.dtype.kind != "f":
        return base
    noise: Array = np.random.default_rng(0).uniform(0.01, 1.0, base.shape).astype(base.dtype)
    return noise


def ones(spec: TensorSpec) -> Array:
    """Integers of 1, which nearly every vocabulary and every mask takes; reals as in :func:`small_numbers`."""
    base = small_numbers(spec)
    return np.ones_like(base) if base.dtype.kind in "iub" else base


def masks_of_ones(spec: TensorSpec) -> Array:
    """As :func:`ones` for inputs that call themselves masks; for all others as :func:`small_numbers`."""
    return ones(spec) if "mask" in spec.name.casefold() else small_numbers(spec)


def enlarged(spec: TensorSpec) -> TensorSpec:
    """With another size than 1 for its free dimensions, but for the first, which mostly counts rows."""
    return replace(spec, shape=tuple(_LARGER if size == -1 and at else size for at, size in enumerate(spec.shape)))
