"""Opening versions: outside of the lock, and published when they are there or have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from pocketserve.engine.device.cores import CoreWatch
from pocketserve.engine.lifecycle import memory
from pocketserve.engine.lifecycle.budget import Budget
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle, open_handle
from pocketserve.engine.lifecycle.state import Event, Key, State, VersionState, VersionTable, close_all, detach
from pocketserve.engine.scheduling.queue import Scheduler
from pocketserve.repository.files import file_bytes, made_from
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.quarantine.quarantine import Quarantine
    from pocketserve.repository.snapshots import SnapshotStore
    from pocketserve.trust.store import TrustStore

log = logging.getLogger(__name__)


class ModelLoader:
    """Opens versions and puts them into their slots; see :class:`pocketserve.engine.engine.Engine` for the arguments.

    The threads that call it own the slots they bring: these are LOADING.
    """

    def __init__(
        self,
        slots: VersionTable,
        budget: Budget,
        watch: CoreWatch,
        scheduler: Scheduler,
        options: EngineOptions,
        clock: Callable[[], float],
        quarantine: Quarantine | None,
        snapshots: SnapshotStore | None,
        trust: TrustStore | None,
    ) -> None:
        self._slots = slots
        self._budget = budget
        self._watch = watch
        self._scheduler = scheduler
        self._options = options
        self._clock = clock
        self._quarantine = quarantine
        self._snapshots = snapshots
        self._trust = trust

    def open(
        self,
        slot: VersionState,
        entry: ModelEntry,
        version: VersionEntry,
        deadline: float,
        users: int = 0,
    ) -> ModelHandle | None:
        """Load a version and publish it.

        Args:
            deadline: the clock's time at which waits end.
            users: how many hold it from the start. One that is held is not evicted for the next load at once.

        Returns:
            What was published; None if the engine was closed meanwhile.

        Raises:
            ApiError: why it cannot be loaded.
        """
        key = (entry.name, version.name)
        size = file_bytes(version) * entry.manifest.instances
        before = self.stamp_of(entry, version)  # what changes from now on deserves another try
        try:
            self._budget.make_room(key, size, deadline)
            started = self._clock()
            self.rescan()
            # Loaders hold a file a second time until they are done.
            with memory.giving_back() if size >= memory.LARGE_BYTES else nullcontext():
                model = self._load(entry, version, deadline)
            fresh = open_handle(model, self._options, self._scheduler, self._clock)
            fresh.made_from = before[0]
        except ApiError as error:
            self._publish_failure(slot, before, error)
            raise
        except BaseException as error:  # a slot that stayed LOADING would answer nobody any more
            fault = ApiError(ErrorCode.MODEL_FAILED, f"failed to load {key[0]!r}: {type(error).__name__}: {error}")
            self._publish_failure(slot, before, fault)
            raise
        took = self._clock() - started
        slot.statistics.record_load(int(took * 1e9))
        log.info("loaded %s/%s in %.3f s (%s)", *key, took, model.runtime)
        with self._slots.changed:
            closing = [detach(slot)]
            slot.running, slot.reserved = fresh, 0
            slot.apply(Event.LOADED)
            closed = self._slots.closed
            if closed:
                closing.append(detach(slot))
            else:
                fresh.users = users
            closing += self._budget.evict_beside(key)
            self._slots.changed.notify_all()
        close_all(*closing)
        return None if closed else fresh

    def _load(self, entry: ModelEntry, version: VersionEntry, deadline: float) -> LoadedModel:
        # Imported with the first model: a server that has loaded none does not hold the code for it.
        from pocketserve.engine.lifecycle.loaded_model import load_model

        threads, pixels = self._watch.threads(self._options.threads), self._options.max_image_pixels
        return load_model(entry, version, threads, pixels, self._quarantine, deadline, self._snapshots, self._trust)

    def _publish_failure(self, slot: VersionState, before: tuple[object, object], error: ApiError) -> None:
        slot.statistics.record_load(0, failed=True)
        with self._slots.changed:
            slot.reserved = 0
            if slot.before is State.READY:
                slot.apply(Event.RELOAD_FAILED, error.again())
            elif error.code.retryable:
                slot.apply(Event.LOAD_DEFERRED)
            else:
                slot.apply(Event.LOAD_FAILED, error.again())
            if not error.code.retryable:
                slot.failed_from = before
            self._slots.changed.notify_all()
        log.warning("%s", error.message)

    def stamp_of(self, entry: ModelEntry, version: VersionEntry) -> tuple[object, object]:
        """Return what a version is made from, and what changes when the owner trusts something."""
        return made_from(entry, version), self._trust.stamp() if self._trust is not None else None

    def rescan(self) -> None:
        """Follow a change of the cores that this process may use, or of the battery, in how much runs at a time."""
        self._watch.power.look()
        with self._slots.lock:  # asked under the lock, or a thread that was held up would bring an old answer back
            changed = self._watch.follow()
            if changed:
                self._scheduler.resize(self._watch.runs_at_a_time)
        if changed:
            self._scheduler.start_waiting()

    def fit_threads(self) -> None:
        """Open loaded models again whose sessions were made for another number of cores. The old ones serve on.

        Where memory has no room for both, an idle one is let go: its next request opens it. One in use is left as it
        is until the next sweep.
        """
        evicted = []
        with self._slots.lock:
            listed = self._slots.loaded()
        for key, slot, _ in listed:
            with self._slots.lock:
                running = slot.running
                if running is None or slot.state is not State.READY:
                    continue
                threads = running.model.threads_for(self._watch.threads(self._options.threads))
                if running.model.threads == threads or running.model.fixed_threads:
                    continue
                if running.open_sequences:
                    continue  # their state would be lost; the next sweep looks again
                if not self._budget.has_room_for_copy(key):
                    evicted += [self._slots.evict(key)] if running.users == 0 else []
                    continue
                slot.apply(Event.LOAD_STARTED)
                slot.reserved = running.model.memory_bytes
            self._reopen(key, slot, running, threads)
        close_all(*evicted)

    def _reopen(self, key: Key, slot: VersionState, running: ModelHandle, threads: int) -> None:
        fresh = None
        try:
            fresh = open_handle(running.model.reopen(threads), self._options, self._scheduler, self._clock)
        except ApiError as error:
            log.warning("%s", error.message)
            running.model.threads = threads  # it is not tried again and again
        except Exception:  # what no runtime foresaw must not end the reaper
            log.exception("%s/%s could not be opened with %d threads", *key, threads)
            running.model.threads = threads
        finally:
            with self._slots.changed:
                closing = None
                if fresh is not None and running.open_sequences:
                    closing = fresh  # begun meanwhile: their state would be lost; the next sweep looks again
                elif fresh is not None:
                    fresh.last_used = running.last_used
                    fresh.made_from, fresh.outdated = running.made_from, running.outdated
                    closing = detach(slot)
                    slot.running = fresh
                slot.apply(Event.REOPENED)
                slot.reserved = 0
                last = detach(slot) if self._slots.closed else None
                self._slots.changed.notify_all()
            if fresh is not None and closing is not fresh:
                log.info("%s/%s runs with %d threads now", *key, threads)
            close_all(closing, last)
