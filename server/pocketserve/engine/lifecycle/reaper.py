"""The thread that unloads idle models and checks cores and battery."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketserve.engine.device.cores import CoreWatch
from pocketserve.engine.lifecycle import memory
from pocketserve.engine.lifecycle.state import VersionTable, bounded, close_all

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle
    from pocketserve.engine.lifecycle.loader import ModelLoader
    from pocketserve.engine.lifecycle.sequences import SequenceTable

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""Seconds between checks of cores and power; an idle server makes none."""


class Reaper:
    """A thread that sleeps until something may expire or has changed."""

    def __init__(
        self,
        table: VersionTable,
        watch: CoreWatch,
        loader: ModelLoader,
        clock: Callable[[], float],
    ) -> None:
        self.next_check = 0.0  # of cores and power; see wake_if_due
        self._table = table
        self._watch = watch
        self._loader = loader
        self._clock = clock
        self._wakes: float | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it is not running.

        It ends once the table is closed and it is notified.
        """
        with self._table.lock:
            if self._thread is not None or self._table.closed:
                return
            thread = threading.Thread(
                target=self._run, name="pocketserve-reaper", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # The system has no more threads; the next load tries again.
                log.warning("idle models stay loaded for now: %s", error)
                return
            self._thread = thread

    def wake(self) -> None:
        """Wake the thread."""
        with self._table.changed:
            self._table.changed.notify_all()

    def wake_if_due(self, running: ModelHandle, now: float) -> None:
        """Wake the thread early if something is due.

        That is a sequence's expiry or, once a second, cores and power.

        Requires the lock.
        """
        upcoming = None
        if running.sequences is not None:
            upcoming = running.sequences.next_expiry()
        early = upcoming is not None and (self._wakes is None or upcoming < self._wakes)
        if now >= self.next_check:
            self.next_check = now + CHECK_INTERVAL_S
            early = early or self._watch.has_changed(now)
        if early:
            self._table.changed.notify_all()

    def sweep(self) -> float | None:
        """Do the thread's work, see :meth:`pocketserve.engine.engine.Engine.sweep`."""
        self._loader.rescan()
        self._loader.fit_threads()
        with self._table.lock:
            idle_keys = memory.expired_keys(self._table.residents(), self._clock())
            closing = [self._table.evict(key, "it is idle") for key in idle_keys]
            tables = self._tables()
        close_all(*closing)
        for table in tables:
            table.sweep()
        with self._table.lock:
            return self._next_expiry()

    def _tables(self) -> list[SequenceTable]:
        tables = []
        for _, _, handle in self._table.loaded():
            if handle.sequences is not None:
                tables.append(handle.sequences)
        return tables

    def _next_expiry(self) -> float | None:
        earliest = memory.next_expiry(self._table.residents(), self._clock())
        for table in self._tables():
            expiry = table.next_expiry()
            if expiry is not None and (earliest is None or expiry < earliest):
                earliest = expiry
        return earliest

    def _run(self) -> None:
        while not self._table.closed:
            self.sweep()
            with self._table.changed:
                # It was not asleep yet when it was told of a change, or of the end.
                if not self._table.closed and not self._watch.has_changed(
                    self._clock()
                ):
                    # Computed under the lock that the wait gives up: a model that is loaded meanwhile wakes it.
                    upcoming = self._wakes = self._next_expiry()
                    self._table.changed.wait(
                        None if upcoming is None else bounded(upcoming - self._clock())
                    )
