"""Queue arbitrary functions, and send tensor requests to a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pocketserve.api import oip
from pocketserve.api.messages import ApiRequest, ApiResponse, Handler
from pocketserve.engine.scheduling.entries import Execute, QueueEntry
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.inference.blocking import CallerExecutor, submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import TensorPayload
from pocketserve.service import Service
from pocketserve_wire.oip import InferRequest, InferResponse


class FunctionEntry(QueueEntry):
    """A request that runs ``function`` on its session.

    Attributes:
        outcome: the function's result, or the exception in its place; empty before the end.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        options: RequestOptions,
        execute: Execute,
        ended: Callable[[Any], None] = lambda outcome: None,
        *,
        keeps_thread: bool = False,
    ) -> None:
        super().__init__(options, execute, keeps_thread=keeps_thread)
        self.function = function
        self.ended = ended
        self.arrays = getattr(function, "arrays", None)
        self.signature = getattr(function, "signature", None)
        self.outcome: list[Any] = []

    @property
    def result(self) -> Any:
        """Return the function's result, or raise the exception that ended the request."""
        [outcome] = self.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def work(self, session: Any) -> Any:
        """Call the function."""
        return self.function(session)

    def end(self, result: Any) -> None:
        """Store the result."""
        self.outcome.append(result)
        self.ended(result)


def run(
    queue: ModelQueue, function: Callable[[Any], Any], options: RequestOptions
) -> FunctionEntry:
    """Run a function on a queue's session; return the finished request.

    It runs on this thread or while this thread waits.

    Raises:
        ApiError: it was not run.
    """
    waiter = CallerExecutor()
    entry = FunctionEntry(function, options, waiter.execute, waiter.done)
    outcome = waiter.wait(queue.submit(entry))
    if isinstance(outcome, BaseException):
        raise outcome
    return entry


def infer(
    service: Service,
    name: str,
    version: str | None,
    request: InferRequest,
    *,
    row_by_row: bool = False,
) -> InferResponse:
    """Answer tensors on this thread.

    Raises:
        ApiError: there is no answer.
    """
    options = service.request_options(request.parameters)
    response: InferResponse = submit_and_wait(
        service.submit,
        InferenceCall(name, version, TensorPayload(request, row_by_row), options),
    )
    return response


def respond(
    service: Service, request: ApiRequest, handler: Handler = oip.infer
) -> ApiResponse:
    """Answer a request on this thread, by the Open Inference Protocol or another
    handler.

    Raises:
        ApiError: there is no answer.
    """
    call = handler(service, request)
    assert isinstance(call, InferenceCall)
    assert call.respond is not None
    response: ApiResponse = call.respond(submit_and_wait(service.submit, call))
    return response
