"""From a repository entry to a model that can run: sessions, bindings, task."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.device.cores import Threads
from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.files import Stamp, check_digest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.snapshots import Snapshot, SnapshotStore, with_own_paths
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    ResettableSession,
    RuntimeMissingError,
    Session,
)
from pocketserve.runtimes.registry import missing_framework, runtime_for
from pocketserve.tasks.base import Task
from pocketserve.tensors import Array
from pocketserve.trust.store import TrustStore
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.quarantine.quarantine import Quarantine

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class LoadedModel:
    """A version in memory, not yet in anybody's hands.

    Attributes:
        sessions: instances of the model, each for one thread at a time.
        entry_points: bindings of inputs and outputs by signature name; None is the default entry point.
        memory_bytes: estimate over all sessions, and the task's labels and tokenizer.
        task_bytes: the task's part of it.
        feedback: the session's names of inputs that take what an output gave at the last step -> that output.
        first_state: what these inputs are given before there was a step.
        threads: what one run may use, as the sessions were opened.
        source: what they were opened from.
        snapshot: the copy in which that lies; None once it is closed.
        files: stamp of the owner's files, as they were copied.
    """

    entry: ModelEntry
    version: VersionEntry
    sessions: Sequence[Session]
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]]
    task: Task
    platform: str
    memory_bytes: int
    task_bytes: int
    feedback: Mapping[str, str]
    first_state: Mapping[str, Array]
    threads: int
    source: ModelSource
    snapshot: Snapshot | None
    files: Stamp

    @property
    def inputs(self) -> Bindings:
        """Inputs of the default entry point."""
        return self.entry_points[None][0]

    @property
    def outputs(self) -> Bindings:
        """Outputs of the default entry point."""
        return self.entry_points[None][1]

    @property
    def shown_outputs(self) -> Bindings:
        """The same for descriptions: what the file does not tell is shown as the runs so far gave it."""
        bound = self.outputs
        learned = {spec.name: spec for session in self.sessions for spec in session.outputs if not spec.open}
        pairs = ((spec, learned.get(bound.by_name[spec.name][1], spec)) for spec in bound.specs)
        specs = tuple(
            spec._replace(datatype=other.datatype, shape=other.shape, open=False)
            if spec.open and not other.open
            else spec
            for spec, other in pairs
        )
        return bound._replace(specs=specs)

    @property
    def resettable(self) -> bool:
        """Return whether the model keeps state inside itself from run to run."""
        return isinstance(self.sessions[0], ResettableSession)

    @property
    def runtime(self) -> str:
        """The framework that runs it, with its version."""
        return self.sessions[0].runtime

    @property
    def optional_inputs(self) -> frozenset[str]:
        """The callers' names of inputs that the server fills in: the state of a model with a memory."""
        return frozenset(spec.name for spec in self.inputs.specs if self.inputs.by_name[spec.name][1] in self.feedback)

    @property
    def fixed_threads(self) -> bool:
        """Return whether opening it again with another number of threads would change nothing."""
        return getattr(runtime_for(self.version.format), "fixed_threads", False)

    def threads_for(self, threads: Threads) -> int:
        """Threads that one run should use as things stand now."""
        return threads.for_model(self.entry.manifest.threads)

    def open_session(self) -> Session:
        """Open one more session, for a sequence that needs its own; the caller closes it.

        Raises:
            ApiError: MODEL_FAILED.
        """
        return self.open_with(self.threads)

    def open_with(self, threads: int) -> Session:
        """Open one more session, for another number of threads, of the very bytes that were loaded.

        Raises:
            ApiError: MODEL_FAILED.
        """
        try:
            if self.snapshot is None:
                raise ModelLoadError("it was unloaded meanwhile")
            self.snapshot.check()
            return runtime_for(self.version.format).open(self.source._replace(threads=threads))
        except Exception as error:
            detail = _failed(self.entry, self.version, str(error).strip()[:500])
            raise ApiError(ErrorCode.MODEL_FAILED, detail) from error

    def reopen(self, threads: int) -> LoadedModel:
        """The same files with sessions for another number of threads.

        Raises:
            ApiError: MODEL_FAILED; this one is as it was.
        """
        sessions = [self.open_with(threads) for _ in self.sessions]
        return dataclasses.replace(
            self,
            sessions=sessions,
            memory_bytes=sum(session.memory_bytes for session in sessions) + self.task_bytes,
            threads=threads,
            source=self.source._replace(threads=threads),
        )

    def close(self) -> None:
        """Close every session, and drop the copy unless sessions for another number of threads use it."""
        for session in self.sessions:
            session.close()
        self.sessions = ()
        self.snapshot = None


