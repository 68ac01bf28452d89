"""A loaded version with its queue and sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.engine.scheduling.batching import RowBatcher, free_rows
from pocketserve.engine.scheduling.policy import BatchingAdvisor
from pocketserve.engine.scheduling.queue import ModelQueue, Scheduler

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.engine.lifecycle.sequences import SequenceTable

DEFAULT_SEQUENCES = 64
DEFAULT_OWN_SESSIONS = 4
"""Open sequences of models whose state is a few arrays, and of those where each needs a session of its own."""


def always() -> bool:
    """Return True: a server of one process is alone."""
    return True


class EngineOptions(NamedTuple):
    """The engine's settings; see the settings table.

    ``is_alone`` says whether every request reaches this process: elsewhere a sequence would miss steps.
    """

    memory_budget: int
    keep_alive: float
    threads: int
    queue_limit: int
    max_image_pixels: int
    batching: bool = True
    max_batch: int = 8
    is_alone: Callable[[], bool] = always


@dataclass(slots=True, eq=False, repr=False)
class ModelHandle:
    """A loaded version with its queue, held by requests."""

    model: LoadedModel
    queue: ModelQueue
    sequences: SequenceTable | None
    keep_alive: float
    last_used: float
    users: int = 0
    # By request template; see inference/compile.py.
    compiled: dict[object, Any] = field(default_factory=dict)
    retired: bool = False
    fingerprint: object = (
        None  # of the files that it was loaded from, see repository/files.py
    )
    outdated: bool = False  # a rescan found changed files; they will be reloaded

    @property
    def open_sequences(self) -> int:
        """Return the number of open sequences."""
        return len(self.sequences) if self.sequences is not None else 0

    @property
    def memory_bytes(self) -> int:
        """Return the estimated bytes of model and open sequences."""
        return self.model.memory_bytes + (
            self.sequences.memory_bytes if self.sequences is not None else 0
        )

    def close(self) -> None:
        """Close the sequences and the model."""
        if self.sequences is not None:
            self.sequences.close()
        self.model.close()


def open_handle(
    model: LoadedModel,
    options: EngineOptions,
    scheduler: Scheduler,
    clock: Callable[[], float],
) -> ModelHandle:
    """Create the queue of a newly loaded model."""
    manifest = model.entry.manifest
    queue_limit = manifest.queue_limit or options.queue_limit
    # A manifest that demands batching need not be shown that it pays.
    advisor = BatchingAdvisor() if manifest.batching is None else None
    queue = ModelQueue(
        model.sessions,
        queue_limit,
        clock,
        scheduler,
        batcher=_batcher(model, options),
        advisor=advisor,
    )
    keep_alive = (
        options.keep_alive if manifest.keep_alive is None else manifest.keep_alive
    )
    sequences = _sequences(model, queue_limit, queue, clock, options.is_alone)
    return ModelHandle(model, queue, sequences, keep_alive, clock())


def _batcher(model: LoadedModel, options: EngineOptions) -> RowBatcher | None:
    """Return the batcher of a model; None if batching is off or impossible."""
    manifest = model.entry.manifest
    enabled = options.batching if manifest.batching is None else manifest.batching
    maximum = manifest.max_batch or options.max_batch
    signatures = free_rows(model.entry_points)
    if (
        not enabled
        or maximum < 2
        or not signatures
        or model.feedback
        or model.resettable
    ):
        return None
    return RowBatcher(f"{model.entry.name}/{model.version.name}", signatures, maximum)


def _sequences(
    model: LoadedModel,
    queue_limit: int,
    queue: ModelQueue,
    clock: Callable[[], float],
    is_alone: Callable[[], bool],
) -> SequenceTable | None:
    has_state = model.feedback or model.resettable
    is_captioned = getattr(model.task, "captions", None) is not None
    if not has_state and not is_captioned:
        return None
    # late: few models keep state
    from pocketserve.engine.lifecycle.sequences import SequenceTable

    state = model.entry.manifest.state
    has_sessions = not model.feedback and not is_captioned
    maximum = state.max_sequences or (
        DEFAULT_OWN_SESSIONS if has_sessions else DEFAULT_SEQUENCES
    )
    loader = model.open_session if has_sessions else None
    return SequenceTable(
        maximum, state.max_idle, loader, queue_limit, clock, queue, is_alone
    )
