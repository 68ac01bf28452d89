"""Runs several requests as one batch, if each gets its own answer.

That a model's first dimension is free does not make it a batch: it may be time, or characters. So the first batches of
a version are tried: the requests run one by one, as they would have anyway, and some of them once more together. Only
if every output has one row for each input row, and the same numbers (exactly the same where they are integers), is the
batch trusted from then on. A version that fails is never batched again.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from pocketserve.engine.scheduling.entries import QueueEntry

log = logging.getLogger(__name__)

TRIALS = (2, 4, 8)
"""Requests that are compared, batch by batch, before a version is trusted."""


ALONE = (None, 1, 0)
"""The batch key, rows and bytes of a request that runs alone."""


class RowBatcher:
    """Stacks requests along the first dimension and splits the outputs.

    Args:
        title: the version's name, for the log.
        signatures: entry points whose inputs all have a free first dimension, see :func:`free_rows`.
        max_rows: rows of one batch.
    """

    def __init__(
        self, title: str, signatures: frozenset[str | None], max_rows: int
    ) -> None:
        self.max_rows = max_rows
        self._title = title
        self._signatures = signatures
        self._trials: dict[str | None, int] = {}
        self._given_up = False

    def describe(self, entry: QueueEntry) -> tuple[Hashable | None, int, int]:
        """Return a request's batch key, rows and bytes.

        Requests with equal keys fit together; None fits none.
        """
        arrays = entry.arrays
        if self._given_up or not arrays or entry.signature not in self._signatures:
            return ALONE
        counts: set[int] = set()
        parts: list[tuple[str, str, tuple[int, ...]]] = []
        size = 0
        for name, array in sorted(arrays.items()):
            counts.add(array.shape[0] if array.ndim else 0)
            parts.append((name, array.dtype.str, array.shape[1:]))
            size += array.nbytes
        rows = counts.pop()
        if counts or not rows:
            return ALONE
        return (entry.signature, tuple(parts)), rows, size

    def run(
        self, session: Session, entries: Sequence[QueueEntry]
    ) -> tuple[list[Any], int]:
        """Return each request's outputs or exception, and the runs."""
        signature = entries[0].signature
        trial = self._trials.get(signature, 0)
        if self._given_up or trial < len(TRIALS):
            outcomes = _one_by_one(session, entries)
            runs = len(entries)
            if not self._given_up:
                runs += self._try(session, entries[: TRIALS[trial]], outcomes)
            return outcomes, runs
        inputs = [entry.arrays or {} for entry in entries]
        try:
            return _together(session, inputs, signature), 1
        except Exception as error:
            outcomes = _one_by_one(session, entries)
            if not _has_exception(outcomes):
                self._give_up(f"it failed on several rows at a time ({_brief(error)})")
            return outcomes, len(entries) + 1

    def _try(
        self, session: Session, entries: Sequence[QueueEntry], outcomes: Sequence[Any]
    ) -> bool:
        """Compare a batch with single results; return whether it was possible."""
        signature = entries[0].signature
        inputs = [dict(entry.arrays or {}) for entry in entries]
        alone = list(outcomes[: len(entries)])
        if _has_exception(alone):
            return False
        try:
            if _all_equal(inputs):
                # Equal rows would hide that they are mixed: reverse the last one.
                inputs[-1] = _reversed(inputs[-1])
                if _equal(inputs[0], inputs[-1]):
                    return False
                alone[-1] = session.run(inputs[-1], signature)
            together = _together(session, inputs, signature)
        except Exception as error:
            self._give_up(f"it failed on several rows at a time ({_brief(error)})")
            return True
        for batched, single in zip(together, alone, strict=True):
            if not agrees(batched, single):
                self._give_up("rows are answered differently in a batch")
                return True
        self._trials[signature] = self._trials.get(signature, 0) + 1
        return True

    def _give_up(self, reason: str) -> None:
        if not self._given_up:
            log.info("%s is not batched: %s", self._title, reason)
        self._given_up = True


def free_rows(
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]],
) -> frozenset[str | None]:
    """Return the entry points with numeric inputs of free first dimension."""
    names = set()
    for name, (inputs, _) in entry_points.items():
        if inputs.specs and all(_has_free_rows(spec) for spec in inputs.specs):
            names.add(name)
    return frozenset(names)


def _has_free_rows(spec: TensorSpec) -> bool:
    return not spec.open and spec.shape[:1] == (-1,) and spec.datatype != "BYTES"


def agrees(batched: Mapping[str, Array], alone: Mapping[str, Array]) -> bool:
    """Return whether two results agree.

    Integers exactly, floats except for rounding.
    """
    if batched.keys() != alone.keys():
        return False
    return all(_close(batched[name], array) for name, array in alone.items())


def _close(batched: Array, alone: Array) -> bool:
    if batched.shape != alone.shape or batched.dtype != alone.dtype:
        return False
    if alone.dtype.kind != "f" or not alone.size:
        return bool(np.array_equal(batched, alone))
    epsilon = float(np.finfo(alone.dtype).eps)
    relative = min(256 * epsilon, 0.01)
    absolute = min(64 * epsilon, 0.01) * _largest(alone)
    return np.allclose(batched, alone, rtol=relative, atol=absolute, equal_nan=True)


def _largest(array: Array) -> float:
    finite = np.isfinite(array)
    return float(np.max(np.abs(array), initial=0.0, where=finite))


def _one_by_one(session: Session, entries: Sequence[QueueEntry]) -> list[Any]:
    outcomes: list[Any] = []
    for entry in entries:
        try:
            outcomes.append(entry.work(session))
        except Exception as error:
            outcomes.append(error)
    return outcomes


def _together(
    session: Session, inputs: Sequence[Mapping[str, Array]], signature: str | None
) -> list[dict[str, Array]]:
    """Run requests as one batch and split its outputs.

    Raises:
        ValueError: an output does not have one row for each row of the inputs.
        Exception: whatever the framework raises.
    """
    sizes = []
    for arrays in inputs:
        first = next(iter(arrays.values()))
        sizes.append(first.shape[0])
    stacked: dict[str, Array] = {}
    for name in inputs[0]:
        stacked[name] = np.concatenate([arrays[name] for arrays in inputs])
    outputs = session.run(stacked, signature)
    _check_rows(outputs, sum(sizes))
    parts, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        parts.append({name: array[part] for name, array in outputs.items()})
        start += size
    return parts


def _check_rows(outputs: Mapping[str, Array], rows: int) -> None:
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            shape = list(array.shape)
            raise ValueError(
                f"output {name!r} of shape {shape} does not have {rows} rows"
            )


def _has_exception(outcomes: Sequence[Any]) -> bool:
    return any(isinstance(outcome, Exception) for outcome in outcomes)


def _reversed(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: np.ascontiguousarray(np.flip(array)) for name, array in arrays.items()
    }


def _all_equal(inputs: Sequence[Mapping[str, Array]]) -> bool:
    return all(_equal(inputs[0], other) for other in inputs[1:])


def _equal(arrays: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in arrays.items())


def _brief(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