def load_model(
    entry: ModelEntry,
    version: VersionEntry,
    threads: Threads,
    max_image_pixels: int,
    quarantine: Quarantine | None,
    deadline: float,
    snapshots: SnapshotStore | None = None,
    trust: TrustStore | None = None,
) -> LoadedModel:
    """Open a version's sessions and choose its task.

    Args:
        threads: what one run may use.
        quarantine: asked before the file is opened; None trusts every file.
        deadline: monotonic time by which a trial must have begun.
        snapshots: makes the copy that is opened; None has it among the system's temporary files.
        trust: which code may run; None trusts none.

    Raises:
        ApiError: RUNTIME_MISSING or MODEL_FAILED, with the reason in words; MODEL_NOT_READY where there is no room.
    """
    try:
        _check_loadable(entry, version)
        snapshot = (snapshots or SnapshotStore()).take(version, entry.folder)
        try:
            return _load(entry, version, threads, max_image_pixels, quarantine, deadline, snapshot, trust)
        except BaseException:
            snapshot.close()
            raise
    except ApiError:
        raise
    except RuntimeMissingError as error:
        raise ApiError(ErrorCode.RUNTIME_MISSING, _failed(entry, version, str(error))) from error
    except ModelLoadError as error:
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, str(error))) from error
    except Exception as error:  # frameworks raise anything on a bad file: MemoryError, UnicodeDecodeError, ...
        reason = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, reason)) from error


def _check_loadable(entry: ModelEntry, version: VersionEntry) -> None:
    problem = version.problem or entry.problem
    if problem is not None:
        raise ModelLoadError(problem)
    missing = missing_framework(version.format)
    if missing is not None:
        raise RuntimeMissingError(missing)
    _check_options(version, runtime_for(version.format).option_keys)


def _load(
    entry: ModelEntry,
    version: VersionEntry,
    threads: Threads,
    max_image_pixels: int,
    quarantine: Quarantine | None,
    deadline: float,
    snapshot: Snapshot,
    trust: TrustStore | None,
) -> LoadedModel:
    runtime = runtime_for(version.format)
    manifest = entry.manifest
    source = ModelSource(
        path=snapshot.path,
        origin=version.path.resolve(),
        threads=threads.for_model(manifest.threads),
        options=version.options,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        trusted=trust.check(entry, version) if trust is not None else frozenset(),
        sides=quarantine.sides(entry, version) if quarantine is not None else None,
    )
    if quarantine is not None:
        quarantine.check(entry, version, source, deadline, snapshot.digest)
    else:
        check_digest(version, snapshot.digest)
    sessions = [runtime.open(source) for _ in range(manifest.instances)]
    snapshot.check()
    parts = set_up(entry, version, sessions[0], max_image_pixels, source)
    return LoadedModel(
        entry=entry,
        version=version,
        sessions=sessions,
        entry_points=parts.entry_points,
        task=parts.task,
        platform=runtime.platform,
        memory_bytes=sum(session.memory_bytes for session in sessions) + parts.memory_bytes,
        task_bytes=parts.memory_bytes,
        feedback=parts.feedback,
        first_state=parts.first_state,
        threads=source.threads,
        source=source,
        snapshot=snapshot,
        files=snapshot.originals,
    )


def _check_options(version: VersionEntry, option_keys: frozenset[str]) -> None:
    unknown = sorted(set(version.options) - option_keys)
    if unknown:
        raise ModelLoadError(
            f"model.toml: unknown key versions.{version.name}.{unknown[0]}; "
            f"a {version.format.name} version knows {', '.join(sorted(option_keys | {'file', 'evaluation', 'sha256'}))}"
        )


def _failed(entry: ModelEntry, version: VersionEntry, reason: str) -> str:
    return f"failed to load {entry.name!r} version {version.name!r}: {with_own_paths(reason, version)}"
