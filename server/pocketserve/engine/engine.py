"""The life of models: loaded on first use or on request, held while in use, unloaded when idle or when room is needed.

Decisions are made under one lock; opening and closing models happens outside it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pocketserve.engine import cores, memory
from pocketserve.engine.batching import RowBatcher, free_rows
from pocketserve.engine.cancellation import Cancellation, waking
from pocketserve.engine.lane import Lane, Scheduler
from pocketserve.engine.policy import Gain
from pocketserve.engine.sequences import SequenceTable
from pocketserve.engine.statistics import VersionStatistics
from pocketserve.repository.files import file_bytes, stamp, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.loading import LoadedModel
    from pocketserve.quarantine.quarantine import Quarantine

log = logging.getLogger(__name__)

DEFAULT_SEQUENCES = 64
DEFAULT_OWN_SESSIONS = 4
"""Open sequences of models whose state is a few arrays, and of those where each needs a session of its own."""


class State(Enum):
    """Where a version stands. ON_DEMAND will be loaded by its first request; STOPPED was unloaded on request."""

    ON_DEMAND = "on demand"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "unloaded"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The settings that the engine needs; see the settings table for their meaning."""

    memory_budget: int
    keep_alive: float
    threads: int
    queue_limit: int
    max_image_pixels: int
    batching: bool = True
    max_batch: int = 8


class Running:
    """A loaded version with its lane, as requests hold it."""

    __slots__ = ("keep_alive", "lane", "last_used", "model", "retired", "sequences", "users")

    def __init__(
        self, model: LoadedModel, lane: Lane, sequences: SequenceTable | None, keep_alive: float, now: float
    ) -> None:
        self.model = model
        self.lane = lane
        self.sequences = sequences
        self.keep_alive = keep_alive
        self.last_used = now
        self.users = 0
        self.retired = False


@dataclass(slots=True)
class Slot:
    """Everything known of one version, loaded or not."""

    state: State = State.ON_DEMAND
    running: Running | None = None
    error: ApiError | None = None
    failed_stamp: object = None
    statistics: VersionStatistics = field(default_factory=VersionStatistics)


Key = tuple[str, str]


