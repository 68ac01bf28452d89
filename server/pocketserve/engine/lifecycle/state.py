"""The state of every version, under one lock.

Models are opened and closed outside of the lock: methods return handles for
:func:`close_all`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pocketserve.engine.lifecycle import memory
from pocketserve.engine.scheduling.cancellation import Cancellation, waking
from pocketserve.engine.statistics import VersionStatistics
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle

log = logging.getLogger(__name__)

VersionKey = tuple[str, str]  # a model's name and its version's


class State(Enum):
    """The state of a version.

    ON_DEMAND: its first request loads it. STOPPED: it was unloaded.
    """

    ON_DEMAND = "on demand"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "unloaded"


class Event(Enum):
    """An event in the life of a version.

    LOAD_DEFERRED: the load may be retried at once.
    """

    LOAD_STARTED = "load started"
    LOADED = "loaded"
    LOAD_FAILED = "load failed"
    LOAD_DEFERRED = "load deferred"
    RELOAD_FAILED = "reload failed"
    REOPENED = "reopened"
    EVICTED = "evicted"
    UNLOADED = "unloaded"
    RESET = "reset"


_AT_REST = (State.ON_DEMAND, State.READY, State.FAILED, State.STOPPED)
TRANSITIONS: Mapping[tuple[State, Event], State] = {
    **{(state, Event.LOAD_STARTED): State.LOADING for state in _AT_REST},
    **{(state, Event.UNLOADED): State.STOPPED for state in _AT_REST},
    (State.LOADING, Event.LOADED): State.READY,
    (State.LOADING, Event.LOAD_FAILED): State.FAILED,
    (State.LOADING, Event.RELOAD_FAILED): State.READY,  # the old one serves on
    (State.LOADING, Event.REOPENED): State.READY,
    (State.READY, Event.EVICTED): State.ON_DEMAND,
    (State.FAILED, Event.RESET): State.ON_DEMAND,
    (State.STOPPED, Event.RESET): State.ON_DEMAND,
}
"""The next state. LOADING ends by LOAD_DEFERRED in the state in which the load began."""


@dataclass(slots=True, eq=False, repr=False)
class VersionRecord:
    """Everything known about one version, loaded or not."""

    state: State = State.ON_DEMAND  # changed by ``apply`` alone
    before: State = State.ON_DEMAND  # the state in which the load under way began
    running: ModelHandle | None = None
    error: ApiError | None = (
        None  # of the last load, though an earlier one may serve on; to be raised as a copy()
    )
    failed_fingerprint: object = None  # the loader's fingerprint of the failed files
    reserved: int = 0  # bytes that a load under way is thought to need, or the second copy of one that is opened again
    statistics: VersionStatistics = field(default_factory=VersionStatistics)

    def apply(self, event: Event, error: ApiError | None = None) -> None:
        """Apply an event; raise RuntimeError for an invalid one.

        Keeps why a load failed. Requires the lock.
        """
        deferred = self.state is State.LOADING and event is Event.LOAD_DEFERRED
        state = self.before if deferred else TRANSITIONS.get((self.state, event))
        if state is None:
            raise RuntimeError(
                f"a version that is {self.state.value} cannot be {event.value}"
            )
        if event not in (
            Event.LOAD_STARTED,
            Event.LOAD_DEFERRED,
            Event.REOPENED,
            Event.EVICTED,
        ):
            self.error = error
        self.before, self.state = self.state, state


class VersionTable:
    """The records of all requested versions.

    While a version is LOADING, only the thread that loads it changes its record. All methods want the lock.

    Attributes:
        by_key: a record that is there stays, so no lock is needed to find it.
        lock: guards them. By itself too: entering the condition would be one more call per request.
        changed: the condition of that lock; notified when one leaves LOADING and when the reaper has something to do.
        closed: whether the server shuts down; nothing is loaded from then on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_key: dict[VersionKey, VersionRecord] = {}
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.closed = False
        self._clock = clock

    def ensure(self, key: VersionKey) -> VersionRecord:
        """Return a version's record, creating it on first use."""
        record = self.by_key.get(key)
        return (
            record
            if record is not None
            else self.by_key.setdefault(key, VersionRecord())
        )

    def await_loading(
        self,
        record: VersionRecord,
        deadline: float,
        cancellation: Cancellation | None = None,
    ) -> None:
        """Wait for another thread's load, releasing the lock.

        Raises DEADLINE_EXCEEDED or CANCELLED.
        """
        if record.state is not State.LOADING:
            return
        with waking(cancellation, self.changed):
            while record.state is State.LOADING:
                if cancellation is not None:
                    cancellation.check()
                left = deadline - self._clock()
                if left <= 0 or not self.changed.wait(bounded(left)):
                    text = (
                        "the request's timeout passed while its model was still loading"
                    )
                    raise ApiError(ErrorCode.DEADLINE_EXCEEDED, text)

    def loaded(self) -> list[tuple[VersionKey, VersionRecord, ModelHandle]]:
        """Return the loaded versions in order of first use."""
        return [
            (key, record, record.running)
            for key, record in self.by_key.items()
            if record.running is not None
        ]

    def residents(self) -> list[memory.Resident]:
        """Return the loaded versions for the memory policy."""
        return [
            # A version that is being reloaded is in use by the loading thread.
            memory.Resident(
                key,
                h.memory_bytes,
                h.last_used,
                h.users > 0 or record.state is State.LOADING,
                h.keep_alive,
            )
            for key, record, h in self.loaded()
        ]

    def evict(self, key: object, reason: str) -> ModelHandle | None:
        """Unload a version until its next request; return handles to close.

        The reason is logged.
        """
        record = self.by_key[key]  # type: ignore[index]  # the policy hands back the keys it was given
        record.apply(Event.EVICTED)
        log.info("unloading %s/%s: %s", *key, reason)  # type: ignore[misc]
        return detach(record)


def detach(record: VersionRecord) -> ModelHandle | None:
    """Detach the loaded version; return it if it can be closed."""
    handle, record.running = record.running, None
    if handle is None:
        return None
    handle.retired = True
    return handle if handle.users == 0 else None


def retire_unless_in_sequence(handle: ModelHandle | None) -> bool:
    """Retire a version about to be replaced, unless sequences are open. Requires the lock.

    A request that starts a sequence checks `retired` afterwards. One of the two notices the other.
    """
    if handle is None:
        return True
    handle.retired = True
    if handle.open_sequences:
        handle.retired = False
        return False
    return True


def close_all(*closing: ModelHandle | None) -> None:
    """Close detached versions and return their memory.

    Not under the lock.
    """
    retired_handles = [running for running in closing if running is not None]
    if not retired_handles:
        return
    with memory.trimming():
        for running in retired_handles:
            try:
                running.close()
            except Exception:
                # The error must not affect the other requests, nor the one that caused
                # the unload.
                log.exception("%s could not be closed", running.model.entry.name)


def bounded(seconds: float) -> float:
    """Return a wait that the operating system accepts."""
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)
