"""From a repository entry to a model that can run: sessions, bindings, task."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.setup import set_up
from pocketserve.engine.tuned import NOT_TUNED, Threads, Tuned, threads_for
from pocketserve.engine.tuning_store import AGAIN, TuningStore
from pocketserve.quarantine.quarantine import Quarantine
from pocketserve.repository.files import Stamp, check_digest, content_digest, stamp, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    ResettableSession,
    Runtime,
    RuntimeMissingError,
    Session,
)
from pocketserve.runtimes.registry import missing_framework, runtime_for
from pocketserve.tasks.base import Task
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.records import dataclass

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedModel:
    """A version in memory, not yet in anybody's hands.

    Attributes:
        sessions: instances of the model, each for one thread at a time.
        entry_points: bindings of inputs and outputs by signature name; None is the default entry point.
        memory_bytes: estimate over all sessions.
        feedback: the session's names of inputs that take what an output gave at the last step -> that output.
        first_state: what these inputs are given before there was a step.
        open_session: makes one more session, for a sequence that needs its own.
        threads: what one run may use, as the sessions were opened.
        source, files: what they were opened from.
        tuned: what ``bench --tune`` found for it here.
    """

    entry: ModelEntry
    version: VersionEntry
    sessions: Sequence[Session]
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]]
    task: Task
    platform: str
    memory_bytes: int
    feedback: Mapping[str, str]
    first_state: Mapping[str, Array]
    open_session: Callable[[], Session]
    threads: int
    source: ModelSource
    files: Stamp
    tuned: Tuned = NOT_TUNED

    @property
    def inputs(self) -> Bindings:
        """Inputs of the default entry point."""
        return self.entry_points[None][0]

    @property
    def outputs(self) -> Bindings:
        """Outputs of the default entry point."""
        return self.entry_points[None][1]

    @property
    def resettable(self) -> bool:
        """Whether the model keeps state inside itself from run to run."""
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
        """Whether opening it again with another number of threads would change nothing."""
        return getattr(runtime_for(self.version.kind), "fixed_threads", False)

    def threads_for(self, threads: Threads) -> int:
        """Threads that one run should use as things stand now."""
        return threads_for(threads, self.entry.manifest, self.tuned)

    def open_with(self, threads: int) -> Session:
        """One more session, for another number of threads. Whoever asked for it closes it.

        Raises:
            ApiError: MODEL_FAILED.
        """
        source = dataclasses.replace(self.source, threads=threads)
        return _open_again(self.entry, self.version, runtime_for(self.version.kind), source, self.files)

    def reopen(self, threads: int) -> LoadedModel:
        """The same files with sessions for another number of threads.

        Raises:
            ApiError: MODEL_FAILED; this one is as it was.
        """
        runtime = runtime_for(self.version.kind)
        source = dataclasses.replace(self.source, threads=threads)
        sessions = [_open_again(self.entry, self.version, runtime, source, self.files) for _ in self.sessions]
        return dataclasses.replace(
            self,
            sessions=sessions,
            memory_bytes=sum(session.memory_bytes for session in sessions),
            open_session=lambda: _open_again(self.entry, self.version, runtime, source, self.files),
            threads=threads,
            source=source,
        )

    def close(self) -> None:
        """Let go of every session."""
        for session in self.sessions:
            session.close()
        self.sessions = ()


def load_model(
    entry: ModelEntry,
    version: VersionEntry,
    threads: Threads,
    max_image_pixels: int,
    quarantine: Quarantine | None,
    deadline: float,
    tuning: TuningStore | None = None,
) -> LoadedModel:
    """Open a version's sessions and choose its task.

    Args:
        threads: what one run may use.
        quarantine: asked before the file is opened; None trusts every file.
        deadline: monotonic time by which a trial must have begun.
        tuning: what was measured on this device; None knows nothing.

    Raises:
        ApiError: RUNTIME_MISSING or MODEL_FAILED, with the reason in words.
    """
    try:
        return _load(entry, version, threads, max_image_pixels, quarantine, deadline, tuning)
    except ApiError:
        raise
    except RuntimeMissingError as error:
        raise ApiError(ErrorCode.RUNTIME_MISSING, _failed(entry, version, str(error))) from error
    except ModelLoadError as error:
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, str(error))) from error
    except Exception as error:  # frameworks raise anything on a bad file: MemoryError, UnicodeDecodeError, ...
        reason = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, reason)) from error


def _load(
    entry: ModelEntry,
    version: VersionEntry,
    threads: Threads,
    max_image_pixels: int,
    quarantine: Quarantine | None,
    deadline: float,
    tuning: TuningStore | None,
) -> LoadedModel:
    if version.problem is not None:
        raise ModelLoadError(version.problem)
    missing = missing_framework(version.kind)
    if missing is not None:
        raise RuntimeMissingError(missing)
    runtime = runtime_for(version.kind)
    _check_options(version, runtime.option_keys)
    manifest = entry.manifest
    source = ModelSource(
        path=_contained(version.path, entry.folder),
        threads=threads_for(threads, manifest, NOT_TUNED),
        options=version.options,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
    )
    files = stamp(version_files(version))
    if quarantine is not None:
        quarantine.check(entry, version, source, deadline)
    elif version.sha256 is not None:
        check_digest(version)
    tuned = _tuned(version, quarantine, tuning)
    plain, source = source, dataclasses.replace(source, threads=threads_for(threads, manifest, tuned))
    sessions = [runtime.open(source) for _ in range(manifest.instances)]
    if tuned.runtime not in ("", sessions[0].runtime):  # only a session tells the framework's version
        _ignore_tuned(entry, version, tuned, sessions)
        tuned, source = NOT_TUNED, plain
        sessions = [runtime.open(source) for _ in range(manifest.instances)]
    _refuse_changed(version, files)
    made = set_up(entry, version, sessions[0], max_image_pixels)
    return LoadedModel(
        entry=entry,
        version=version,
        sessions=sessions,
        entry_points=made.entry_points,
        task=made.task,
        platform=runtime.platform,
        memory_bytes=sum(session.memory_bytes for session in sessions),
        feedback=made.feedback,
        first_state=made.first_state,
        open_session=lambda: _open_again(entry, version, runtime, source, files),
        threads=source.threads,
        source=source,
        files=files,
        tuned=tuned,
    )


def _tuned(version: VersionEntry, quarantine: Quarantine | None, tuning: TuningStore | None) -> Tuned:
    """What was measured of a version; the content's digest is known already where it was tried."""
    if tuning is None:
        return NOT_TUNED
    return tuning.find(version, lambda: quarantine.content(version) if quarantine else content_digest(version))


