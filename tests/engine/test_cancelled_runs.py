"""A cancelled request ends between two runs, or while its input is prepared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.inference.call import prepare_operation
from pocketserve.inference.operations import Operation
from pocketserve.inference.payload import Payload, RawPayload, TensorPayload
from pocketserve.tasks.base import AnswerOptions, Arrays, Prepared
from pocketserve.tasks.cancellation import (
    CHECK_INTERVAL,
    cancellable,
    checkpoint,
    enumerate_cancellable,
)
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode, Tensor, oip

SPEC = TensorSpec("x", "FP32", (1, 2))


class GivenUp:
    """A session whose request is cancelled during its third run."""

    def __init__(self, switch: Cancellation) -> None:
        self.runs = 0
        self._switch = switch

    def run(
        self, inputs: Mapping[str, Array], _signature: str | None
    ) -> dict[str, Array]:
        self.runs += 1
        if self.runs == 3:
            self._switch.cancel()
        return dict(inputs)


class Windows:
    """A task of ten runs."""

    name = "windows"

    def prepare(self, _body: memoryview, _hints: Any) -> Prepared:
        return Prepared(tuple({"x": np.zeros((1, 2), np.float32)} for _ in range(10)))

    def answer(
        self, _runs: list[Arrays], _options: AnswerOptions, _context: Any
    ) -> list[dict[str, Any]]:
        return []


def operation(
    model: SimpleNamespace,
    payload: Payload,
    options: RequestOptions,
    sequences: object = None,
) -> Operation:
    """Return the operation that a request to this model runs."""
    handle: Any = SimpleNamespace(
        model=model, queue=ModelQueue([object()], 1), sequences=sequences
    )  # type: ignore[list-item]
    return prepare_operation(handle, payload, options, None)


ROWS = TensorPayload(
    oip.InferRequest([Tensor("x", "FP32", (10, 2), memoryview(bytes(80)))]),
    row_by_row=True,
)
WINDOWS = RawPayload(memoryview(b""), AnswerOptions())


def test_a_step_of_a_sequence_is_one_run() -> None:
    """Independent runs have no state to pass on.

    A model without state ignores the parameter.
    """
    bound = Bindings((SPEC,), {"x": (SPEC, "x")})
    model = SimpleNamespace(
        task=Windows(),
        inputs=bound,
        feedback={},
        first_state={},
    )
    payload = WINDOWS._replace(parameters={"sequence_id": 1, "sequence_start": True})
    options = RequestOptions(time.monotonic() + 60)
    with pytest.raises(
        ApiError, match="one run of the model, and this input takes several"
    ) as caught:
        operation(model, payload, options, sequences=object())
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert operation(model, payload, options).arrays is None


@pytest.mark.parametrize("payload", [ROWS, WINDOWS], ids=["rows", "windows"])
def test_a_cancelled_request_ends_between_its_runs(payload: Payload) -> None:
    """The third of ten runs is the last."""
    switch = Cancellation()
    session: Any = GivenUp(switch)
    bound = Bindings((SPEC,), {"x": (SPEC, "x")})
    model = SimpleNamespace(
        task=Windows(),
        inputs=bound,
        outputs=bound,
        feedback={},
        first_state={},
        entry_points={None: (bound,) * 2},
    )
    with pytest.raises(ApiError, match="between two runs") as caught:
        operation(
            model, payload, RequestOptions(time.monotonic() + 60, cancellation=switch)
        ).run(session, None)
    assert caught.value.code is ErrorCode.CANCELLED
    assert session.runs == 3


class Preparing(Windows):
    """A task that prepares ten windows and is cancelled after three."""

    def __init__(self, options: RequestOptions, switch: Cancellation | None) -> None:
        self.prepared = 0
        self._options = options
        self._switch = switch

    def prepare(self, body: memoryview, hints: Any) -> Prepared:
        for _ in cancellable(range(10)):
            self.prepared += 1
            if self.prepared == 3 and self._switch is not None:
                self._switch.cancel()
            elif self.prepared == 3:
                self._options.deadline = time.monotonic() - 1
        return super().prepare(body, hints)


@pytest.mark.parametrize("code", [ErrorCode.CANCELLED, ErrorCode.DEADLINE_EXCEEDED])
def test_a_cancelled_request_ends_its_preparation(code: ErrorCode) -> None:
    """Nothing is prepared or run afterwards, and the thread's next work is not checked."""
    switch = Cancellation()
    options = RequestOptions(time.monotonic() + 60, cancellation=switch)
    task = Preparing(options, switch if code is ErrorCode.CANCELLED else None)
    with pytest.raises(ApiError) as caught:
        operation(SimpleNamespace(task=task), WINDOWS, options)
    assert caught.value.code is code
    assert task.prepared == 3
    checkpoint()


def test_small_items_are_checked_in_blocks() -> None:
    """Items are numbered as by ``enumerate``."""
    assert list(enumerate_cancellable("x" * (CHECK_INTERVAL + 1)))[-1] == (
        CHECK_INTERVAL,
        "x",
    )
