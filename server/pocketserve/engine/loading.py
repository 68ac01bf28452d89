"""From a repository entry to a model that can run: sessions, bindings, task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketserve.engine.bindings import Bindings, bind
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Session
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tasks.base import Task
from pocketserve.tasks.selection import select_task
from pocketserve_wire import ApiError, ErrorCode


@dataclass(slots=True)
class LoadedModel:
    """A version in memory, not yet in anybody's hands.

    Attributes:
        sessions: instances of the model, each for one thread at a time.
        entry_points: bindings of inputs and outputs by signature name; None is the default entry point.
        memory_bytes: estimate over all sessions.
    """

    entry: ModelEntry
    version: VersionEntry
    sessions: Sequence[Session]
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]]
    task: Task
    platform: str
    memory_bytes: int = field(default=0)

    @property
    def inputs(self) -> Bindings:
        """Inputs of the default entry point."""
        return self.entry_points[None][0]

    @property
    def outputs(self) -> Bindings:
        """Outputs of the default entry point."""
        return self.entry_points[None][1]

    @property
    def runtime(self) -> str:
        """The framework that runs it, with its version."""
        return self.sessions[0].runtime

    def close(self) -> None:
        """Let go of every session."""
        for session in self.sessions:
            session.close()
        self.sessions = ()


def load_model(entry: ModelEntry, version: VersionEntry, threads: int, max_image_pixels: int) -> LoadedModel:
    """Open a version's sessions and choose its task.

    Raises:
        ApiError: RUNTIME_MISSING or MODEL_FAILED, with the reason in words.
    """
    try:
        return _load(entry, version, threads, max_image_pixels)
    except RuntimeMissingError as error:
        raise ApiError(ErrorCode.RUNTIME_MISSING, _failed(entry, version, str(error))) from error
    except ModelLoadError as error:
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, str(error))) from error
    except Exception as error:  # frameworks raise anything on a bad file: MemoryError, UnicodeDecodeError, ...
        reason = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(ErrorCode.MODEL_FAILED, _failed(entry, version, reason)) from error


def file_bytes(version: VersionEntry) -> int:
    """Size of a version's files: the estimate of its memory before it is loaded."""
    total = 0
    weights = version.options.get("weights")
    for path in (version.path, version.path.parent / weights if isinstance(weights, str) else None):
        try:
            total += path.stat().st_size if path is not None else 0
        except OSError:
            continue  # opening it will say so
    return total


def _load(entry: ModelEntry, version: VersionEntry, threads: int, max_image_pixels: int) -> LoadedModel:
    if version.problem is not None:
        raise ModelLoadError(version.problem)
    runtime = runtime_for(version.kind)
    _check_options(version, runtime.option_keys)
    manifest = entry.manifest
    source = ModelSource(
        path=_contained(version.path, entry.folder),
        threads=manifest.threads or threads,
        options=version.options,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
    )
    sessions = [runtime.open(source) for _ in range(manifest.instances)]
    first = sessions[0]
    points: dict[str | None, tuple[Bindings, Bindings]] = {
        None: (bind(first.inputs, manifest.inputs, "input"), bind(first.outputs, manifest.outputs, "output"))
    }
    for name, signature in first.signatures.items():
        points[name] = (bind(signature.inputs, (), "input"), bind(signature.outputs, (), "output"))
    task = select_task(entry, version, points[None][0].specs, points[None][1].specs, max_image_pixels)
    return LoadedModel(
        entry,
        version,
        sessions,
        points,
        task,
        runtime.platform,
        sum(session.memory_bytes for session in sessions),
    )


def _check_options(version: VersionEntry, known: frozenset[str]) -> None:
    unknown = sorted(set(version.options) - known)
    if unknown:
        raise ModelLoadError(
            f"model.toml: unknown key versions.{version.name}.{unknown[0]}; "
            f"a {version.kind.name} version knows {', '.join(sorted(known | {'file', 'evaluation'}))}"
        )


def _contained(path: Path, folder: Path) -> Path:
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise ModelLoadError(f"{path.name} is a link that leaves its folder; copy the file into it")
    return resolved


def _failed(entry: ModelEntry, version: VersionEntry, reason: str) -> str:
    return f"failed to load {entry.name!r} version {version.name!r}: {reason}"
