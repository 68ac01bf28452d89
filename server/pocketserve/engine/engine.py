"""The life of models: loaded on first use or on request, held while in use, unloaded when idle or when room is needed.

Decisions are made under one lock; opening and closing models happens outside it. The file is long because that lock
and the states it guards belong together; what needs neither is in `running.py`, `memory.py` and `loading.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from pocketserve.engine import cores, memory
from pocketserve.engine.cancellation import Cancellation, waking
from pocketserve.engine.lane import Scheduler
from pocketserve.engine.power import PowerWatch
from pocketserve.engine.running import EngineOptions, Running, start_running
from pocketserve.engine.statistics import VersionStatistics
from pocketserve.engine.tuned import Threads
from pocketserve.repository.files import file_bytes, stamp, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.records import dataclass

if TYPE_CHECKING:
    from pocketserve.engine.tuning_store import TuningStore
    from pocketserve.quarantine.quarantine import Quarantine

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often requests look whether cores or power have changed; an idle server does not look."""


class State(Enum):
    """Where a version stands. ON_DEMAND will be loaded by its first request; STOPPED was unloaded on request."""

    ON_DEMAND = "on demand"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "unloaded"


@dataclass(slots=True)
class Slot:
    """Everything known of one version, loaded or not.

    Attributes:
        reserved: bytes that a load under way is thought to need, or the second copy of one that is opened again.
    """

    state: State = State.ON_DEMAND
    running: Running | None = None
    error: ApiError | None = None
    failed_stamp: object = None
    reserved: int = 0
    statistics: VersionStatistics = field(default_factory=VersionStatistics)


Key = tuple[str, str]