class Engine:
    """Loads, runs and unloads versions.

    Args:
        clock: seconds, monotonic; a test may inject its own.
        quarantine: tries unseen files before they are opened; None trusts every file.
    """

    def __init__(
        self,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._options = options
        self._quarantine = quarantine
        self._clock = clock
        self._budget = options.memory_budget or cores.available_memory() // 2
        self._slots: dict[Key, Slot] = {}
        self._scheduler = Scheduler(_run_slots(), clock)
        self._changed = threading.Condition()
        self._janitor: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def use(
        self, entry: ModelEntry, version: VersionEntry, deadline: float, cancellation: Cancellation | None = None
    ) -> Iterator[Running]:
        """Hold a version for one request, loading it first where needed. It is not unloaded meanwhile.

        Args:
            deadline, cancellation: end the wait for a load that another request has begun.

        Raises:
            ApiError: why the version cannot be used.
        """
        running = self._acquire(entry, version, deadline, cancellation)
        try:
            yield running
        finally:
            self._release(running)

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
        with self._changed:
            return self._slot((name, version)).statistics

    def running(self, name: str, version: str) -> Running | None:
        """A version's loaded form, if it is loaded now."""
        slot = self._slots.get((name, version))
        return slot.running if slot is not None else None

    def memory_held(self) -> int:
        """Bytes that all loaded versions are thought to hold."""
        with self._changed:
            return sum(resident.size for resident in self._residents())

    def sweep(self) -> float | None:
        """Unload what has been idle for its keep-alive time.

        Returns:
            The clock's time of the next expiry; None when nothing can expire.
        """
        with self._changed:
            closing = [self._evict(key) for key in memory.expired(self._residents(), self._clock())]
            upcoming = memory.next_expiry(self._residents(), self._clock())
        self._close(*closing)
        return upcoming

    def close(self) -> None:
        """Unload everything; requests that hold a version finish on it."""
        with self._changed:
            self._closed = True
            closing = [self._detach(slot) for slot in self._slots.values()]
            self._changed.notify_all()
        self._close(*closing)

    def _acquire(
        self, entry: ModelEntry, version: VersionEntry, deadline: float, cancellation: Cancellation | None
    ) -> Running:
        key = (entry.name, version.name)
        # A freshly loaded version may be evicted before this thread gets hold of it; then it is loaded once more.
        while True:
            with self._changed:
                slot = self._slot(key)
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

    def _release(self, running: Running) -> None:
        with self._changed:
            running.users -= 1
            running.last_used = self._clock()
            last = running.retired and running.users == 0
        if last:
            self._close(running)

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
            self._make_room(entry, file_bytes(version) * entry.manifest.instances, keep=key)
            started = self._clock()
            model = load_model(
                entry,
                version,
                self._options.threads or cores.count_fast(cores.usable_cores()),
                self._options.max_image_pixels,
                self._quarantine,
                deadline,
            )
        except ApiError as error:
            self._publish_failure(slot, version, error, fallback)
            raise
        except BaseException as error:  # a slot that stayed LOADING would answer nobody any more
            fault = ApiError(ErrorCode.MODEL_FAILED, f"failed to load {key[0]!r}: {type(error).__name__}: {error}")
            self._publish_failure(slot, version, fault, fallback)
            raise
        log.info("loaded %s/%s in %.3f s (%s)", *key, self._clock() - started, model.runtime)
        manifest = entry.manifest
        queue_limit = manifest.queue_limit or self._options.queue_limit
        batcher = self._batcher(model)
        # A manifest that demands it need not be shown that it pays.
        gain = Gain() if manifest.batching is None else None
        lane = Lane(model.sessions, queue_limit, self._clock, self._scheduler, batcher=batcher, gain=gain)
        sequences = self._sequences(model, queue_limit, lane)
        keep_alive = self._options.keep_alive if manifest.keep_alive is None else manifest.keep_alive
        with self._changed:
            closing = self._detach(slot)
            slot.running = Running(model, lane, sequences, keep_alive, self._clock())
            slot.state, slot.error = State.READY, None
            if self._closed:
                closing = self._detach(slot)
            self._changed.notify_all()
        self._close(closing)
        self._start_janitor()

    def _batcher(self, model: LoadedModel) -> RowBatcher | None:
        """What runs several requests of a model as one; None where that cannot be or is not wanted."""
        manifest = model.entry.manifest
        wanted = self._options.batching if manifest.batching is None else manifest.batching
        most = manifest.max_batch or self._options.max_batch
        signatures = free_rows(model.entry_points)
        if not wanted or most < 2 or not signatures or model.feedback or model.resettable:
            return None
        return RowBatcher(f"{model.entry.name}/{model.version.name}", signatures, most)

    def _sequences(self, model: LoadedModel, queue_limit: int, lane: Lane) -> SequenceTable | None:
        """The table of a model that keeps state; None for the others."""
        if not model.feedback and not model.resettable:
            return None
        state = model.entry.manifest.state
        most = state.max_sequences or (DEFAULT_SEQUENCES if model.feedback else DEFAULT_OWN_SESSIONS)
        opener = None if model.feedback else model.open_session
        return SequenceTable(most, state.max_idle, opener, queue_limit, self._clock, lane)

    def _publish_failure(
        self, slot: Slot, version: VersionEntry, error: ApiError, fallback: tuple[State, Running | None]
    ) -> None:
        state, previous = fallback
        with self._changed:
            if previous is not None:
                slot.state = State.READY  # a failed reload leaves the old one serving
            elif error.code.retryable:
                slot.state = state
            else:
                slot.state, slot.error, slot.failed_stamp = State.FAILED, error, _stamp(version)
            self._changed.notify_all()
        log.warning("%s", error.message)

    def _make_room(self, entry: ModelEntry, needed: int, keep: Key) -> None:
        with self._changed:
            others = [resident for resident in self._residents() if resident.key != keep]
            chosen = memory.choose_evictions(others, needed, self._budget)
            if chosen is None:
                held = sum(resident.size for resident in others)
                raise ApiError(
                    ErrorCode.MEMORY_BUDGET,
                    f"failed to load {entry.name!r}: it needs about {needed} bytes and {held} are in use, but the "
                    f"memory budget is {self._budget}; wait, unload a model or raise --memory-budget",
                    retry_after_s=1.0,
                )
            closing = [self._evict(key) for key in chosen]
        self._close(*closing)

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
            if running.sequences is not None:
                running.sequences.close()
            running.model.close()
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
                # Computed under the lock that the wait gives up: a model that is loaded meanwhile wakes it.
                upcoming = memory.next_expiry(self._residents(), self._clock())
                self._changed.wait(None if upcoming is None else _bounded(upcoming - self._clock()))
                if self._closed:
                    return


def _run_slots() -> int:
    """Runs at a time, over all models: as many as one model can use, and one more for any other."""
    return len(cores.usable_cores()) + 1


def _bounded(seconds: float) -> float:
    """A wait that the operating system accepts."""
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


def _stamp(version: VersionEntry) -> object:
    """What changes when one of a version's files is replaced."""
    try:
        return stamp(version_files(version))
    except (ModelLoadError, OSError):
        return None
