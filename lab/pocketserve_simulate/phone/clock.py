"""A wall clock that jumps, for the processes on the phone.

It patches the module ``time``: only root may set a desktop's clock, and no name space
moves it. ``datetime.now``, file times and compiled code read the real clock. Monotonic
clocks do not jump, as on a phone.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

from pocketserve.system import simulation


def install() -> None:
    """Give this process the phone's clock, if the phone's folder still exists."""
    folder = simulation()
    if folder is None:
        return
    try:
        with (folder / "clock").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return
    # In seconds; it may change at any time.
    offset = memoryview(mapped).cast("d")
    true_time = time.time
    true_time_ns = time.time_ns
    true_strftime = time.strftime

    def strftime(form: str, moment: Any = None) -> str:
        return true_strftime(form, moment or time.localtime())

    time.time = lambda: true_time() + float(offset[0])
    time.time_ns = lambda: true_time_ns() + round(float(offset[0]) * 1e9)
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _WithNow(getattr(time, name)))
    time.strftime = strftime


class _WithNow:
    """Wraps a function of time, whose default is the phone's current time.

    It is not a Python function: the module ``logging`` stores ``localtime`` in a class,
    where a function would become a method.
    """

    def __init__(self, function: Callable[[float], Any]) -> None:
        self._function = function

    def __call__(self, seconds: float | None = None) -> Any:
        return self._function(time.time() if seconds is None else seconds)
