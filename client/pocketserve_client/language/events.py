"""The server-sent events of a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Self

from pocketserve_client.errors import (
    ConnectionLostError,
    NotOurServerError,
    ServerError,
)
from pocketserve_client.language.streams import AnswerLines

ANSWER_TIMEOUT_S: Final = 600.0
"""Seconds for an answer: language and speech models take their time."""

_PREFIX: Final = b"data: "
_DONE: Final = b"[DONE]"


class EventLines:
    """Reads the events of an answer."""

    def __init__(self, lines: AnswerLines) -> None:
        self._lines = lines
        self._is_closed = False

    def next(self) -> Mapping[str, Any] | None:
        """Return the next event; None at the end, or after :meth:`close`.

        Raises:
            ServerError: the model failed after its first piece.
            ConnectionLostError: the answer is incomplete.
        """
        for line in self._lines:
            if not line.startswith(_PREFIX):
                continue
            data = line[len(_PREFIX) :].strip()
            if data == _DONE:
                self._is_closed = True
                return None
            event = _event(data)
            if "error" in event:
                raise _fault(event["error"])
            return event
        if not self._is_closed:
            raise ConnectionLostError("the server ended in the middle of an answer")
        return None

    def close(self) -> None:
        """End the answer; the model stops. Any thread may call this."""
        self._is_closed = True
        self._lines.close()


class AnswerStream:
    """A streamed answer; a context that ends it."""

    def __init__(self, events: EventLines) -> None:
        self._events = events
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the answer; the model stops. Any thread may call this."""
        self._has_ended = True
        self._events.close()


def _fault(error: Any) -> ServerError:
    """Return the error that ended an answer after its first piece."""
    details = error if isinstance(error, dict) else {"message": error}
    code = str(details.get("code") or "").upper()
    return ServerError(500, code, str(details.get("message")))


def _event(data: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise NotOurServerError("the server sent an event that is not a JSON object")
    return event
