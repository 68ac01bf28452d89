"""A wall clock that jumps, in the processes on the phone: ``time.time`` and its kin, and nothing else.

A phone's clock is set when it finds a network or the time zone's service, by seconds or by years. Only the super-user
may set a desktop's, and no name space moves it, so Python's functions are replaced when a process on the phone starts.
What it is not: ``datetime.now``, times of files and compiled code read the true clock. Monotonic clocks do not jump, on
a phone neither.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

from pocketserve.system import simulation


def install() -> None:
    """Let this process see the phone's clock; where the phone's folder is gone, the true one."""
    folder = simulation()
    if folder is None:
        return
    try:
        with (folder / "clock").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return
    replace_clock(memoryview(mapped).cast("d"))


def replace_clock(offset: memoryview[Any]) -> None:
    """Replace the functions of the module ``time``.

    Args:
        offset: one double, in seconds; it may change at any time.
    """
    true_time, true_time_ns = time.time, time.time_ns

    def jumping_time() -> float:
        return true_time() + float(offset[0])

    def jumping_time_ns() -> int:
        return true_time_ns() + round(float(offset[0]) * 1e9)

    time.time, time.time_ns = jumping_time, jumping_time_ns
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _WithNow(getattr(time, name)))
    true_strftime = time.strftime
    time.strftime = lambda form, moment=None: true_strftime(form, moment or time.localtime())


class _WithNow:
    """The same function, whose default moment is the phone's now.

    No function of Python's: the module ``logging`` keeps ``localtime`` in a class, where one would become a method.
    """

    def __init__(self, function: Callable[[float], Any]) -> None:
        self._function = function

    def __call__(self, seconds: float | None = None) -> Any:
        return self._function(time.time() if seconds is None else seconds)
