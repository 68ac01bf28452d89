"""Loads models on demand, and unloads idle ones.

The state of each version is in `lifecycle/state.py`, loading in `lifecycle/loader.py`,
eviction in `lifecycle/budget.py`, and idle work in `lifecycle/reaper.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pocketserve.engine.device import cores
from pocketserve.engine.device.power import PowerWatch
from pocketserve.engine.lifecycle.budget import Budget
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle
from pocketserve.engine.lifecycle.loader import ModelLoader
from pocketserve.engine.lifecycle.reaper import Reaper
from pocketserve.engine.lifecycle.state import (
    Event,
    State,
    VersionRecord,
    VersionTable,
    close_all,
    detach,
)
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.queue import Scheduler
from pocketserve.engine.statistics import VersionStatistics
from pocketserve.repository.files import fingerprint
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.quarantine.quarantine import Quarantine
    from pocketserve.repository.snapshots import SnapshotStore
    from pocketserve.trust.store import TrustStore

__all__ = ["Engine", "State"]


class _Use:
    """Holds a version until its block ends."""

    def __init__(self, engine: Engine, running: ModelHandle) -> None:
        self._engine = engine
        self._running = running

    def __enter__(self) -> ModelHandle:
        return self._running

    def __exit__(self, *raised: object) -> None:
        self._engine.release(self._running)


class Engine:
    """Loads, runs and unloads versions.

    Args:
        clock: seconds, monotonic; a test may inject its own.
        quarantine: tries unseen files before they are opened; None trusts every file.
        usable_cores: the cores that this process may use now; a test may inject its own.
        power: whether the battery is low or hot; None takes it for neither.
        available_memory: bytes that can be had now, asked at each load; half of them are the budget where the settings
            name none.
        snapshots: makes the private copies that are opened; None has them among the system's temporary files.
        trust: which code may run; None trusts none.
    """

    def __init__(
        self,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        quarantine: Quarantine | None = None,
        usable_cores: Callable[[], list[int]] = cores.usable_cores,
        power: PowerWatch | None = None,
        available_memory: Callable[[], int] = cores.available_memory,
        snapshots: SnapshotStore | None = None,
        trust: TrustStore | None = None,
    ) -> None:
        self._power = power or PowerWatch()
        self._watch = cores.CoreWatch(usable_cores, self._power)
        self._scheduler = Scheduler(self._watch.runs_at_a_time, clock)
        self._clock = clock
        self._table = VersionTable(clock)
        # Cached, as each request needs it.
        self._by_key, self._lock = (
            self._table.by_key,
            self._table.lock,
        )
        self._budget = Budget(
            self._table, options.memory_budget, available_memory, clock
        )
        self._loader = ModelLoader(
            self._table,
            self._budget,
            self._watch,
            self._scheduler,
            options,
            clock,
            quarantine,
            snapshots,
            trust,
        )
        self._reaper = Reaper(self._table, self._watch, self._loader, clock)
        self._power.on_change = self._reaper.wake

    def use(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        deadline: float,
        cancellation: Cancellation | None = None,
    ) -> AbstractContextManager[ModelHandle]:
        """Hold a version for one request; load it if necessary.

        It is not unloaded meanwhile.

        Args:
            deadline, cancellation: end the wait for a load that another request has begun.

        Raises:
            ApiError: why the version cannot be used.
        """
        return _Use(self, self.acquire(entry, version, deadline, cancellation))

    def load(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        deadline: float,
        *,
        replaces: str | None = None,
        in_background: bool = False,
    ) -> None:
        """Load or reload a version now.

        Requests that hold the old one finish on it.

        Args:
            replaces: another version, which is not unloaded to make room for this one.
            in_background: load nothing that was unloaded meanwhile, and swap nothing while sequences are open.

        Raises:
            ApiError: the version cannot be loaded; the loaded one serves on.
        """
        with self._lock:
            record = self._table.ensure((entry.name, version.name))
            self._table.await_loading(record, deadline)
            if self._table.closed:
                raise ApiError(
                    ErrorCode.SHUTTING_DOWN,
                    "the server is shutting down",
                    retry_after_s=1.0,
                )
            if in_background and record.state is State.STOPPED:
                return
            record.apply(Event.LOAD_STARTED)
        self._loader.open(
            record,
            entry,
            version,
            deadline,
            replaces=replaces,
            keeps_sequences=in_background,
        )
        self._reaper.start()

    def trim(self, name: str, version: str) -> None:
        """Unload others if this version exceeds the memory budget."""
        with self._lock:
            closing = self._budget.evict_beside((name, version))
        close_all(*closing)

    def unload(self, name: str, version: str, deadline: float) -> None:
        """Stop serving a version until it is loaded again.

        Requests that hold it finish.

        Raises:
            ApiError: DEADLINE_EXCEEDED when it was being loaded all the time.
        """
        with self._lock:
            record = self._table.ensure((name, version))
            self._table.await_loading(record, deadline)
            record.apply(Event.UNLOADED)
            closing = detach(record)
        close_all(closing)

    def reset(self, name: str, version: str) -> None:
        """Allow the next request to load a stopped or failed version."""
        with self._lock:
            record = self._table.ensure((name, version))
            if record.state in (State.STOPPED, State.FAILED):
                record.apply(Event.RESET)

    def stop_new_versions(self, models: Mapping[str, ModelEntry]) -> None:
        """Count new versions of unloaded models as unloaded, too.

        Args:
            models: as just scanned.
        """
        with self._lock:
            for name, stopped in self._unloaded_models().items():
                entry = models.get(name)
                # Without any of them it is another model under the same name.
                if entry is None or stopped.isdisjoint(entry.versions):
                    continue
                for version in entry.versions:
                    record = self._table.ensure((name, version))
                    if record.state is State.ON_DEMAND:
                        record.apply(Event.UNLOADED)

    def _unloaded_models(self) -> dict[str, set[str]]:
        """Return the unloaded versions by model, of models that have no others. Wants the lock."""
        stopped: dict[str, set[str]] = {}
        active = set()
        for (name, version), record in self._by_key.items():
            if record.state is State.STOPPED:
                stopped.setdefault(name, set()).add(version)
            elif record.state is not State.ON_DEMAND:
                active.add(name)
        for name in active:
            stopped.pop(name, None)
        return stopped

    def loaded_models(self) -> set[str]:
        """Models of which a version is loaded."""
        with self._lock:
            return {name for (name, _), _, _ in self._table.loaded()}

    def versions_of(self, name: str) -> list[str]:
        """Return all requested versions of a model, even deleted ones."""
        with self._lock:
            return [version for model, version in self._by_key if model == name]

    def state(self, name: str, version: str) -> State:
        """Return where a version stands."""
        record = self._by_key.get((name, version))
        return record.state if record is not None else State.ON_DEMAND

    def failure(self, name: str, version: str) -> str | None:
        """Return why the last load failed, unless something changed since."""
        record = self._by_key.get((name, version))
        return (
            record.error.message
            if record is not None and record.error is not None
            else None
        )

    def record(self, name: str, version: str) -> VersionRecord:
        """Return a version's record, which is permanent."""
        with self._lock:
            return self._table.ensure((name, version))

    def statistics(self, name: str, version: str) -> VersionStatistics:
        """A version's counters."""
        return self.record(name, version).statistics

    def running(self, name: str, version: str) -> ModelHandle | None:
        """A version's loaded form, if it is loaded now."""
        record = self._by_key.get((name, version))
        return record.running if record is not None else None

    @property
    def memory_budget(self) -> int:
        """Bytes that all loaded versions may hold."""
        return self._budget.size

    def memory_held(self) -> int:
        """Bytes that all loaded versions are thought to hold."""
        return self._budget.used()

    def sweep(self) -> float | None:
        """Unload idle versions, drop idle sequences, and check cores and battery.

        Returns:
            The clock's time of the next expiry; None when nothing can expire.
        """
        return self._reaper.sweep()

    @property
    def usable_cores(self) -> int:
        """Cores that this process may use now."""
        return len(self._watch.usable_cores())

    def check_power(self) -> None:
        """Have the reaper check the battery if it is time."""
        if self._power.due(self._clock()):
            self._reaper.wake()

    def close(self) -> None:
        """Unload everything; requests that hold a version finish."""
        with self._lock:
            self._table.closed = True
            closing = [detach(record) for record in self._by_key.values()]
            self._table.changed.notify_all()
        close_all(*closing)

    def acquire(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        deadline: float,
        cancellation: Cancellation | None,
    ) -> ModelHandle:
        """Acquire a handle without the context manager (hot path).

        Release it with :meth:`release`.

        Raises:
            ApiError: as :meth:`use`.
        """
        key = (entry.name, version.name)
        while True:
            with self._lock:
                record = self._by_key.get(key) or self._table.ensure(key)
                # A version that is being reloaded serves on.
                if record.running is None:
                    self._table.await_loading(record, deadline, cancellation)
                if self._table.closed:
                    raise ApiError(
                        ErrorCode.SHUTTING_DOWN,
                        "the server is shutting down",
                        retry_after_s=1.0,
                    )
                if record.running is not None:
                    record.running.users += 1
                    return record.running
                self._refuse_unusable(record, version, entry)
                if record.state is State.FAILED:
                    record.apply(Event.RESET)  # its files have changed since
                record.apply(Event.LOAD_STARTED)
            loaded = self._loader.open(record, entry, version, deadline, users=1)
            self._reaper.start()
            if loaded is not None:
                return loaded

    def note_changes(self, models: Mapping[str, ModelEntry]) -> None:
        """Mark loaded versions whose files have changed as outdated.

        Args:
            models: the latest scan. Missing versions are unloaded; requests that hold
                them finish.
        """
        closing = []
        with self._lock:
            listed = self._table.loaded()
        for key, record, running in listed:
            entry = models.get(key[0])
            version = entry.versions.get(key[1]) if entry is not None else None
            if entry is not None and version is not None:
                self._compare(record, running, entry, version)
                continue
            with self._lock:
                if record.running is running and record.state is State.READY:
                    reason = "it is gone from the folder"
                    closing.append(self._table.evict(key, reason))
        close_all(*closing)

    def outdated_versions(self, entry: ModelEntry) -> list[VersionEntry]:
        """Return loaded versions whose changed files were not tried yet."""
        with self._lock:
            listed = self._table.loaded()
        outdated = []
        for key, record, running in listed:
            version = entry.versions.get(key[1])
            if (
                key[0] == entry.name
                and version is not None
                and self._compare(record, running, entry, version)
            ):
                outdated.append(version)
        return outdated

    def _compare(
        self,
        record: VersionRecord,
        running: ModelHandle,
        entry: ModelEntry,
        version: VersionEntry,
    ) -> bool:
        """Update whether a loaded version's files have changed."""
        now = fingerprint(entry, version)
        if now == running.fingerprint:
            running.outdated = False
            with self._lock:
                if record.running is running:
                    record.error = None  # the change was taken back
            return False
        running.outdated = (
            self._loader.stamp_of(entry, version) != record.failed_fingerprint
        )
        return running.outdated

    def acquire_loaded(self, record: VersionRecord) -> ModelHandle | None:
        """Acquire a loaded version without waiting; None if not loaded."""
        with self._lock:
            handle = record.running
            if handle is None or self._table.closed:
                return None
            handle.users += 1
            return handle

    def open_sequences(self, name: str, version: str) -> int:
        """Return the number of open sequences of a version."""
        handle = self.running(name, version)
        return handle.open_sequences if handle is not None else 0

    def can_be_tried(self, entry: ModelEntry, version: VersionEntry) -> bool:
        """Return whether loading a version may succeed.

        It was not unloaded, and has changed since it failed.
        """
        record = self._by_key.get((entry.name, version.name))
        if record is None or record.state in (
            State.ON_DEMAND,
            State.LOADING,
            State.READY,
        ):
            return True
        return (
            record.state is State.FAILED
            and record.failed_fingerprint != self._loader.stamp_of(entry, version)
        )

    def _refuse_unusable(
        self, record: VersionRecord, version: VersionEntry, entry: ModelEntry
    ) -> None:
        if record.state is State.STOPPED:
            raise ApiError(
                ErrorCode.MODEL_NOT_FOUND,
                f"Request for unknown model: {entry.name!r} has no available versions: "
                f"version {version.name!r} was unloaded",
            )
        # A file that failed is tried again once it has changed, not on every request.
        error = record.error if record.state is State.FAILED else None
        if error is not None and record.failed_fingerprint == self._loader.stamp_of(
            entry, version
        ):
            raise error.copy()

    def release(self, running: ModelHandle) -> None:
        """Release a handle from :meth:`acquire`."""
        with self._lock:
            running.users -= 1
            now = running.last_used = self._clock()
            last = running.retired and running.users == 0
            if running.sequences or now >= self._reaper.next_check:
                self._reaper.wake_if_due(running, now)
        if last:
            close_all(running)
