"""Run blocking functions on threads and await them in asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function on its own thread and return a future.

    The thread is a daemon, so that a program can end without waiting for an abandoned
    answer. The loop's own executor has few threads, and would delay the end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            _hand_over(loop, future.set_exception, future, error)
        else:
            _hand_over(loop, future.set_result, future, result)

    threading.Thread(target=run, name="pocketserve-client-await", daemon=True).start()
    return future


async def run_to_its_end(function: Callable[[], T], release: Callable[[], None]) -> T:
    """Run a function on its own thread, and call ``release`` when it has ended.

    ``release`` is also called if the awaiting task was cancelled.
    """
    ended = run_in_thread(function)

    def on_end(future: asyncio.Future[T]) -> None:
        release()
        if not future.cancelled():
            future.exception()  # marks it as retrieved for a cancelled caller

    ended.add_done_callback(on_end)
    return await asyncio.shield(ended)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    setter: Callable[[Any], None],
    future: asyncio.Future[Any],
    value: Any,
) -> None:
    def set_unless_cancelled() -> None:
        if not future.done():
            setter(value)

    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(set_unless_cancelled)
