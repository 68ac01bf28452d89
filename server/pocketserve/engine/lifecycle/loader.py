"""Opening versions: outside of the lock, and published when they are there or have failed."""

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
    """Opens versions and publishes them in the table; see :class:`pocketserve.engine.engine.Engine` for the arguments.

    The threads that call it own the records they bring: these are LOADING.
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
        """Load a version, publish and return it; or return None if the engine was closed meanwhile.

        Args:
            users: how many hold it from the start. One that is held is not evicted for the next load at once.
            replaces: another version, which is not evicted for this one and may be in memory beside it.
            keeps_sequences: give the load up if sequences are open on the loaded one.

        Raises:
            ApiError: why it cannot be loaded.
        """
        key = (entry.name, version.name)
        former = (entry.name, replaces) if replaces is not None else key
        before = self.stamp_of(
            entry, version
        )  # files that change from now on are tried again
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
        except (
            BaseException
        ) as error:  # a version that stayed LOADING would answer nobody any more
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
        """Load a version from files that stay the same meanwhile.

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
            text = f"failed to load {entry.name!r} version {version.name!r}: its files changed meanwhile; ask again"
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
        """Have requests use a version from now on; return None if the engine was closed meanwhile.

        Raises:
            ApiError: sequences are open on the loaded one, and are to be kept.
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
        # Imported with the first model: a server that has loaded none does not hold the code for it.
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
        """Return the memory that a version will take, as far as its files tell.

        Raises:
            ApiError: MEMORY_BUDGET where it can't fit.
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
        """Return what a version is made from, and what its owner trusts of it."""
        return fingerprint(entry, version), self.trust.consents_to(
            entry
        ) if self.trust is not None else None

    def rescan(self) -> None:
        """Follow a change of the cores that this process may use, or of the battery, in how much runs at a time."""
        self.watch.power.look()
        with self.table.lock:  # asked under the lock, or a thread that was held up would bring an old answer back
            changed = self.watch.follow()
            if changed:
                self.scheduler.resize(self.watch.runs_at_a_time)
        if changed:
            self.scheduler.start_waiting()

    def fit_threads(self) -> None:
        """Open loaded models again whose sessions were made for another number of cores. The old ones serve on.

        Where memory has no room for both, an idle one is let go: its next request opens it. One in use is left as it
        is until the next sweep.
        """
        evicted = []
        with self.table.lock:
            listed = self.table.loaded()
        for key, record, _ in listed:
            with self.table.lock:
                running = record.running
                if running is None or record.state is not State.READY:
                    continue
                threads = self._threads_for(running.model.entry)
                if (
                    running.model.threads == threads
                    or running.model.fixed_threads
                    or running.open_sequences
                ):
                    continue  # the state of sequences would be lost; the next sweep looks again
                if not self.budget.has_room_for_copy(key):
                    evicted += (
                        [self.table.evict(key, MAKES_ROOM)]
                        if running.users == 0
                        else []
                    )
                    continue
                record.apply(Event.LOAD_STARTED)
                record.reserved = running.model.memory_bytes
            self._reopen(key, record, running, threads)
        close_all(*evicted)

    def _reopen(
        self, key: VersionKey, record: VersionRecord, running: ModelHandle, threads: int
    ) -> None:
        fresh = None
        try:
            fresh = open_handle(
                running.model.reopen(threads), self.options, self.scheduler, self.clock
            )
        except ApiError as error:
            log.warning("%s", error.message)
            running.model.threads = threads  # it is not tried again and again
        except Exception:  # an unexpected error must not end the reaper
            log.exception("%s/%s could not be opened with %d threads", *key, threads)
            running.model.threads = threads
        finally:
            with self.table.changed:
                closing = None
                if fresh is not None and not retire_unless_in_sequence(running):
                    closing = fresh  # begun meanwhile: their state would be lost; the next sweep looks again
                elif fresh is not None:
                    fresh.last_used = running.last_used
                    fresh.fingerprint, fresh.outdated = (
                        running.fingerprint,
                        running.outdated,
                    )
                    closing = detach(record)
                    record.running = fresh
                record.apply(Event.REOPENED)
                record.reserved = 0
                last = detach(record) if self.table.closed else None
                self.table.changed.notify_all()
            if fresh is not None and closing is not fresh:
                log.info("%s/%s runs with %d threads now", *key, threads)
            close_all(closing, last)
