"""A thread that waits for the end of its request, and runs the model itself when it may."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pocketserve.engine.scheduling.entries import Job

if TYPE_CHECKING:
    from pocketserve.inference.call import Done, InferenceCall


class CallerExecutor:
    """Lend the calling thread to one request: :attr:`execute` and :meth:`done` are for its call.

    The engine ends every request that waits at its deadline, so the wait has an end.
    """

    __slots__ = ("_jobs", "_outcome", "execute")

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._outcome: list[Any] = []
        self.execute = self._jobs.put

    def done(self, outcome: Any) -> None:
        """Take how the request ended."""
        self._outcome.append(outcome)
        self._jobs.put(None)

    def wait(self, job: Job | None) -> Any:
        """Run this job, and those that follow, until the request has ended; return its outcome."""
        while not self._outcome:
            while job is not None:
                job = job()
            if not self._outcome:
                job = self._jobs.get()
        return self._outcome.pop()


def submit_and_wait(
    submit: Callable[[InferenceCall, Done], Job | None], call: InferenceCall
) -> Any:
    """Answer one request on this thread, for commands and tests.

    Args:
        submit: :meth:`Service.submit`.

    Raises:
        ApiError: for every fault of the request, the model or the server.
    """
    executor = CallerExecutor()
    call.execute = executor.execute
    outcome = executor.wait(submit(call, executor.done))
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
