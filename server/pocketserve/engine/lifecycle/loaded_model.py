"""Builds a runnable model from a repository entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.files import check_digest
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
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.store import TrustStore
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.quarantine.quarantine import Quarantine


@dataclass(slots=True, eq=False, repr=False)
class LoadedModel:
    """A version in memory, not yet in anybody's hands."""

    entry: ModelEntry
    version: VersionEntry
    sessions: Sequence[Session]  # instances of the model, each for one thread at a time
    platform: str
    memory_bytes: int  # estimate over all sessions, and ``task_bytes``
    threads: int  # threads of one run
    source: ModelSource  # the source of the sessions
    snapshot: Snapshot | None  # the copy in which that lies; None once it is closed
    file_bytes: int  # size of the files
    # As in ``Setup``:
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]]
    task: Task
    feedback: Mapping[str, str]
    first_state: Mapping[str, Array]
    task_bytes: int
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    unknown_keys: Mapping[str, tuple[str, ...]]

    # Of the default entry point; set once, since requests read them.
    inputs: Bindings = field(init=False)
    outputs: Bindings = field(init=False)

    def __post_init__(self) -> None:
        self.inputs, self.outputs = self.entry_points[None]

    @property
    def shown_outputs(self) -> Bindings:
        """Return the outputs for descriptions.

        Unknown shapes are shown as the runs so far produced them.
        """
        bound = self.outputs
        learned: dict[str, TensorSpec] = {}
        for session in self.sessions:
            for spec in session.outputs:
                if not spec.open:
                    learned[spec.name] = spec
        specs = []
        for spec in bound.specs:
            other = learned.get(bound.by_name[spec.name][1])
            if spec.open and other is not None:
                spec = spec._replace(
                    datatype=other.datatype, shape=other.shape, open=False
                )
            specs.append(spec)
        return bound._replace(specs=tuple(specs))

    @property
    def resettable(self) -> bool:
        """Return whether sessions keep state between runs."""
        return isinstance(self.sessions[0], ResettableSession)

    @property
    def runtime(self) -> str:
        """Return the framework that runs it, with its version."""
        return self.sessions[0].runtime

    @property
    def optional_inputs(self) -> frozenset[str]:
        """Return the inputs that the server fills in.

        These are fixed inputs and state.
        """
        names = set()
        for spec in self.inputs.specs:
            _, session_name = self.inputs.by_name[spec.name]
            if session_name in self.first_state:
                names.add(spec.name)
        return frozenset(names)

    @property
    def fixed_threads(self) -> bool:
        """Return whether the number of threads has no effect."""
        return getattr(runtime_for(self.version.format), "fixed_threads", False)

    def open_session(self) -> Session:
        """Open a session for a sequence; the client closes it."""
        return self.open_with(self.threads)

    def open_with(self, threads: int) -> Session:
        """Open a session with some threads, of the loaded bytes.

        Raises MODEL_FAILED.
        """
        with _load_errors(self.entry, self.version):
            if self.snapshot is None:
                raise ModelLoadError("it was unloaded meanwhile")
            self.snapshot.check()
            try:
                return runtime_for(self.version.format).open(
                    self.source._replace(threads=threads)
                )
            except RuntimeMissingError as error:
                # The file existed when the model was loaded.
                raise ModelLoadError(str(error)) from error

    def reopen(self, threads: int) -> LoadedModel:
        """Return a copy with sessions for another number of threads.

        Raises MODEL_FAILED.
        """
        sessions = [self.open_with(threads) for _ in self.sessions]
        return dataclasses.replace(
            self,
            sessions=sessions,
            memory_bytes=sum(session.memory_bytes for session in sessions)
            + self.task_bytes,
            threads=threads,
            source=self.source._replace(threads=threads),
        )

    def close(self) -> None:
        """Close all sessions, and drop the files' copy.

        Sessions for another number of threads may still use it.
        """
        for session in self.sessions:
            session.close()
        self.sessions = ()
        self.snapshot = None


