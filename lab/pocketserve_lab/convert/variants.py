"""Inputs of other shapes than the samples', to find sizes that a file has fixed.

An exporter may replace a free size by the one it saw, without an error. The original
decides which shapes are valid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tensors import Array, TensorSpec
from pocketserve_lab.convert.samples import MOVED_AXES
from pocketserve_wire import ApiError

ROW_COUNTS = (2, 4)
"""Further numbers of rows; the samples have one."""

SIZES_PER_AXIS = 2
MAX_OTHER_SAMPLES = 8
MAX_AXES = 16
MAX_ELEMENTS = 1 << 24
"""Of one input."""

TIME_LIMIT_S = 300.0
"""After it, no other variant of a slow model is tried."""

Inputs = dict[str, Array]
RunModel = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class Axis(NamedTuple):
    """An axis of an input, by the name that clients use."""

    name: str
    number: int


@dataclass(frozen=True)
class Variant:
    """Inputs of another shape that the original accepts.

    Attributes:
        axes: that have another size than in the samples.
        inputs: by name.
        outputs: the original's.
    """

    axes: tuple[Axis, ...]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


class VariantSearch:
    """Finds variants of a sample that the original accepts.

    Args:
        specs: the original's inputs.
        sample: the inputs of one sample.
        takes_rows: whether the first axis of all inputs counts rows.
        answer: runs the original.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        sample: Mapping[str, Array],
        *,
        takes_rows: bool,
        answer: RunModel,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._sample = dict(sample)
        self._takes_rows = takes_rows
        self._answer = answer
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._largest: dict[Axis, int] = {}

    def find(self, other_samples: Sequence[Mapping[str, Array]]) -> Iterator[Variant]:
        """Yield the variants, each of which is made when it is asked for.

        Args:
            other_samples: samples of other shapes.
        """
        for other in _one_of_each_shape(other_samples)[:MAX_OTHER_SAMPLES]:
            yield from self._try(other)
        if self._takes_rows and self._has_free_rows():
            for count in ROW_COUNTS:
                yield from self._try(self._resized(self._row_axes(), count))
        axes = self._free_axes()[:MAX_AXES]
        for axis in axes:
            yield from self._try_sizes((axis,))
        for group in self._tied(axes):
            yield from self._try_sizes(group)
        yield from self._try_everything()

    def _has_free_rows(self) -> bool:
        """Return whether every input takes any number of rows."""
        for name, array in self._sample.items():
            spec = self._specs[name]
            if array.ndim == 0 or len(array) == 0:
                return False
            if not spec.open and spec.shape[:1] != (-1,):
                return False
        return True

    def _row_axes(self) -> tuple[Axis, ...]:
        """Return the first axis of each input."""
        return tuple(Axis(name, 0) for name in self._sample)

    def _free_axes(self) -> list[Axis]:
        """Return the axes whose size the client chooses, apart from rows."""
        axes = []
        for name, array in self._sample.items():
            spec = self._specs[name]
            if spec.open or len(spec.shape) != array.ndim:
                continue
            for number, size in enumerate(spec.shape):
                is_row = number == 0 and self._takes_rows
                is_empty = array.shape[number] == 0
                if size == -1 and not is_row and not is_empty:
                    axes.append(Axis(name, number))
        return axes

    def _tied(self, axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
        """Return groups of axes of one size, such as the length of ids and mask."""
        groups: dict[int, list[Axis]] = {}
        for axis in axes:
            shape = self._sample[axis.name].shape
            size = shape[axis.number]
            groups.setdefault(size, []).append(axis)
        tied = []
        for group in groups.values():
            if len(group) > 1:
                tied.append(tuple(group))
        return tied

    def _try_sizes(self, axes: tuple[Axis, ...]) -> Iterator[Variant]:
        """Change axes to other sizes until the original accepts two."""
        accepted = 0
        first = axes[0]
        shape = self._sample[first.name].shape
        for size in other_sizes(shape[first.number]):
            for variant in self._try(self._resized(axes, size)):
                accepted += 1
                yield variant
            if accepted == SIZES_PER_AXIS:
                return

    def _try_everything(self) -> Iterator[Variant]:
        """Try larger sizes of all changeable axes at once, and two rows."""
        if len(self._largest) < 2:
            return
        inputs = dict(self._sample)
        for axis, size in self._largest.items():
            inputs[axis.name] = resized(inputs[axis.name], axis.number, size)
        yield from self._try(inputs)

    def _resized(self, axes: Sequence[Axis], size: int) -> Inputs:
        """Return the sample with some axes of another size."""
        inputs = dict(self._sample)
        for axis in axes:
            inputs[axis.name] = resized(inputs[axis.name], axis.number, size)
        return inputs

    def _try(self, inputs: Mapping[str, Array]) -> Iterator[Variant]:
        """Run the original; yield the variant if it accepts the inputs."""
        if time.monotonic() > self._deadline:
            return
        if max(map(_elements, inputs.values())) > MAX_ELEMENTS:
            return
        axes = self._changed(inputs)
        if not axes:
            return
        try:
            outputs = self._answer(inputs)
        except ApiError:
            return
        for axis in axes:
            size = inputs[axis.name].shape[axis.number]
            self._largest[axis] = max(size, self._largest.get(axis, 0))
        yield Variant(axes, inputs, outputs)

    def _changed(self, inputs: Mapping[str, Array]) -> tuple[Axis, ...]:
        """Return the axes of another size; none if the ranks differ."""
        axes = []
        for name, array in self._sample.items():
            if name not in inputs or inputs[name].ndim != array.ndim:
                return ()
            other_shape = inputs[name].shape
            for number, size in enumerate(array.shape):
                if other_shape[number] != size:
                    axes.append(Axis(name, number))
        return tuple(axes)


def other_sizes(size: int) -> Iterator[int]:
    """Yield sizes to try, larger and smaller ones in turn."""
    part = max(1, size // 4)
    candidates = (
        size + part,
        size - part,
        2 * size,
        size // 2,
        size + size // 2,
        size // 4,
        8 * size,
        1,
        size + 32,
    )
    yielded = {size}
    for candidate in candidates:
        if candidate > 0 and candidate not in yielded:
            yielded.add(candidate)
            yield candidate


def resized(array: Array, axis: int, size: int) -> Array:
    """Return an array with an axis cut, or continued with its own values."""
    indices = np.arange(size) % array.shape[axis]
    return np.ascontiguousarray(np.take(array, indices, axis=axis))


def _elements(array: Array) -> int:
    """Return the number of an array's elements."""
    return math.prod(array.shape)


def _one_of_each_shape(
    runs: Sequence[Mapping[str, Array]],
) -> list[Mapping[str, Array]]:
    """Return the first run of each combination of shapes."""
    first: dict[Any, Mapping[str, Array]] = {}
    for run in runs:
        shapes = tuple((name, run[name].shape) for name in sorted(run))
        first.setdefault(shapes, run)
    return list(first.values())


@dataclass
class FrozenAxes:
    """Axes that are free in the original and not in the result.

    Attributes:
        rejected: whose other sizes the result rejects.
        wrong: whose other sizes the result answers, but not as the original.
    """

    rejected: set[Axis]
    wrong: set[Axis]

    @property
    def all(self) -> set[Axis]:
        """All of them."""
        return self.rejected | self.wrong

    def __len__(self) -> int:
        return len(self.all)


class VariantResult(NamedTuple):
    """A result's answer to a variant.

    Attributes:
        axes: of the variant.
        is_rejected: whether it gave no answer.
        error: the relative error of its answer.
    """

    axes: tuple[Axis, ...]
    is_rejected: bool
    error: float = 0.0


def frozen_axes(results: Sequence[VariantResult], accepted: float) -> FrozenAxes:
    """Return the axes that failed.

    A variant that changes several axes counts only if no other failure explains it.

    Args:
        accepted: the largest error.
    """
    frozen = FrozenAxes(set(), set())
    failed = []
    for result in results:
        # NaN is not accepted.
        if result.is_rejected or not result.error <= accepted:
            failed.append(result)
    for result in sorted(failed, key=lambda result: len(result.axes)):
        explained = frozen.all.intersection(result.axes)
        if not explained:
            kind = frozen.rejected if result.is_rejected else frozen.wrong
            kind.update(result.axes)
        elif not result.is_rejected:
            # A wrong answer needs an axis that is fixed because of wrong answers.
            frozen.wrong.update(explained)
    frozen.rejected -= frozen.wrong
    return frozen


SINGLE_ROW = "it takes one row at a time"


class ResultShapes:
    """Finds the axes of the original in a result.

    Args:
        original, result: facts of both from the runs of samples.
        layouts: of an outcome.
    """

    def __init__(
        self,
        original: Mapping[str, Any],
        result: Mapping[str, Any],
        layouts: Mapping[str, str],
    ) -> None:
        self._original = original
        self._layouts = layouts
        names = [tensor["name"] for tensor in original["inputs"]]
        by_name = {tensor["name"]: tensor for tensor in result["inputs"]}
        if set(names) != set(by_name):
            by_name = dict(zip(names, result["inputs"], strict=True))
        self._tensors = by_name

    def undeclared(self, axes: Collection[Axis]) -> frozenset[Axis]:
        """Return the axes that the result declares as free."""
        free = []
        for axis in axes:
            shape = self._own_shape(axis.name)
            number = self._own_number(axis)
            if shape[number] == -1:
                free.append(axis)
        return frozenset(free)

    def fixed(self, axes: Collection[Axis]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs that the axes belong to."""
        shapes: dict[str, list[int]] = {}
        for axis in sorted(axes):
            tensor = self._tensors[axis.name]
            shape = shapes.setdefault(tensor["name"], self._own_shape(axis.name))
            shape[self._own_number(axis)] = sample_size(self._original, axis)
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _own_shape(self, name: str) -> list[int]:
        """Return the result's shape of an input.

        A file that tells no rank takes any size of the samples' rank.
        """
        shape = list(self._tensors[name]["shape"])
        rank = len(self._original["sample_shapes"][name])
        return shape if len(shape) == rank else [-1] * rank

    def notes(self, axes: Collection[Axis], notes: Collection[str]) -> list[str]:
        """Return a sentence for each input, and one for rows.

        Args:
            notes: the existing ones; the one for rows is not repeated.
        """
        texts = []
        rows = {axis for axis in axes if self._is_row(axis)}
        if rows and not any(SINGLE_ROW in note for note in notes):
            texts.append(f"{SINGLE_ROW}, and the original any number")
        for axis in sorted(set(axes) - rows):
            size = sample_size(self._original, axis)
            texts.append(
                f"axis {axis.number} of its input {axis.name!r} is fixed at {size}, as in "
                "the samples; the original takes other sizes"
            )
        return texts

    def _is_row(self, axis: Axis) -> bool:
        """Return whether an axis counts the rows of its input."""
        return axis.number == 0 and bool(self._original["rows"].get(axis.name))

    def _own_number(self, axis: Axis) -> int:
        """Return an axis's number in the result."""
        shape = self._original["sample_shapes"][axis.name]
        moved = MOVED_AXES.get(self._layouts.get(axis.name, ""))
        if moved is None or len(shape) != len(moved):
            return axis.number
        return moved.index(axis.number)


def sample_size(facts: Mapping[str, Any], axis: Axis) -> int:
    """Return the size of an axis in the samples."""
    return int(facts["sample_shapes"][axis.name][axis.number])


def axes_text(axes: Collection[Axis]) -> str:
    """Return axes for a message."""
    return ", ".join(f"axis {axis.number} of {axis.name!r}" for axis in sorted(axes))


def shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return shapes for a table."""
    texts = []
    for name, shape in shapes.items():
        sizes = ", ".join("any" if size == -1 else str(size) for size in shape)
        texts.append(f"{name} [{sizes}]")
    return "; ".join(texts)