class _Use:
    """Holds a version until its block ends."""

    def __init__(self, engine: Engine, running: Running) -> None:
        self._engine = engine
        self._running = running

    def __enter__(self) -> Running:
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
        available_memory: bytes that can be had now; half of them are the budget where the settings name none.
        tuning: what was measured on this device; None knows nothing.
    """

    def __init__(
        self,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        quarantine: Quarantine | None = None,
        usable_cores: Callable[[], list[int]] = cores.usable_cores,
        power: PowerWatch | None = None,
        available_memory: Callable[[], int] = cores.available_memory,
        tuning: TuningStore | None = None,
    ) -> None:
        self._options = options
        self._tuning = tuning
        self._quarantine = quarantine
        self._clock = clock
        self._budget = options.memory_budget or available_memory() // 2
        self._slots: dict[Key, Slot] = {}
        self._usable_cores = usable_cores
        self._power = power or PowerWatch()
        self._power.on_change = self._wake
        self._fitted = usable_cores(), self._power.low
        self._look_at = 0.0
        self._scheduler = Scheduler(_slots(*self._fitted), clock)
        self._janitor_wakes: float | None = None
        self._lock = threading.RLock()  # by itself too: entering the condition would be one more call per request
        self._changed = threading.Condition(self._lock)
        self._janitor: threading.Thread | None = None
        self._closed = False

    def use(
        self, entry: ModelEntry, version: VersionEntry, deadline: float, cancellation: Cancellation | None = None
    ) -> AbstractContextManager[Running]:
        """Hold a version for one request, loading it first where needed. It is not unloaded meanwhile.

        Args:
            deadline, cancellation: end the wait for a load that another request has begun.

        Raises:
            ApiError: why the version cannot be used.
        """
        return _Use(self, self.acquire(entry, version, deadline, cancellation))

    def load(self, entry: ModelEntry, version: VersionEntry, deadline: float) -> None:
        """Load a version now. A loaded one is loaded anew and swapped in; requests that hold the old one finish on it.

        Raises:
            ApiError: why it cannot be loaded; what was loaded before serves on.
        """
        key = (entry.name, version.name)
        with self._changed:
            slot = self._slot(key)
            self._await_loading(slot, deadline)
            previous, before = slot.running, slot.state
            slot.state = State.LOADING
        self._open(key, slot, entry, version, fallback=(before, previous), deadline=deadline)

    def unload(self, name: str, version: str, deadline: float) -> None:
        """Stop serving a version until it is loaded again. Requests that hold it finish.

        Raises:
            ApiError: DEADLINE_EXCEEDED when it was being loaded all the time.
        """
        with self._changed:
            slot = self._slot((name, version))
            self._await_loading(slot, deadline)
            slot.state, slot.error = State.STOPPED, None
            closing = self._detach(slot)
        self._close(closing)

    def allow(self, name: str, version: str) -> None:
        """Let a version that was unloaded, or that failed, be loaded by its next request again."""
        with self._changed:
            slot = self._slot((name, version))
            if slot.state in (State.STOPPED, State.FAILED):
                slot.state, slot.error = State.ON_DEMAND, None

    def versions_of(self, name: str) -> list[str]:
        """Versions of a model that were ever asked for, whether their files are still there or not."""
        with self._changed:
            return [version for model, version in self._slots if model == name]

    def state(self, name: str, version: str) -> State:
        """Where a version stands."""
        slot = self._slots.get((name, version))
        return slot.state if slot is not None else State.ON_DEMAND

    def failure(self, name: str, version: str) -> str | None:
        """Why the last attempt to load a version failed, as long as nothing changed since."""
        slot = self._slots.get((name, version))
        return slot.error.message if slot is not None and slot.error is not None else None

    def statistics(self, name: str, version: str) -> VersionStatistics:
        """A version's counters."""
        slot = self._slots.get((name, version))  # one that is there stays, so no lock is needed to find it
        if slot is not None:
            return slot.statistics
        with self._lock:
            return self._slot((name, version)).statistics

    def running(self, name: str, version: str) -> Running | None:
        """A version's loaded form, if it is loaded now."""
        slot = self._slots.get((name, version))
        return slot.running if slot is not None else None

    @property
    def memory_budget(self) -> int:
        """Bytes that all loaded versions may hold."""
        return self._budget

    @property
    def crowded(self) -> bool:
        """Whether a request waits for any model; asked without a lock, once for each request."""
        return bool(self._scheduler.sharing.contenders)

    def memory_held(self) -> int:
        """Bytes that all loaded versions are thought to hold."""
        with self._changed:
            return sum(resident.size for resident in self._residents())

    def sweep(self) -> float | None:
        """Unload what has been idle for its keep-alive time, give up idle sequences, follow the cores and the battery.

        Returns:
            The clock's time of the next expiry; None when nothing can expire.
        """
        self._look_around()
        self._fit_threads()
        with self._changed:
            closing = [self._evict(key) for key in memory.expired(self._residents(), self._clock())]
            tables = [slot.running.sequences for slot in self._slots.values() if slot.running is not None]
        self._close(*closing)
        for table in tables:
            if table is not None:
                table.sweep()
        with self._changed:
            return self._next_expiry()

    def _next_expiry(self) -> float | None:
        tables = [slot.running.sequences for slot in self._slots.values() if slot.running is not None]
        times = [table.next_expiry() for table in tables if table is not None]
        times.append(memory.next_expiry(self._residents(), self._clock()))
        return min((time for time in times if time is not None), default=None)

    # Cores and power

    @property
    def usable_cores(self) -> int:
        """Cores that this process may use now."""
        return len(self._usable_cores())

    def notice(self) -> None:
        """Have the janitor look at the battery if it is time, for a request that gets no further than here."""
        if self._power.due(self._clock()):
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _look_around(self) -> None:
        """Follow a change of the cores that this process may use, or of the battery.

        Android takes cores away from an app in the background and gives them back later.
        """
        self._power.look()
        with self._changed:  # asked under the lock, or a thread that was held up would bring an old answer back
            found = self._usable_cores(), self._power.low
            if found != self._fitted:
                self._fitted = found
                self._scheduler.resize(_slots(*found))

    def _has_changed(self, now: float) -> bool:
        """Whether there is something to look at that was not looked at yet."""
        return self._power.due(now) or (self._usable_cores(), self._power.low) != self._fitted

    def _threads(self) -> Threads:
        usable, low = self._fitted
        named = self._options.threads
        return Threads(named or cores.count_fast(usable), len(usable), fixed=named != 0, low_power=low)

    def _fit_threads(self) -> None:
        """Open loaded models again whose sessions were made for another number of cores. The old ones serve on."""
        with self._changed:
            listed = [(key, slot) for key, slot in self._slots.items() if slot.running is not None]
        for key, slot in listed:
            with self._changed:
                running = slot.running
                if running is None or slot.state is not State.READY:
                    continue
                threads = running.model.threads_for(self._threads())
                if running.model.threads == threads or running.model.fixed_threads:
                    continue
                if running.open_sequences:
                    continue  # their state would be lost; the next sweep looks again
                slot.state, slot.reserved = State.LOADING, running.model.memory_bytes
            self._reopen(key, slot, running, threads)

    def _reopen(self, key: Key, slot: Slot, running: Running, threads: int) -> None:
        fresh = None
        try:
            fresh = start_running(running.model.reopen(threads), self._options, self._scheduler, self._clock)
        except ApiError as error:
            log.warning("%s", error.message)
            running.model.threads = threads  # it is not tried again and again
        finally:
            with self._changed:
                closing = None
                if fresh is not None and running.open_sequences:
                    closing = fresh  # begun meanwhile: their state would be lost; the next sweep looks again
                elif fresh is not None:
                    fresh.last_used = running.last_used
                    closing = self._detach(slot)
                    slot.running = fresh
                slot.state, slot.reserved = State.READY, 0
                last = self._detach(slot) if self._closed else None
                self._changed.notify_all()
            if fresh is not None and closing is not fresh:
                log.info("%s/%s runs with %d threads now", *key, threads)
            self._close(closing, last)

    def close(self) -> None:
        """Unload everything; requests that hold a version finish on it."""
        with self._changed:
            self._closed = True
            closing = [self._detach(slot) for slot in self._slots.values()]
            self._changed.notify_all()
        self._close(*closing)

    def acquire(
        self, entry: ModelEntry, version: VersionEntry, deadline: float, cancellation: Cancellation | None
    ) -> Running:
        """What :meth:`use` does at its start, for the one caller whose time counts; :meth:`release` ends it."""
        key = (entry.name, version.name)
        # A freshly loaded version may be evicted before this thread gets hold of it; then it is loaded once more.
        while True:
            with self._lock:
                slot = self._slots.get(key) or self._slot(key)
                if slot.running is None:  # one that is being loaded anew serves on until the new one is there
                    self._await_loading(slot, deadline, cancellation)
                if self._closed:
                    raise ApiError(ErrorCode.SHUTTING_DOWN, "the server is shutting down", retry_after_s=1.0)
                if slot.running is not None:
                    slot.running.users += 1
                    return slot.running
                self._refuse_unusable(slot, version, entry)
                slot.state = State.LOADING
            self._open(key, slot, entry, version, fallback=(State.ON_DEMAND, None), deadline=deadline)

    def _refuse_unusable(self, slot: Slot, version: VersionEntry, entry: ModelEntry) -> None:
        if slot.state is State.STOPPED:
            raise ApiError(
                ErrorCode.MODEL_NOT_FOUND,
                f"Request for unknown model: {entry.name!r} has no available versions: "
                f"version {version.name!r} was unloaded",
            )
        # A file that failed is tried again once it has changed, not on every request.
        if slot.state is State.FAILED and slot.error is not None and slot.failed_stamp == _stamp(version):
            raise slot.error

    def release(self, running: Running) -> None:
        """Give back what :meth:`acquire` gave."""
        with self._lock:
            running.users -= 1
            now = running.last_used = self._clock()
            last = running.retired and running.users == 0
            if running.sequences or now >= self._look_at:
                self._wake_janitor(running, now)
        if last:
            self._close(running)

    def _wake_janitor(self, running: Running, now: float) -> None:
        """Wake it if a sequence expires before it would wake, or cores or power changed; looked at once a second."""
        upcoming = running.sequences.next_expiry() if running.sequences is not None else None
        early = upcoming is not None and (self._janitor_wakes is None or upcoming < self._janitor_wakes)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            early = early or self._has_changed(now)
        if early:
            self._changed.notify_all()

    def _open(
        self,
        key: Key,
        slot: Slot,
        entry: ModelEntry,
        version: VersionEntry,
        fallback: tuple[State, Running | None],
        deadline: float,
    ) -> None:
        """Load outside the lock, then publish. The slot is LOADING and only this thread changes it."""
        # Imported with the first model: a server that has loaded none does not hold the code for it.
        from pocketserve.engine.loading import load_model

        try:
            self._make_room(entry, file_bytes(version) * entry.manifest.instances, key, deadline)
            started = self._clock()
            self._look_around()
            model = load_model(
                entry,
                version,
                self._threads(),
                self._options.max_image_pixels,
                self._quarantine,
                deadline,
                self._tuning,
            )
        except ApiError as error:
            self._publish_failure(slot, version, error, fallback)
            raise
        except BaseException as error:  # a slot that stayed LOADING would answer nobody any more
            fault = ApiError(ErrorCode.MODEL_FAILED, f"failed to load {key[0]!r}: {type(error).__name__}: {error}")
            self._publish_failure(slot, version, fault, fallback)
            raise
        log.info("loaded %s/%s in %.3f s (%s)", *key, self._clock() - started, model.runtime)
        fresh = start_running(model, self._options, self._scheduler, self._clock)
        with self._changed:
            closing = [self._detach(slot)]
            slot.running, slot.reserved = fresh, 0
            slot.state, slot.error = State.READY, None
            if self._closed:
                closing = [self._detach(slot)]
            closing += self._keep_to_budget(key)
            self._changed.notify_all()
        self._close(*closing)
        self._start_janitor()

    def _publish_failure(
        self, slot: Slot, version: VersionEntry, error: ApiError, fallback: tuple[State, Running | None]
    ) -> None:
        state, previous = fallback
        with self._changed:
            slot.reserved = 0
            if previous is not None:
                slot.state = State.READY  # a failed reload leaves the old one serving
            elif error.code.retryable:
                slot.state = state
            else:
                slot.state, slot.error, slot.failed_stamp = State.FAILED, error, _stamp(version)
            self._changed.notify_all()
        log.warning("%s", error.message)

    def _make_room(self, entry: ModelEntry, needed: int, key: Key, deadline: float) -> None:
        """Evict what must go for a load, and reserve its bytes until it is done.

        Where only other loads under way are in the way, their end is awaited: what they loaded may go then.
        """
        with self._changed:
            while (chosen := self._choose_evictions(key, needed)) is None:
                alone = memory.choose_evictions(self._others(key), needed, self._budget)
                left = deadline - self._clock()
                if alone is None or left <= 0 or not self._changed.wait(_bounded(left)):
                    raise self._no_room(entry, needed, key)
            self._slots[key].reserved = needed
            closing = [self._evict(other) for other in chosen]
        self._close(*closing)

    def _choose_evictions(self, key: Key, needed: int) -> list[object] | None:
        reserved = sum(slot.reserved for other, slot in self._slots.items() if other != key)
        return memory.choose_evictions(self._others(key), needed + reserved, self._budget)

    def _keep_to_budget(self, key: Key) -> list[Running | None]:
        """A model that turned out larger than its file makes others go."""
        running = self._slots[key].running
        size = running.model.memory_bytes if running is not None else 0
        return [self._evict(other) for other in self._choose_evictions(key, size) or ()]

    def _others(self, key: Key) -> list[memory.Resident]:
        return [resident for resident in self._residents() if resident.key != key]

    def _no_room(self, entry: ModelEntry, needed: int, key: Key) -> ApiError:
        held = sum(resident.size for resident in self._others(key))
        return ApiError(
            ErrorCode.MEMORY_BUDGET,
            f"failed to load {entry.name!r}: it needs about {needed} bytes and {held} are in use, but the "
            f"memory budget is {self._budget}; wait, unload a model or raise --memory-budget",
            retry_after_s=1.0,
        )

    def _await_loading(self, slot: Slot, deadline: float, cancellation: Cancellation | None = None) -> None:
        if slot.state is not State.LOADING:
            return
        with waking(cancellation, self._changed):
            while slot.state is State.LOADING:
                if cancellation is not None:
                    cancellation.check()
                left = deadline - self._clock()
                if left <= 0 or not self._changed.wait(_bounded(left)):
                    raise ApiError(
                        ErrorCode.DEADLINE_EXCEEDED,
                        "the request's timeout passed while its model was still loading",
                    )

    def _slot(self, key: Key) -> Slot:
        slot = self._slots.get(key)
        return slot if slot is not None else self._slots.setdefault(key, Slot())

    def _residents(self) -> list[memory.Resident]:
        return [
            # One that is being loaded anew counts as in use: its slot belongs to the thread that loads it.
            memory.Resident(
                key,
                running.model.memory_bytes,
                running.last_used,
                running.users > 0 or slot.state is State.LOADING,
                running.keep_alive,
            )
            for key, slot in self._slots.items()
            if (running := slot.running) is not None
        ]

    def _evict(self, key: object) -> Running | None:
        slot = self._slots[key]  # type: ignore[index]  # the policy hands back the keys it was given
        slot.state = State.ON_DEMAND
        log.info("unloading %s/%s: idle for its keep-alive time, or to make room", *key)  # type: ignore[misc]
        return self._detach(slot)

    @staticmethod
    def _detach(slot: Slot) -> Running | None:
        """Take the loaded version out of its slot; returns it when nobody holds it, so that it can be closed."""
        running, slot.running = slot.running, None
        if running is None:
            return None
        running.retired = True
        return running if running.users == 0 else None

    @staticmethod
    def _close(*closing: Running | None) -> None:
        done = [running for running in closing if running is not None]
        for running in done:
            running.close()
        if done:
            memory.return_free_memory()

    def _start_janitor(self) -> None:
        """One sleeping thread, from the first load on; it wakes only when something may expire."""
        with self._changed:
            if self._janitor is not None or self._closed:
                return
            self._janitor = threading.Thread(target=self._tidy, name="pocketserve-janitor", daemon=True)
            self._janitor.start()

    def _tidy(self) -> None:
        while True:
            self.sweep()
            with self._changed:
                if self._closed:
                    return
                if self._has_changed(self._clock()):
                    continue  # it was not asleep yet when it was told
                # Computed under the lock that the wait gives up: a model that is loaded meanwhile wakes it.
                upcoming = self._janitor_wakes = self._next_expiry()
                self._changed.wait(None if upcoming is None else _bounded(upcoming - self._clock()))
                if self._closed:
                    return


def _slots(usable: list[int], low: bool) -> int:
    """Runs at a time, over all models."""
    return (max(1, len(usable) // 2) if low else len(usable)) + 1


def _bounded(seconds: float) -> float:
    """A wait that the operating system accepts."""
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


def _stamp(version: VersionEntry) -> object:
    """What changes when one of a version's files is replaced."""
    try:
        return stamp(version_files(version))
    except (ModelLoadError, OSError):
        return None
