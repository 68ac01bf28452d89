"""Whether anybody still wants the answer: asked on the way by preparations that take long.

A preparation is plain Python that nothing can stop from outside. It knows no request; the thread that it runs on does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

EVERY: Final = 4096
"""Small things, such as characters, between two questions: some milliseconds of a phone's time."""


class Budget(Protocol):
    """Bytes that all requests share; see :class:`~pocketserve.engine.lifecycle.byte_budget.ByteBudget`."""

    def hold(self, count: int, check: Callable[[], None]) -> AbstractContextManager[None]: ...


class _Asking(threading.local):
    check: Callable[[], None] | None = None
    budget: Budget | None = None
    held: ExitStack | None = None
    holds: bool = False


_asking = _Asking()


@contextmanager
def cancellation_scope(check: Callable[[], None], budget: Budget | None = None) -> Iterator[None]:
    """Let all that runs inside, on this thread, ask whether to go on.

    Args:
        check: raises what the request is answered with once nobody wants it.
        budget: where :func:`hold` takes its bytes from, which are given back at the end; None is without bounds.
    """
    before = _asking.check, _asking.budget, _asking.held
    _asking.check, _asking.budget, _asking.held = check, budget, None
    try:
        yield
    finally:
        held = _asking.held
        _asking.check, _asking.budget, _asking.held = before
        if held is not None:
            held.close()


def hold(count: int) -> None:
    """Hold bytes of the budget that all requests share until the preparation ends; wait until there is room.

    Not for a block of its own: what was decoded lives as long as the functions that it was decoded in.

    Raises:
        ApiError: CANCELLED, DEADLINE_EXCEEDED.
    """
    if _asking.budget is not None and not _asking.holds:
        _asking.held = ExitStack()
        _asking.held.enter_context(holding_of(_asking.budget, count, checkpoint))


def holding_of(budget: Budget | None, count: int, check: Callable[[], None]) -> AbstractContextManager[None]:
    """Hold bytes of a budget while the block runs, unless this thread holds some already.

    Two requests that each wait for what the other holds would never end: so a nested block holds nothing more.

    Raises:
        ApiError: whatever ``check`` raises while there is no room.
    """
    return nullcontext() if budget is None or _asking.holds else _hold(budget, count, check)


@contextmanager
def _hold(budget: Budget, count: int, check: Callable[[], None]) -> Iterator[None]:
    with budget.hold(count, check):
        _asking.holds = True
        try:
            yield
        finally:
            _asking.holds = False


def checkpoint() -> None:
    """Go on only if the request is still wanted; outside of requests always.

    Raises:
        ApiError: CANCELLED, DEADLINE_EXCEEDED.
    """
    if _asking.check is not None:
        _asking.check()


def wanted(things: Iterable[T]) -> Iterator[T]:
    """The same things, asking before each."""
    for thing in things:
        checkpoint()
        yield thing


def in_blocks(things: Iterable[T], every: int = EVERY) -> Iterator[tuple[int, T]]:
    """Small things with their numbers, asking at every some thousandth.

    Args:
        every: fewer for things that cost more.
    """
    for number, thing in enumerate(things):
        if number % every == 0:
            checkpoint()
        yield number, thing
