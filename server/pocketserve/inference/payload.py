"""Payloads of requests, and the answer to raw input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pocketserve.engine.statistics import Timing
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Hints, Task
from pocketserve_wire.oip import InferRequest, RequestTemplate

if TYPE_CHECKING:
    from pocketserve.tasks.speech.transcribe import SpeechSegment

URLENCODED: Final = "application/x-www-form-urlencoded"
BOM: Final = b"\xef\xbb\xbf"
NO_TIMING: Final = Timing(0, 0, 0, 0)


class TensorPayload(NamedTuple):
    """Decoded tensors; the result is an :class:`~pocketserve_wire.oip.InferResponse`.

    Attributes:
        row_by_row: let a model that is fixed to one row answer several, one run after the other.
    """

    request: InferRequest
    row_by_row: bool = False


class EncodedPayload(NamedTuple):
    """A body whose JSON part is known.

    The result is an :class:`~pocketserve_wire.oip.EncodedBody`.

    Attributes:
        template: of this body; it asks for raw tensors only.
    """

    template: RequestTemplate
    body: memoryview


class RawInput(NamedTuple):
    """An input of a task.

    Attributes:
        tensors: the contents of a form by the names of the model's inputs; then ``body`` is empty.
    """

    body: memoryview
    hints: Hints
    tensors: Mapping[str, memoryview] = {}


class FormPart(NamedTuple):
    """A form's field or file, or one of several raw inputs.

    Attributes:
        name: empty where the protocol has none.
        is_unfilled: a browser's file field without a file.
    """

    name: str
    content: memoryview
    content_type: str = ""
    is_file: bool = True
    is_unfilled: bool = False


class RawPayload(NamedTuple):
    """Raw input for the model's task.

    The result is a :class:`Prediction`.

    Attributes:
        parameters: the protocol's own, of which those of a sequence count.
        parts: of a form, or several inputs; then ``body`` is empty.
    """

    body: memoryview
    options: AnswerOptions
    hints: Hints = NO_HINTS
    parameters: Mapping[str, Any] = {}
    parts: Sequence[FormPart] = ()


class GenerationPayload(NamedTuple):
    """A request to a language model; the result is a
    :class:`~pocketserve.inference.generation.Generation`.

    Attributes:
        path: of the engine's interface.
        body: the checked request, in the engine's form.
        on_event: takes each part of the answer as soon as it is there, on the thread
            that runs the model; it may raise ``ApiError`` to end the answer.
        deadline: monotonic time by which the client wants the whole answer; None if it
            names none. The model's own limit counts in any case.
        on_wait: called on that thread every second without a part; may raise, too.
    """

    path: str
    body: Mapping[str, Any]
    on_event: Callable[[Mapping[str, Any]], None] | None = None
    deadline: float | None = None
    on_wait: Callable[[], None] | None = None


class TranscriptionPayload(NamedTuple):
    """A sound for a speech model; the result is a
    :class:`~pocketserve.inference.speech.transcription.TimedTranscript`.

    Attributes:
        raw: the sound, with the options as parameters.
        on_segment: takes each segment as soon as it is there, on the thread that runs
            the model; it may raise ``ApiError`` to end the request.
        deadline: monotonic time by which the client wants the whole transcript; None if
            it names none. The model's own limit counts in any case.
        on_wait: called on that thread before each token; may raise, too.
    """

    raw: RawPayload
    on_segment: Callable[[SpeechSegment], None] | None = None
    deadline: float | None = None
    on_wait: Callable[[], None] | None = None


Payload = (
    TensorPayload
    | EncodedPayload
    | RawPayload
    | GenerationPayload
    | TranscriptionPayload
)
DECODED: Final = (RawPayload, TranscriptionPayload)
"""Payloads whose decoding may take long."""


def media_of(task: Task) -> str:
    """Return the media that a task takes: ``picture``, ``sound`` or none."""
    media: str = getattr(task, "media", "")
    return media


@dataclass(slots=True, eq=False, repr=False)
class Prediction:
    """An answer to raw input.

    Its timing counts the task's own steps as input and output.

    Attributes:
        more: further parts of the task's answer, by name.
        picture: the annotated input, a PNG or JPEG file, if it was requested.
        assumed: settings that no file of the model states, such as ``pixels 0..1``.
        per_input: the predictions of each input, where a request may have several.
    """

    model: str
    version: str
    task: str
    predictions: Answer
    more: Mapping[str, Any]
    picture: bytes | None
    assumed: tuple[str, ...]
    per_input: Sequence[Answer]
    timing: Timing = NO_TIMING
