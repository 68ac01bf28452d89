"""Clients that end their sending side while a whole answer is computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pocketserve_wire import ApiError, ErrorCode

GRACE_S: Final = 60.0
"""Time for a whole answer after the client has ended its sending side.

HTTP can't tell such a client from one that has gone.
"""


class HalfClosedCheck:
    """Checks for a client that has gone, but lets it wait for a while.

    Args:
        check: raises CANCELLED once the client has ended its sending side.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._end: float | None = None

    def __call__(self) -> None:
        """Raise CANCELLED once the time is over."""
        try:
            self._check()
        except ApiError as error:
            if error.code != ErrorCode.CANCELLED:
                raise
            now = self._clock()
            if self._end is None:
                self._end = now + GRACE_S
            if now >= self._end:
                raise


def check_whole(check: Callable[[], None] | None) -> Callable[[], None] | None:
    """Return the check during a whole answer; None without one for parts."""
    return None if check is None else HalfClosedCheck(check)
