"""Whether anybody still wants the answer: asked on the way by preparations that take long.

A preparation is plain Python that nothing can stop from outside. It knows no request; the thread that it runs on does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

EVERY: Final = 4096
"""Small things, such as characters, between two questions: some milliseconds of a phone's time."""


class _Asking(threading.local):
    check: Callable[[], None] | None = None


_asking = _Asking()


@contextmanager
def while_wanted(check: Callable[[], None]) -> Iterator[None]:
    """Let all that runs inside, on this thread, ask whether to go on.

    Args:
        check: raises what the request is answered with once nobody wants it.
    """
    before, _asking.check = _asking.check, check
    try:
        yield
    finally:
        _asking.check = before


def check_wanted() -> None:
    """Go on only if the request is still wanted; outside of requests always.

    Raises:
        ApiError: CANCELLED, DEADLINE_EXCEEDED.
    """
    if _asking.check is not None:
        _asking.check()


def wanted(things: Iterable[T]) -> Iterator[T]:
    """The same things, asking before each."""
    for thing in things:
        check_wanted()
        yield thing


def in_blocks(things: Sequence[T]) -> Iterator[tuple[int, T]]:
    """Small things with their numbers, asking every some thousand."""
    for number, thing in enumerate(things):
        if number % EVERY == 0:
            check_wanted()
        yield number, thing
