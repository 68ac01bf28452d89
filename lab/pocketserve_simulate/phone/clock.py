"""A wall clock that jumps, in the processes on the phone: the functions of the module ``time``.

Only the super-user may set a desktop's clock, and no name space moves it. ``datetime.now``, times of files and compiled
code read the true clock. Monotonic clocks do not jump, on a phone neither.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

from pocketserve.system import simulation


def install() -> None:
    """Show this process the phone's clock. Where the phone's folder is gone, it sees the true one."""
    folder = simulation()
    if folder is None:
        return
    try:
        with (folder / "clock").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return
    offset = memoryview(mapped).cast("d")  # seconds; may change at any time
    true_time, true_time_ns, true_strftime = time.time, time.time_ns, time.strftime
    time.time = lambda: true_time() + float(offset[0])
    time.time_ns = lambda: true_time_ns() + round(float(offset[0]) * 1e9)
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _WithNow(getattr(time, name)))
    time.strftime = lambda form, moment=None: true_strftime(
        form, moment or time.localtime()
    )


class _WithNow:
    """The same function, whose default moment is the phone's now.

    It is no Python function: the module ``logging`` keeps ``localtime`` in a class, where one would become a method.
    """

    def __init__(self, function: Callable[[float], Any]) -> None:
        self._function = function

    def __call__(self, seconds: float | None = None) -> Any:
        return self._function(time.time() if seconds is None else seconds)