def load_model(
    entry: ModelEntry,
    version: VersionEntry,
    threads: int,
    max_image_pixels: int,
    quarantine: Quarantine | None,
    deadline: float,
    snapshots: SnapshotStore | None = None,
    trust: TrustStore | None = None,
    memory_budget: int = 0,
) -> LoadedModel:
    """Open a version's sessions and choose its task.

    Args:
        threads: threads of one run.
        quarantine: asked before the file is opened; None trusts every file.
        deadline: monotonic time by which a trial must have begun.
        snapshots: makes the copy that is opened; None has it among the system's temporary files.
        trust: which code may run; None trusts none.
        memory_budget: bytes that all models may take; 0 is no limit.

    Raises:
        ApiError: RUNTIME_MISSING or MODEL_FAILED, with the reason in words; MODEL_NOT_READY where there is no room.
    """
    with _load_errors(entry, version), ExitStack() as on_failure:
        _check_loadable(entry, version)
        snapshot = (snapshots or SnapshotStore()).take(version, entry.folder)
        on_failure.callback(snapshot.close)
        runtime = runtime_for(version.format)
        source = _source(
            entry, version, snapshot, threads, memory_budget, quarantine, trust
        )
        if quarantine is not None:
            quarantine.check(entry, version, source, deadline, snapshot.digest)
        else:
            check_digest(version, snapshot.digest)
        sessions = [runtime.open(source) for _ in range(entry.manifest.instances)]
        snapshot.check()
        setup = set_up(entry, version, sessions[0], max_image_pixels, source)
        memory_bytes = setup.task_bytes
        for session in sessions:
            memory_bytes += session.memory_bytes
        on_failure.pop_all()
        return LoadedModel(
            entry,
            version,
            sessions,
            runtime.platform,
            memory_bytes,
            threads,
            source,
            snapshot,
            snapshot.size,
            **setup._asdict(),
        )


def _source(
    entry: ModelEntry,
    version: VersionEntry,
    snapshot: Snapshot,
    threads: int,
    memory_budget: int,
    quarantine: Quarantine | None,
    trust: TrustStore | None,
) -> ModelSource:
    return ModelSource(
        path=snapshot.path,
        origin=version.path.resolve(),
        threads=threads,
        options=version.options,
        inputs=entry.manifest.inputs_of(version.name),
        outputs=entry.manifest.outputs,
        trusted=trust.check(entry, version) if trust is not None else frozenset(),
        sides=quarantine.sides(entry, version) if quarantine is not None else None,
        sections=entry.manifest.sections,
        memory_budget=memory_budget,
    )


@contextmanager
def _load_errors(entry: ModelEntry, version: VersionEntry) -> Iterator[None]:
    """Convert load errors to an ApiError that names the model."""
    try:
        yield
    except ApiError:
        raise
    except RuntimeMissingError as error:
        raise _load_error(
            ErrorCode.RUNTIME_MISSING, entry, version, str(error)
        ) from error
    except ModelLoadError as error:
        raise _load_error(ErrorCode.MODEL_FAILED, entry, version, str(error)) from error
    except Exception as error:  # frameworks raise anything on a bad file: MemoryError, UnicodeDecodeError, ...
        reason = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise _load_error(ErrorCode.MODEL_FAILED, entry, version, reason) from error


def _load_error(
    code: ErrorCode, entry: ModelEntry, version: VersionEntry, reason: str
) -> ApiError:
    reason = with_own_paths(reason, version)
    return ApiError(
        code, f"failed to load {entry.name!r} version {version.name!r}: {reason}"
    )


def _check_loadable(entry: ModelEntry, version: VersionEntry) -> None:
    if problem := version.problem or entry.problem:
        raise ModelLoadError(problem)
    if missing := missing_framework(version.format):
        raise RuntimeMissingError(missing)
    option_keys = runtime_for(version.format).option_keys
    for key in sorted(set(version.options) - option_keys):
        # late: only needed for a mistyped name
        from pocketserve.runtimes.engines import engine_note

        raise ModelLoadError(
            f"model.toml: unknown key versions.{version.name}.{key}; "
            f"a {version.format.name} version knows "
            f"{', '.join(sorted(option_keys | {'file', 'evaluation', 'input_shapes', 'provenance', 'sha256'}))}"
            f"{engine_note(key, version.options[key])}"
        )
