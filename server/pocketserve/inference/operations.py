"""The interface of the operations that a call runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import Arrays

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep


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
