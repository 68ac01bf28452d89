"""A slower processor: processes are stopped and continued many times a second, so that they run for a share of it.

SIGSTOP and SIGCONT need no rights and stop all threads at once. What it is not: a slower clock. Work comes in bursts at
the desktop's full speed with pauses between them, so times below a period are either too good or a whole pause too bad.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

PERIOD_S = 0.01
"""Short enough that an answer of a few milliseconds sees the average, long enough for the system's scheduler."""
SHORTEST_S = 0.001
JOIN_S = 5.0


class DutyCycle:
    """Stops and continues one process group; the only one who does, so that a freeze and a slow processor agree.

    Args:
        send: hands a signal to the processes; says whether there were any.
    """

    def __init__(self, send: Callable[[int], bool]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._speed = 1.0
        self._frozen = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="simulate-duty-cycle", daemon=True)
        self._thread.start()

    def set(self, speed: float, frozen: bool) -> None:
        """Change both. A freeze has begun when this returns; a thaw too.

        Args:
            speed: share of the time that the processes run, above 0 and up to 1.
        """
        with self._changed:
            self._speed, self._frozen = speed, frozen
            self._send(signal.SIGSTOP if frozen else signal.SIGCONT)
            self._changed.notify_all()

    def apply(self) -> None:
        """Put a process that was started a moment ago into the state of the others."""
        with self._changed:
            if self._frozen:
                self._send(signal.SIGSTOP)

    def close(self) -> None:
        """Let the processes run, for good."""
        with self._changed:
            self._closed = True
            self._send(signal.SIGCONT)
            self._changed.notify_all()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                # Nothing to do at full speed or in a freeze; the wait is bounded all the same.
                self._changed.wait_for(lambda: self._closed or self._cycling, 60.0)
                if self._closed:
                    return
                speed = self._speed
            if speed < 1.0:
                self._pause(max(SHORTEST_S, PERIOD_S * (1.0 - speed)))
                self._wait(max(SHORTEST_S, PERIOD_S * speed))

    @property
    def _cycling(self) -> bool:
        return self._speed < 1.0 and not self._frozen

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._closed or not self._cycling:
                return
            self._send(signal.SIGSTOP)
        self._wait(seconds)
        with self._changed:
            if not self._frozen:
                self._send(signal.SIGCONT)

    def _wait(self, seconds: float) -> None:
        """Wait for exactly so long unless something changes."""
        ends = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._cycling, max(0.0, ends - time.monotonic()))
