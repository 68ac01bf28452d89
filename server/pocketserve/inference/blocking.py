"""Wait for a call on the calling thread, in commands and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pocketserve.engine.scheduling.entries import Job
from pocketserve.inference.call import CallerExecutor, Done, InferenceCall


def submit_and_wait(
    submit: Callable[[InferenceCall, Done], Job | None], call: InferenceCall
) -> Any:
    """Submit a call and return its result.

    Args:
        submit: :meth:`Service.submit`.

    Raises:
        ApiError: the call failed.
    """
    executor = CallerExecutor()
    call.execute = executor.execute
    outcome = executor.wait(submit(call, executor.done))
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
