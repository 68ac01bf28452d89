"""Batched requests get their own answers, or the model is no longer batched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import MODELS, STATE
from pocketserve.config import Config, load_config
from pocketserve.engine.lifecycle.loaded_model import LoadedModel, load_model
from pocketserve.engine.scheduling.batching import TRIALS, RowBatcher, agrees, free_rows
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve.trust.store import TrustStore
from queue_entries import FunctionEntry, run

TIMEOUT_S = 120.0
Function = Callable[[Array], Array]


class Computed:
    """A session that computes a function of its one input ``x`` and records the rows of
    each run.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self.runs: list[int] = []

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        self.runs.append(inputs["x"].shape[0])
        return {"y": self._function(inputs["x"])}


class Work:
    """One request, as an entry for a batcher and as a function for a queue."""

    def __init__(
        self, arrays: Mapping[str, Array] | None, signature: str | None = None
    ) -> None:
        self.arrays = arrays
        self.signature = signature

    def work(self, session: Session) -> dict[str, Array]:
        assert self.arrays is not None
        return session.run(self.arrays, self.signature)

    __call__ = work


def batcher(max_rows: int = 8) -> RowBatcher:
    return RowBatcher("m/v", frozenset({None}), max_rows)


def make_requests(*values: float | list[float]) -> list[Work]:
    """Return requests of one row with these numbers."""
    return [
        Work({"x": np.atleast_2d(np.asarray(value, np.float32))}) for value in values
    ]


def ask(one: RowBatcher, session: object, *values: float | list[float]) -> list[Any]:
    outcomes, _ = one.run(session, make_requests(*values))  # type: ignore[arg-type]
    return [
        out if isinstance(out, Exception) else out["y"].tolist() for out in outcomes
    ]


def trusted(function: Function) -> tuple[RowBatcher, Computed]:
    """Return a batcher whose model has passed its trials."""
    one = batcher()
    session = Computed(function)
    for trial in range(len(TRIALS)):
        ask(one, session, trial, trial + 1, trial + 2)
    session.runs.clear()
    return one, session


def test_batching_is_on_in_tests():
    """Unless a test turns it off, in this process and in started servers."""
    assert Config().batching
    assert Config().max_batch > 1
    assert load_config({}).batching, (
        "POCKETSERVE_BATCHING is off in this run: it proves nothing about batches"
    )


def test_a_model_is_tried_before_it_is_trusted():
    one = batcher()
    session = Computed(lambda x: x * 2)
    for trial in TRIALS:
        assert ask(one, session, *range(8)) == [[[2.0 * number]] for number in range(8)]
        assert session.runs == [1] * 8 + [trial]
        session.runs.clear()
    assert ask(one, session, *range(8)) == [[[2.0 * number]] for number in range(8)]
    assert session.runs == [8]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(axis=0),
        lambda x: np.cumsum(x, axis=0),
        lambda x: x / np.linalg.norm(x),
        lambda x: np.sort(x, axis=0),
        lambda x: np.argsort(x[:, 0]),
        lambda x: x.sum(axis=0),
        lambda x: np.float32(x.sum()),
        lambda x: x.T,
        lambda x: x[:1],
        lambda x: x.reshape(1, 1),
        lambda x: x.astype(np.float64) if len(x) > 1 else x,
    ],
)
def test_a_model_whose_rows_affect_each_other_is_never_batched(function):
    one = batcher()
    session = Computed(function)
    expected = []
    for work in make_requests(3, 1, 2):
        expected.append(np.asarray(function(work.arrays["x"])).tolist())
    for _ in range(5):
        assert ask(one, session, 3, 1, 2) == expected
    assert session.runs[-6:] == [1] * 6
    assert one.describe(make_requests(1)[0])[0] is None


def test_equal_requests_do_not_hide_mixed_rows():
    one = batcher()
    session = Computed(lambda x: x - x.mean(axis=0))
    assert ask(one, session, [1, 2], [1, 2]) == [[[0.0, 0.0]], [[0.0, 0.0]]]
    assert one.describe(make_requests([1, 2])[0])[0] is None


def test_uninformative_requests_do_not_build_trust():
    one = batcher()
    session = Computed(lambda x: x - x.mean(axis=0))
    for _ in range(9):
        ask(one, session, [0, 0], [0, 0])
    assert set(session.runs) == {1}


