"""Synthetic inputs for the trial of a model with unknown requirements."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pocketserve.tasks.base import Describer, Hints, Task
from pocketserve.tensors import Array, TensorSpec, zeros

MAX_ELEMENTS: Final = 1 << 26  # a model with a larger input is loaded, but not run
LARGE_DIMENSION: Final = 64  # large enough for strides and windows

_PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR42mNoaGBoaAAABgYCATGpHqEA"
    "AAAASUVORK5CYII="
)
"""A grey picture of 2 x 2 pixels, PNG."""

_SOUND: Final = (
    b"RIFF\x24\x10\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0"
    b"data\0\x10\0\0" + b"\0\x10\0\xf0" * 1024
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
"""Content type and a small body, by the example that a task names."""

FillTensor = Callable[[TensorSpec], Array]


def body_for(task: Task) -> tuple[memoryview, Hints] | None:
    """Return a request body for a task, or None."""
    example = task.describe().get("example") if isinstance(task, Describer) else None
    if example not in _BODIES:
        return None
    content_type, body = _BODIES[example]
    return memoryview(body), Hints(content_type)


def make_inputs(
    specs: Sequence[TensorSpec], fill: FillTensor
) -> dict[str, Array] | None:
    """Return inputs of the smallest size; None if too large."""
    for spec in specs:
        elements = math.prod(max(1, size) for size in spec.shape)
        if spec.open or elements > MAX_ELEMENTS:
            return None
    return {spec.name: fill(spec) for spec in specs}


def small_numbers(spec: TensorSpec) -> Array:
    """Return small reals, but zeros for integers."""
    array = zeros(spec)
    if array.dtype.kind == "f":
        array[...] = np.random.default_rng(0).uniform(0.01, 1.0, array.shape)
    return array


def integer_ones(spec: TensorSpec) -> Array:
    """Return ones for integers, but small reals."""
    array = small_numbers(spec)
    return np.ones_like(array) if array.dtype.kind in "iub" else array


def masks_of_ones(spec: TensorSpec) -> Array:
    """Return ones for inputs that are called masks, else :func:`small_numbers`."""
    if "mask" in spec.name.casefold():
        return integer_ones(spec)
    return small_numbers(spec)


def enlarged(spec: TensorSpec) -> TensorSpec:
    """Return a spec with large free dimensions, except the first."""
    shape = []
    for axis, size in enumerate(spec.shape):
        shape.append(LARGE_DIMENSION if size == -1 and axis else size)
    return spec._replace(shape=tuple(shape))
