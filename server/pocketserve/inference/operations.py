"""The interface of the operations that a call runs, and rules of long ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import Arrays
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep
    from pocketserve.engine.scheduling.options import RequestOptions


class Operation(Protocol):
    """A checked request: how to run the model and how to respond.

    Attributes:
        signature: the entry point; None for the default.
        rows: batch rows in the request.
        executions: runs of the model, if the queue cannot count them; else 0.
        prepare_ns: the part of its run that prepared the input.
        timed: the result takes the request's timing.
        step: the request's step of a sequence, if any.
        sequence: the open sequence, set before the run.
    """

    signature: str | None
    rows: int
    executions: int
    prepare_ns: int
    step: SequenceStep | None
    sequence: OpenSequence | None

    @property
    def timed(self) -> bool:
        """Return whether the result takes the request's timing."""
        ...

    def run(self, session: Session, arrays: Arrays | None) -> Any:
        """Run the model on batchable inputs, or on the operation's."""
        ...

    def respond(self, result: Any) -> Any:
        """Return the response to a run's result."""
        ...


def answer_end(limit_s: float, requested: float | None) -> float:
    """Return the monotonic time by which an answer that begins now must be complete.

    Args:
        limit_s: seconds that the model allows.
        requested: monotonic time that the client asks for; None if it names none.
    """
    end = time.monotonic() + limit_s
    return end if requested is None else min(end, requested)


def check_client(options: RequestOptions, on_wait: Callable[[], None] | None) -> None:
    """Raise if the client has given up or gone."""
    if options.cancellation is not None:
        options.cancellation.check()
    if on_wait is not None:
        on_wait()


def wrong_model(handle: ModelHandle, kind: str) -> ApiError:
    """Return the error about a model of another kind, such as a ``speech model``."""
    model = handle.model
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"{model.entry.name!r} is not a {kind}: its task is {model.task.name}; GET"
        " /v2/models lists all models",
        field="model",
    )
