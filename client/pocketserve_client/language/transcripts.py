"""Transcripts of speech, segment by segment."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pocketserve_client.errors import NotOurServerError
from pocketserve_client.inputs import File, raw_body
from pocketserve_client.language.events import (
    ANSWER_TIMEOUT_S,
    AnswerStream,
    EventLines,
)
from pocketserve_client.transport import Request

if TYPE_CHECKING:
    from pocketserve_client.calls import RequestSender

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
_DELTA: Final = "transcript.text.delta"


class SpokenSegment(NamedTuple):
    """A piece of a transcript, with its place in seconds.

    The texts of all segments, joined, are the whole text.
    """

    text: str
    start: float
    end: float


class TranscriptStream(AnswerStream, Iterator[SpokenSegment]):
    """The segments of a transcript, as they come; a context that ends the answer.

    Attributes:
        language: code, once the answer has ended.
        duration: seconds of the sound, once the answer has ended.
    """

    def __init__(self, events: EventLines) -> None:
        super().__init__(events)
        self.language = ""
        self.duration = 0.0

    def __next__(self) -> SpokenSegment:
        while not self._has_ended:
            event = self._events.next()
            if event is None:
                break
            if event.get("type") == _DELTA:
                return _segment(event)
            self.language = str(event.get("language", ""))
            self.duration = float(event.get("duration", 0))
        self._has_ended = True
        raise StopIteration

    def text(self) -> str:
        """Return the rest of the text."""
        return "".join([segment.text for segment in self])


def start_transcript(
    sender: RequestSender,
    model: str,
    sound: File,
    fields: Mapping[str, Any],
    timeout: float | None,
) -> TranscriptStream:
    """Send a sound, and return its transcript as it comes.

    Args:
        fields: of the form; those that are None are left out. ``translate`` chooses
            the path.
    """
    content = raw_body(sound)
    values = dict(fields)
    path = TRANSLATIONS if values.pop("translate") else TRANSCRIPTIONS
    values |= {"model": model, "stream": "true"}
    # A random boundary is in no sound.
    boundary = secrets.token_hex(16)
    chunks = _form(values, content, boundary)
    request = Request(
        "POST",
        path,
        chunks,
        content_type=f"multipart/form-data; boundary={boundary}",
        idempotent=False,
    )
    seconds = ANSWER_TIMEOUT_S if timeout is None else timeout
    return TranscriptStream(EventLines(sender.stream(request.within(seconds))))


def _form(
    fields: Mapping[str, Any], content: bytes | memoryview, boundary: str
) -> list[bytes | memoryview]:
    """Return the parts of a form; the sound is not copied."""
    head = ""
    for name, value in fields.items():
        if value is None:
            continue
        head += f"--{boundary}\r\n"
        head += f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    head += f"--{boundary}\r\n"
    head += 'Content-Disposition: form-data; name="file"; filename="sound"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    return [head.encode(), content, f"\r\n--{boundary}--\r\n".encode()]


def _segment(event: Mapping[str, Any]) -> SpokenSegment:
    try:
        start, end = float(event["start"]), float(event["end"])
        return SpokenSegment(str(event["delta"]), start, end)
    except (KeyError, TypeError, ValueError):
        raise NotOurServerError("the server sent a segment without times") from None
