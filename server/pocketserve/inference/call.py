"""A request to a model, as every transport and every protocol hands it to :meth:`Service.submit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pocketserve.engine.scheduling.entries import Execute
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Hints
from pocketserve_wire import ApiError
from pocketserve_wire.oip import InferRequest, RequestTemplate


class TensorPayload(NamedTuple):
    """Decoded tensors; the result is an :class:`~pocketserve_wire.oip.InferResponse`.

    Attributes:
        row_by_row: let a model that is fixed to one row answer several, one run after the other.
    """

    request: InferRequest
    row_by_row: bool = False


class EncodedPayload(NamedTuple):
    """A body whose JSON part is known; the result is an :class:`~pocketserve_wire.oip.EncodedBody`.

    Attributes:
        template: of this body; it asks for raw tensors only.
    """

    template: RequestTemplate
    body: memoryview


class RawPayload(NamedTuple):
    """Raw input for the model's task; the result is a :class:`Prediction`."""

    body: memoryview
    options: AnswerOptions
    hints: Hints = NO_HINTS


Payload = TensorPayload | EncodedPayload | RawPayload


class Prediction:
    """An answer to raw input. The task's own steps count as input and output in the timing.

    Attributes:
        more: what the task answers beside the predictions, by name.
        picture: the input with the answer drawn on it, a PNG file; None unless it was asked for.
    """

    __slots__ = ("model", "more", "picture", "predictions", "task", "timing", "version")

    def __init__(
        self, model: str, version: str, task: str, predictions: Answer, more: Mapping[str, Any], picture: bytes | None
    ) -> None:
        self.model = model
        self.version = version
        self.task = task
        self.predictions = predictions
        self.more = more
        self.picture = picture
        self.timing = Timing(0, 0, 0, 0)


class InferenceCall:
    """A request for a model.

    Args:
        version: None is the model's default.
        options: deadline, priority, stream and cancellation.
        execute: has a thread of the transport run a job; set before the call is submitted.
        respond: makes what the transport sends from the result; None where the caller takes the result itself.
        explain: adds to an error of the model's task what this protocol knows of the request.
        keeps_thread: see :class:`~pocketserve.engine.scheduling.entries.QueueEntry`.
    """

    __slots__ = ("execute", "explain", "keeps_thread", "model", "options", "payload", "respond", "version")

    def __init__(
        self,
        model: str,
        version: str | None,
        payload: Payload,
        options: RequestOptions,
        execute: Execute | None = None,
        respond: Callable[[Any], Any] | None = None,
        explain: Callable[[ApiError], ApiError] | None = None,
        keeps_thread: bool = False,
    ) -> None:
        self.model = model
        self.version = version
        self.payload = payload
        self.options = options
        self.execute = execute
        self.respond = respond
        self.explain = explain
        self.keeps_thread = keeps_thread


Done = Callable[[Any], None]
"""Take how a call ended: the result, or the exception in its place. It is called once, on any thread; never raises."""