def _ignore_tuned(entry: ModelEntry, version: VersionEntry, tuned: Tuned, sessions: Sequence[Session]) -> None:
    log.warning(
        "what was tuned for %s, version %r, is ignored: it was measured with %s, and this is %s; %s",
        *(entry.name, version.name, tuned.runtime, sessions[0].runtime, AGAIN),
    )
    for session in sessions:
        session.close()


def _open_again(
    entry: ModelEntry, version: VersionEntry, runtime: Runtime, source: ModelSource, files: Stamp
) -> Session:
    """One more session of what was loaded, and of nothing that lies there by now.

    Raises:
        ApiError: MODEL_FAILED.
    """
    try:
        _refuse_changed(version, files)
        return runtime.open(source)
    except Exception as error:
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, str(error).strip()[:500])) from error


def _refuse_changed(version: VersionEntry, files: Stamp) -> None:
    """What was tried, or loaded, must be what lies there now."""
    if stamp(version_files(version)) != files:
        raise ModelLoadError("its files changed meanwhile; load the model again")


def _check_options(version: VersionEntry, known: frozenset[str]) -> None:
    unknown = sorted(set(version.options) - known)
    if unknown:
        raise ModelLoadError(
            f"model.toml: unknown key versions.{version.name}.{unknown[0]}; "
            f"a {version.kind.name} version knows {', '.join(sorted(known | {'file', 'evaluation', 'sha256'}))}"
        )


def _contained(path: Path, folder: Path) -> Path:
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise ModelLoadError(f"{path.name} is a link that leaves its folder; copy the file into it")
    return resolved


def _failed(entry: ModelEntry, version: VersionEntry, reason: str) -> str:
    return f"failed to load {entry.name!r} version {version.name!r}: {reason}"
