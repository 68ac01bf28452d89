"""Opens versions outside of the lock, and publishes the results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pocketserve.engine.device.cores import CoreWatch
from pocketserve.engine.lifecycle import memory
from pocketserve.engine.lifecycle.budget import MAKES_ROOM, Budget
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle, open_handle
from pocketserve.engine.lifecycle.state import (
    Event,
    State,
    VersionKey,
    VersionRecord,
    VersionTable,
    close_all,
    detach,
    retire_unless_in_sequence,
)
from pocketserve.engine.scheduling.queue import Scheduler
from pocketserve.repository.files import file_bytes, fingerprint
from pocketserve.repository.quiet import loading_stamp
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.quarantine.quarantine import Quarantine
    from pocketserve.repository.snapshots import SnapshotStore
    from pocketserve.trust.store import TrustStore

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class ModelLoader:
    """Opens versions and publishes them in the table.

    See :class:`pocketserve.engine.engine.Engine` for the arguments. The calling threads
    own the records that they pass: these are LOADING.
    """

    table: VersionTable
    budget: Budget
    watch: CoreWatch
    scheduler: Scheduler
    options: EngineOptions
    clock: Callable[[], float]
    quarantine: Quarantine | None
    snapshots: SnapshotStore | None
    trust: TrustStore | None

    def open(
        self,
        record: VersionRecord,
        entry: ModelEntry,
        version: VersionEntry,
        deadline: float,
        users: int = 0,
        *,
        replaces: str | None = None,
        keeps_sequences: bool = False,
    ) -> ModelHandle | None:
        """Load and publish a version; return None if the engine was closed.

        Args:
            users: initial users. A version in use is not evicted for the next load.
            replaces: another version, which is not evicted for this one.
            keeps_sequences: give up if the loaded version has open sequences.

        Raises:
            ApiError: the version cannot be loaded.
        """
        key = (entry.name, version.name)
        former = (entry.name, replaces) if replaces is not None else key
        # Files that change from now on are tried again.
        before = self.stamp_of(entry, version)
        try:
            required = self._required_bytes(entry, version)
            self.budget.make_room(key, required, deadline, former)
            started = self.clock()
            self.rescan()
            fresh = self._open_fresh(entry, version, deadline)
            fresh.fingerprint = before[0]
        except ApiError as error:
            self._publish_failure(record, before, error)
            raise
        except BaseException as error:  # the version must not stay LOADING
            fault = ApiError(
                ErrorCode.MODEL_FAILED,
                f"failed to load {key[0]!r}: {type(error).__name__}: {error}",
            )
            self._publish_failure(record, before, fault)
            raise
        took = self.clock() - started
        runtime = fresh.model.runtime
        try:
            published = self._publish(
                record, fresh, users, key, former, keeps_sequences
            )
        except ApiError as error:
            fresh.close()
            self._publish_failure(record, before, error)
            raise
        record.statistics.record_load(int(took * 1e9))
        log.info("loaded %s/%s in %.3f s (%s)", *key, took, runtime)
        return published

    def _open_fresh(
        self, entry: ModelEntry, version: VersionEntry, deadline: float
    ) -> ModelHandle:
        """Load a version from files that do not change meanwhile.

        Raises:
            ApiError: MODEL_NOT_READY when they changed, or why it cannot be loaded.
        """
        files = loading_stamp(entry, version)
        is_large = file_bytes(version) * entry.manifest.instances >= memory.LARGE_BYTES
        # Loaders hold a file a second time until they are done.
        with memory.trimming() if is_large else nullcontext():
            model = self._load(entry, version, deadline)
        if loading_stamp(entry, version) != files:
            model.close()
            text = (
                f"failed to load {entry.name!r} version {version.name!r}: "
                "its files changed in the meantime; try again"
            )
            raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1.0)
        return open_handle(model, self.options, self.scheduler, self.clock)

    def _publish(
        self,
        record: VersionRecord,
        fresh: ModelHandle,
        users: int,
        key: VersionKey,
        former: VersionKey,
        keeps_sequences: bool,
    ) -> ModelHandle | None:
        """Make a version available; return None if the engine was closed.

        Raises:
            ApiError: the loaded version has open sequences, which are to be kept.
        """
        with self.table.changed:
            if keeps_sequences and not retire_unless_in_sequence(record.running):
                text = f"sequences of {key[0]!r} are open"
                raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1.0)
            closing = [detach(record)]
            record.running, record.reserved = fresh, 0
            record.apply(Event.LOADED)
            closed = self.table.closed
            if closed:
                closing.append(detach(record))
            else:
                fresh.users = users
            closing += self.budget.evict_beside(key, former)
            self.table.changed.notify_all()
        close_all(*closing)
        return None if closed else fresh

    def _load(
        self, entry: ModelEntry, version: VersionEntry, deadline: float
    ) -> LoadedModel:
        # Imported late: a server without loaded models does not need the code.
        from pocketserve.engine.lifecycle.loaded_model import load_model

        threads, pixels = self._threads_for(entry), self.options.max_image_pixels
        return load_model(
            entry,
            version,
            threads,
            pixels,
            self.quarantine,
            deadline,
            self.snapshots,
            self.trust,
            self.budget.size,
        )

    def _required_bytes(self, entry: ModelEntry, version: VersionEntry) -> int:
        """Estimate a version's memory from its files.

        Raises:
            ApiError: MEMORY_BUDGET if it can't fit.
        """
        size = 0
        if version.format.memory is not None:
            sections = entry.manifest.sections
            size = version.format.memory(version.path, sections, self.budget.size)
        return (size or file_bytes(version)) * entry.manifest.instances

    def _threads_for(self, entry: ModelEntry) -> int:
        return self.watch.threads(entry.manifest.threads or self.options.threads)

    def _publish_failure(
        self, record: VersionRecord, before: tuple[object, object], error: ApiError
    ) -> None:
        record.statistics.record_load(0, failed=True)
        with self.table.changed:
            record.reserved = 0
            if record.before is State.READY:
                record.apply(Event.RELOAD_FAILED, error.copy())
            elif error.code.retryable:
                record.apply(Event.LOAD_DEFERRED)
            else:
                record.apply(Event.LOAD_FAILED, error.copy())
            if not error.code.retryable:
                record.failed_fingerprint = before
            self.table.changed.notify_all()
        log.warning("%s", error.message)

    def stamp_of(
        self, entry: ModelEntry, version: VersionEntry
    ) -> tuple[object, object]:
        """Return a version's fingerprint and its owner's consents."""
        consents = None
        if self.trust is not None:
            consents = self.trust.consents_to(entry)
        return fingerprint(entry, version), consents

    def rescan(self) -> None:
        """Adapt the number of concurrent runs to cores and battery."""
        self.watch.power.look()
        # Under the lock, or a delayed thread would apply an outdated answer.
        with self.table.lock:
            changed = self.watch.follow()
            if changed:
                self.scheduler.resize(self.watch.runs_at_a_time)
        if changed:
            self.scheduler.start_waiting()

    def fit_threads(self) -> None:
        """Reopen models whose sessions have another number of threads.

        The old sessions serve meanwhile. If memory has no room for both, an idle model
        is evicted, and its next request loads it. One in use waits for the next sweep.
        """
        evicted: list[ModelHandle | None] = []
        with self.table.lock:
            listed = self.table.loaded()
        for key, record, _ in listed:
            with self.table.lock:
                handle = record.running
                if handle is None or record.state is not State.READY:
                    continue
                threads = self._threads_for(handle.model.entry)
                if not _needs_other_threads(handle, threads):
                    continue
                if not self.budget.has_room_for_copy(key):
                    if handle.users == 0:
                        evicted.append(self.table.evict(key, MAKES_ROOM))
                    continue
                record.apply(Event.LOAD_STARTED)
                record.reserved = handle.model.memory_bytes
            self._reopen(key, record, handle, threads)
        close_all(*evicted)

    def _reopen(
        self, key: VersionKey, record: VersionRecord, running: ModelHandle, threads: int
    ) -> None:
        fresh = None
        try:
            model = running.model.reopen(threads)
            fresh = open_handle(model, self.options, self.scheduler, self.clock)
        except ApiError as error:
            log.warning("%s", error.message)
            running.model.threads = threads  # do not retry at every sweep
        except Exception:  # an unexpected error must not end the reaper
            log.exception("%s/%s could not be opened with %d threads", *key, threads)
            running.model.threads = threads
        finally:
            is_swapped = self._swap(record, running, fresh)
            if is_swapped:
                log.info("%s/%s runs with %d threads now", *key, threads)

    def _swap(
        self, record: VersionRecord, running: ModelHandle, fresh: ModelHandle | None
    ) -> bool:
        """Replace a handle by a reopened one; return whether it was replaced.

        It is not if a sequence began meanwhile, whose state would be lost. The next
        sweep retries then.
        """
        is_swapped = False
        closing = fresh
        with self.table.changed:
            if fresh is not None and retire_unless_in_sequence(running):
                fresh.last_used = running.last_used
                fresh.fingerprint = running.fingerprint
                fresh.outdated = running.outdated
                closing = detach(record)
                record.running = fresh
                is_swapped = True
            record.apply(Event.REOPENED)
            record.reserved = 0
            last = detach(record) if self.table.closed else None
            self.table.changed.notify_all()
        close_all(closing, last)
        return is_swapped


def _needs_other_threads(handle: ModelHandle, threads: int) -> bool:
    """Return whether to reopen a model for another number of threads.

    A model with open sequences is not: their state would be lost.
    """
    model = handle.model
    if model.threads == threads or model.fixed_threads:
        return False
    return not handle.open_sequences
