"""The byte budget shared by all requests: first come, first served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.tasks.cancellation import (
    byte_reservation,
    cancellation_scope,
    hold_bytes,
)
from pocketserve_wire import ApiError, ErrorCode

LIMIT_S = 120.0


@contextmanager
def holding(
    budget: ByteBudget, count: int, check: Callable[[], None]
) -> Iterator[None]:
    """Reserve bytes while the block runs."""
    held = budget.acquire(count, check)
    try:
        yield
    finally:
        budget.release(held)


class Checks:
    """A check that signals its first call and cancels where told."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.give_up = False

    def __call__(self) -> None:
        self.waiting.set()
        if self.give_up:
            raise ApiError(ErrorCode.CANCELLED, "given up")


def holder(
    budget: ByteBudget, count: int, check: Checks, order: list[int]
) -> threading.Thread:
    """Start a thread that reserves bytes briefly and records its turn."""

    def hold() -> None:
        with holding(budget, count, check):
            order.append(count)

    thread = threading.Thread(target=hold)
    thread.start()
    return thread


@given(st.lists(st.integers(0, 200), max_size=8), st.integers(1, 100))
def test_reserved_bytes_are_released(counts: list[int], size: int) -> None:
    budget = ByteBudget(size)
    for count in counts:
        with holding(budget, count, lambda: None):
            # A request that exceeds the budget takes all of it.
            assert budget.reserved == min(count, size)
        assert budget.reserved == 0


def test_requests_are_served_in_order() -> None:
    budget = ByteBudget(10)
    large = Checks()
    small = Checks()
    order = list[int]()
    with holding(budget, 6, lambda: None):
        first = holder(budget, 8, large, order)
        assert large.waiting.wait(LIMIT_S)
        # It would fit, but an earlier request waits.
        second = holder(budget, 1, small, order)
        assert small.waiting.wait(LIMIT_S)
        assert order == []
    first.join(LIMIT_S)
    second.join(LIMIT_S)
    assert order == [8, 1]
    assert budget.reserved == 0


def test_two_fitting_requests_reserve_at_the_same_time() -> None:
    budget = ByteBudget(10)
    with holding(budget, 4, pytest.fail), holding(budget, 6, pytest.fail):
        assert budget.reserved == 10


def test_a_cancelled_request_leaves_the_line() -> None:
    budget = ByteBudget(10)
    tired = Checks()
    patient = Checks()
    order = list[int]()
    faults: list[ErrorCode] = []

    def hold() -> None:
        try:
            with holding(budget, 10, tired):
                pytest.fail("there was no room")
        except ApiError as error:
            faults.append(error.code)

    with holding(budget, 6, lambda: None):
        waiting = threading.Thread(target=hold)
        waiting.start()
        assert tired.waiting.wait(LIMIT_S)
        behind = holder(budget, 4, patient, order)
        tired.give_up = True
        waiting.join(LIMIT_S)
        behind.join(LIMIT_S)
        assert faults == [ErrorCode.CANCELLED]
        assert order == [4]
    assert budget.reserved == 0


def test_a_preparation_reserves_once_until_its_end() -> None:
    budget = ByteBudget(10)
    with cancellation_scope(pytest.fail, budget):
        hold_bytes(8)
        hold_bytes(8)
        with byte_reservation(budget, 8, pytest.fail):
            assert budget.reserved == 8
        assert budget.reserved == 8
    assert budget.reserved == 0
    hold_bytes(8)  # outside of a request nothing is limited
    assert budget.reserved == 0


def test_a_preparation_reuses_the_bytes_of_its_request() -> None:
    budget = ByteBudget(10)
    with byte_reservation(budget, 8, pytest.fail):
        with cancellation_scope(pytest.fail, budget):
            hold_bytes(8)
        assert budget.reserved == 8
    assert budget.reserved == 0


def test_a_request_that_may_not_wait_is_rejected() -> None:
    budget = ByteBudget(10)
    with cancellation_scope(pytest.fail, budget, waits=False):
        with holding(budget, 6, pytest.fail), pytest.raises(ApiError) as refusal:
            hold_bytes(5)
        assert refusal.value.code is ErrorCode.QUEUE_FULL
        assert refusal.value.retry_after_s
        hold_bytes(5)
        assert budget.reserved == 5
    assert budget.reserved == 0


def test_a_failure_releases_its_bytes() -> None:
    budget = ByteBudget(10)

    def fail() -> None:
        with cancellation_scope(pytest.fail, budget):
            hold_bytes(8)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with cancellation_scope(pytest.fail, budget):
        hold_bytes(10)
        assert budget.reserved == 10
    assert budget.reserved == 0