def reject_negative(x: Array) -> Array:
    """Raise for negative numbers."""
    if (x < 0).any():
        raise ValueError("negative")
    return x + 1


def test_a_bad_input_fails_only_its_own_request():
    one, session = trusted(reject_negative)
    first, bad, last = ask(one, session, 1, -1, 3)
    assert (first, last) == ([[2.0]], [[4.0]])
    assert isinstance(bad, ValueError)
    assert session.runs == [3, 1, 1, 1]
    session.runs.clear()
    ask(one, session, 1, 2)
    assert session.runs == [2]  # not the model's fault


def test_a_bad_input_does_not_end_a_trial():
    one = batcher()
    session = Computed(reject_negative)
    assert isinstance(ask(one, session, 1, -1)[1], ValueError)
    assert one.describe(make_requests(1)[0])[0] is not None


def test_batching_stops_when_the_model_rejects_several_rows():
    maximum = 100

    def small(x: Array) -> Array:
        if len(x) > maximum:
            raise RuntimeError("too many")
        return x

    one, session = trusted(small)
    maximum = 1
    assert ask(one, session, 1, 2) == [[[1.0]], [[2.0]]]
    assert one.describe(make_requests(1)[0])[0] is None


def test_batching_stops_when_outputs_no_longer_match_the_rows():
    cut = 100
    one, session = trusted(lambda x: x[:cut])
    cut = 2
    assert ask(one, session, 1, 2, 3) == [
        [[1.0]],
        [[2.0]],
        [[3.0]],
    ]
    assert one.describe(make_requests(1)[0])[0] is None


def test_which_requests_share_a_batch():
    one = RowBatcher("m/v", frozenset({None, "other"}), 8)

    def key(signature: str | None = None, **arrays: Array) -> object:
        return one.describe(Work(arrays, signature))[0]

    row = np.zeros((1, 3), np.float32)
    rows = np.zeros((5, 3), np.float32)
    assert key(x=row) is not None
    assert key(x=row) == key(x=row + 1)
    assert key(x=row) == key(x=rows)
    assert one.describe(Work({"x": rows}))[1:] == (5, 60)
    assert key(a=row, b=row) is not None
    assert key(a=row, b=row) == key(b=row, a=row)
    different = [
        key(x=row),
        key("other", x=row),
        key(x=row.astype(np.float64)),
        key(x=row[:, :2]),
        key(y=row),
    ]
    assert len(set(different)) == len(different)
    assert key("unknown", x=row) is None
    assert key(a=row, b=np.zeros((2, 3))) is None
    assert key(x=np.float32(1)) is None
    assert key(x=row[:0]) is None
    assert one.describe(Work(None)) == (None, 1, 0)


FLOATS = st.floats(width=32, allow_nan=True)


@given(st.lists(FLOATS, min_size=1, max_size=9))
def test_every_array_agrees_with_itself(values):
    for dtype in (np.float32, np.float64):
        array = np.asarray(values, dtype)
        assert agrees({"y": array}, {"y": array.copy()})


def test_integers_must_be_equal_and_floats_close():
    one = np.arange(5)
    assert not agrees({"y": one}, {"y": one + 1})
    real = np.linspace(0.1, 1, 5, dtype=np.float32)
    assert agrees({"y": real}, {"y": real * np.float32(1 + 1e-6)})
    assert not agrees({"y": real}, {"y": real * np.float32(1.001)})
    assert not agrees({"y": real}, {"y": real.astype(np.float64)})
    assert not agrees({"y": real}, {"z": real})
    assert not agrees({"y": np.float32([np.nan, 1])}, {"y": np.float32([1, 1])})


# --- In a queue


class Gate:
    """A batcher whose first run waits for a signal."""

    def __init__(self, inner: RowBatcher) -> None:
        self.inner = inner
        self.max_rows = inner.max_rows
        self.batches: list[int] = []

    def describe(self, work: Work) -> tuple[object, int, int]:
        return self.inner.describe(work)

    def run(self, session: Session, listed: list[Work]) -> tuple[list[Any], int]:
        self.batches.append(len(listed))
        return self.inner.run(session, listed)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as executor:
        yield executor


