"""Cancel preparations: Python code that nothing can interrupt calls checkpoints.

A preparation doesn't know its request; its thread does.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from pocketserve_wire import ApiError, ErrorCode, strict_json

T = TypeVar("T")
SMALL_DOCUMENT = 64 * 1024  # bytes of JSON or CSV parsed without a reservation
# Enough to tell a text from a picture, a sound or an array, whose first bytes no text has.
SNIFFED_BYTES = 64

# Small items, such as characters, between two checkpoints: milliseconds on a phone.
CHECK_INTERVAL: Final = 4096


class BytePool(Protocol):
    """Bytes that all requests share; see :class:`~pocketserve.engine.lifecycle.byte_budget.ByteBudget`."""

    def acquire(self, count: int, check: Callable[[], None]) -> int: ...

    def release(self, count: int) -> None: ...


class _Scope(threading.local):
    check: Callable[[], None] | None = None
    budget: BytePool | None = None
    waits: bool = True
    reservation: int | None = None  # of the budget, until the scope ends
    reserved: bool = False


_scope = _Scope()


class cancellation_scope:
    """Make :func:`checkpoint` call ``check``, and :func:`hold_bytes` use ``budget``.

    Both apply to this thread. It is no generator, for speed: each raw input is prepared and
    answered in one.

    Args:
        waits: whether it may wait for memory; a holder of what others wait for must not.
    """

    __slots__ = ("_before", "_budget", "_check", "_waits")

    def __init__(
        self,
        check: Callable[[], None],
        budget: BytePool | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self._check = check
        self._budget = budget
        self._waits = waits

    def __enter__(self) -> None:
        self._before = _scope.check, _scope.budget, _scope.waits, _scope.reservation
        _scope.check = self._check
        _scope.budget = self._budget
        _scope.waits = self._waits
        _scope.reservation = None

    def __exit__(self, *raised: object) -> None:
        reservation = _scope.reservation
        _scope.check, _scope.budget, _scope.waits, _scope.reservation = self._before
        if reservation is not None and self._budget is not None:
            _scope.reserved = False
            self._budget.release(reservation)


def hold_bytes(count: int) -> None:
    """Reserve bytes of the budget until the scope ends.

    Without a budget, do nothing.

    Raises:
        ApiError: QUEUE_FULL, in a scope that does not wait; an exception of the check.
    """
    if _scope.budget is not None and not _scope.reserved:
        check = checkpoint if _scope.waits else _refuse
        _scope.reservation = _scope.budget.acquire(count, check)
        _scope.reserved = True


def check_budget() -> None:
    """Wait until the budget isn't full, before work of unknown size.

    Raises:
        ApiError: as :func:`hold_bytes`.
    """
    if _scope.budget is not None and not _scope.reserved:
        check = checkpoint if _scope.waits else _refuse
        _scope.budget.release(_scope.budget.acquire(1, check))


def _refuse() -> None:
    text = (
        "other requests hold the memory for decoding (decode_budget); try again later"
    )
    raise ApiError(ErrorCode.QUEUE_FULL, text, retry_after_s=0.1)


def hold_document(body: memoryview) -> None:
    """Reserve the parsed size of a raw input's JSON or CSV.

    Pictures, sounds and arrays reserve their own.
    """
    if len(body) > SMALL_DOCUMENT and is_text(body):
        hold_bytes(strict_json.parsed_bytes(bytes(body)))


def hold_documents(bodies: Iterable[memoryview]) -> None:
    """Reserve the parsed size of several JSON documents."""
    documents = [bytes(body) for body in bodies if is_text(body)]
    if sum(map(len, documents)) > SMALL_DOCUMENT:
        hold_bytes(sum(map(strict_json.parsed_bytes, documents)))


def is_text(body: memoryview | bytes) -> bool:
    """Return whether bytes may begin JSON or CSV."""
    start = bytes(body[:SNIFFED_BYTES])
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start


@contextmanager
def byte_reservation(
    budget: BytePool, count: int, check: Callable[[], None]
) -> Iterator[None]:
    """Reserve bytes of a budget; ``check`` is called while waiting.

    A nested block reserves nothing more: two requests would wait for each other forever.
    """
    if _scope.reserved:
        yield
        return
    size = budget.acquire(count, check)
    _scope.reserved = True
    try:
        yield
    finally:
        _scope.reserved = False
        budget.release(size)


def checkpoint() -> None:
    """Raise CANCELLED or DEADLINE_EXCEEDED if the request has ended."""
    if _scope.check is not None:
        _scope.check()


def current_check() -> Callable[[], None]:
    """Return the check of this thread's scope, for objects that call it very often."""
    return _scope.check or _pass


def _pass() -> None:
    pass


def cancellable(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a checkpoint before each."""
    for item in items:
        checkpoint()
        yield item


def enumerate_cancellable(
    items: Iterable[T], interval: int = CHECK_INTERVAL
) -> Iterator[tuple[int, T]]:
    """Yield number and item, with a checkpoint before every ``interval``-th."""
    for number, item in enumerate(items):
        if number % interval == 0:
            checkpoint()
        yield number, item
