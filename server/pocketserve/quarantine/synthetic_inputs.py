"""Synthetic inputs, on which a trial runs a model of which nobody knows what it takes."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pocketserve.tasks.base import Describer, Hints, Task
from pocketserve.tensors import Array, TensorSpec, zeros

MAX_ELEMENTS: Final = 1 << 26  # a model with a larger input is only loaded
LARGE_DIMENSION: Final = 64  # a size of which strides and windows leave something

_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR42mNoaGBoaAAABgYCATGpHqEAAAAASUVORK5CYII="
"""A grey picture of 2 x 2 pixels, PNG."""

_SOUND: Final = (
    b"RIFF\x24\x10\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\0\x10\0\0"
    + b"\0\x10\0\xf0" * 1024
)
"""An eighth of a second at 16 kHz, WAV."""

_BODIES: Final = {
    "text.txt": ("text/plain", b"a good text"),
    "question.json": (
        "application/json",
        b'{"question": "who is it", "context": "it is a good text"}',
    ),
    "photo.jpg": ("image/png", base64.b64decode(_PIXEL)),
    "sound.wav": ("audio/wav", _SOUND),
}
"""By the example that a task names: the content type, and the smallest body of that kind."""

FillTensor = Callable[[TensorSpec], Array]


def body_for(task: Task) -> tuple[memoryview, Hints] | None:
    """Return a request's body for a task; None for one that takes plain numbers, or what only its owner knows."""
    example = task.describe().get("example") if isinstance(task, Describer) else None
    if example not in _BODIES:
        return None
    content_type, body = _BODIES[example]
    return memoryview(body), Hints(content_type)


def make_inputs(
    specs: Sequence[TensorSpec], fill: FillTensor
) -> dict[str, Array] | None:
    """Return inputs with variable dimensions as 1; None if the file does not say what it takes."""
    if any(
        spec.open or math.prod(max(1, size) for size in spec.shape) > MAX_ELEMENTS
        for spec in specs
    ):
        return None
    return {spec.name: fill(spec) for spec in specs}


def small_numbers(spec: TensorSpec) -> Array:
    """Return reals between 0 and 1; integers stay 0: they may be indices, which only 0 is sure to fit."""
    array = zeros(spec)
    if array.dtype.kind == "f":
        array[...] = np.random.default_rng(0).uniform(0.01, 1.0, array.shape)
    return array


def integer_ones(spec: TensorSpec) -> Array:
    """Return integers of 1, which nearly every vocabulary and mask takes; reals as in :func:`small_numbers`."""
    array = small_numbers(spec)
    return np.ones_like(array) if array.dtype.kind in "iub" else array


def masks_of_ones(spec: TensorSpec) -> Array:
    """Return as :func:`integer_ones` for inputs that are called masks; for all others as :func:`small_numbers`."""
    return integer_ones(spec) if "mask" in spec.name.casefold() else small_numbers(spec)


def enlarged(spec: TensorSpec) -> TensorSpec:
    """Return a spec with its free dimensions larger than 1, but for the first, which mostly counts rows."""
    sizes = enumerate(spec.shape)
    return spec._replace(
        shape=tuple(
            LARGE_DIMENSION if size == -1 and axis else size for axis, size in sizes
        )
    )