def run_crowd(
    pool: ThreadPoolExecutor, function: Function, values: list[float]
) -> tuple[list[Any], Gate, Computed]:
    """Return the outcomes of requests that wait together for a trusted model's one
    session.
    """
    inner, session = trusted(function)
    gate = Gate(inner)
    entered = threading.Event()
    proceed = threading.Event()
    queue = ModelQueue([session], 64, batcher=gate)  # type: ignore[list-item]

    def hold(given: object) -> None:
        entered.set()
        assert proceed.wait(TIMEOUT_S)

    def later() -> RequestOptions:
        return RequestOptions(monotonic() + TIMEOUT_S)

    futures = [pool.submit(run, queue, hold, later())]  # type: ignore[arg-type]
    assert entered.wait(TIMEOUT_S)
    for count, work in enumerate(make_requests(*values)):
        futures.append(pool.submit(run, queue, work, later()))
        deadline = monotonic() + TIMEOUT_S
        pause = threading.Event()
        while queue.waiting != count + 1:
            assert monotonic() < deadline
            pause.wait(0.001)
    proceed.set()
    fates: list[Any] = []
    for future in futures[1:]:
        error = future.exception(TIMEOUT_S)
        fates.append(error if error is not None else future.result())
    assert queue.waiting == 0
    return fates, gate, session


def test_waiting_requests_share_as_few_runs_as_possible(pool):
    turns, gate, session = run_crowd(
        pool, lambda x: x * 2, [float(number) for number in range(19)]
    )
    assert [turn.result["y"].tolist() for turn in turns] == [
        [[2.0 * number]] for number in range(19)
    ]
    assert gate.batches == session.runs == [8, 8, 3]
    assert [turn.batch_rows for turn in turns] == [8] + [0] * 7 + [8] + [0] * 7 + [
        3,
        0,
        0,
    ]
    assert sum(turn.executions for turn in turns) == 3
    assert all(turn.queue_ns > 0 and turn.run_ns > 0 for turn in turns)


def test_a_bad_input_among_waiting_requests(pool):
    fates, _, session = run_crowd(pool, reject_negative, [1.0, -1.0, 3.0])
    assert isinstance(fates[1], ValueError)
    turns: list[FunctionEntry] = [fates[0], fates[2]]
    assert [turn.result["y"].tolist() for turn in turns] == [[[2.0]], [[4.0]]]
    assert [turn.batch_rows for turn in turns] == [None, None]
    # The batch, then one run each; the third failed.
    assert sum(turn.executions for turn in turns) == 3
    assert session.runs == [3, 1, 1, 1]


# --- Real models


def opened(name: str, version: str) -> LoadedModel:
    entry = scan(MODELS)[name]
    return load_model(
        entry,
        entry.versions[version],
        1,
        10**6,
        None,
        monotonic() + TIMEOUT_S,
        trust=TrustStore(STATE),
    )


def check_real(name: str, version: str) -> None:
    """Check that a model passes its trials and its batches give each request its own
    answer.
    """
    model = opened(name, version)
    try:
        signatures = free_rows(model.entry_points)
        assert None in signatures
        one = RowBatcher(f"{name}/{version}", signatures, 16)
        session = model.sessions[0]
        (spec,) = session.inputs
        random = np.random.default_rng(7)

        def draw(rows: int) -> Work:
            shape = (rows, *spec.shape[1:])
            if spec.datatype == "FP32":
                return Work({spec.name: random.random(shape, np.float32)})
            return Work({spec.name: random.integers(-100, 100, shape).astype(np.int8)})

        for round_ in range(len(TRIALS) + 3):
            listed = [draw(rows) for rows in (1, 3, 1, 2, 1, 1, 1, 1)]
            outcomes, executions = one.run(session, listed)
            assert executions == (9 if round_ < len(TRIALS) else 1)
            assert all(
                agrees(mine, work(session))
                for mine, work in zip(outcomes, listed, strict=True)
            )
    finally:
        model.close()


@pytest.mark.parametrize("name", ["digits", "petals", "diabetes"])
def test_tflite(name):
    check_real(name, "tflite")


def test_quantised_tflite():
    check_real("digits", "tflite-int8")


@pytest.mark.onnx
@pytest.mark.parametrize("name", ["digits", "petals", "diabetes"])
def test_onnx(name):
    check_real(name, "onnx")


@pytest.mark.torch
# TorchScript is under test although it is deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", ["torch", "torchscript", "ptl"])
@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_torch(name, version):
    check_real(name, version)
