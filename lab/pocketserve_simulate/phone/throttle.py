"""Simulate a slower processor: stop and continue processes many times a second.

SIGSTOP and SIGCONT need no privileges and stop all threads at once. It is not a slower
clock: work comes in bursts at full speed, so times below a period are either too short
or too long by a whole pause.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

PERIOD_S = 0.01
"""Short enough for answers of some milliseconds, long enough for the scheduler."""
SHORTEST_S = 0.001
JOIN_S = 5.0


class DutyCycle:
    """Stops and continues processes by ``send``.

    Nothing else does, so a freeze and a slow processor do not conflict.
    """

    def __init__(self, send: Callable[[int], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._speed = 1.0
        self._frozen = False
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name="simulate-duty-cycle", daemon=True
        )
        self._thread.start()

    def set(self, speed: float, frozen: bool) -> None:
        """Set the share of running time, and freeze or thaw."""
        with self._changed:
            self._speed = speed
            self._frozen = frozen
            self._send(signal.SIGSTOP if frozen else signal.SIGCONT)
            self._changed.notify_all()

    def apply(self) -> None:
        """Stop a process that was started during a freeze."""
        with self._changed:
            if self._frozen:
                self._send(signal.SIGSTOP)

    def close(self) -> None:
        """Continue the processes for good."""
        with self._changed:
            self._closed = True
            self._send(signal.SIGCONT)
            self._changed.notify_all()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if self._idle():
                    self._changed.wait()
                    continue
                stopped = max(SHORTEST_S, PERIOD_S * (1.0 - self._speed))
                self._send(signal.SIGSTOP)
                self._changed.wait_for(self._idle, stopped)
                if not self._frozen:
                    self._send(signal.SIGCONT)
                running = max(SHORTEST_S, PERIOD_S * self._speed)
                self._changed.wait_for(self._idle, running)

    def _idle(self) -> bool:
        return self._closed or self._frozen or self._speed >= 1.0
