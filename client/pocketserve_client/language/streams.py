"""Answers that come line by line, over either transport."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from pocketserve_client.bounded import answer_too_large
from pocketserve_client.errors import ServerUnreachableError
from pocketserve_client.transport import LEAST_S, Answer

if TYPE_CHECKING:
    from pocketserve_client.connection import PendingAnswer

SUCCESS: Final = 200
MAX_LINE_BYTES: Final = 1 << 20
"""Bytes of a line of a streamed answer."""


class LineStream(Protocol):
    """The lines of an answer; one with another status than 200 comes whole, as the
    last item."""

    def __next__(self) -> bytes | Answer:
        """Return the next line, with its line break."""
        ...

    def close(self) -> None:
        """End the answer. Any thread may call this; one that waits fails then."""
        ...


class SocketStream:
    """The lines of an answer whose parts come in PART frames.

    Args:
        deadline: monotonic time by which the whole answer must have come.
    """

    def __init__(self, pending: PendingAnswer, deadline: float) -> None:
        self._pending = pending
        self._deadline = deadline
        self._lines = self._read()

    def __next__(self) -> bytes | Answer:
        return next(self._lines)

    def close(self) -> None:
        """End the answer."""
        self._pending.abandon()

    def _read(self) -> Iterator[bytes | Answer]:
        rest = b""
        while True:
            seconds = max(LEAST_S, self._deadline - time.monotonic())
            part = self._pending.next_part(seconds)
            if part is None:
                break
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line + b"\n"
            if len(rest) > MAX_LINE_BYTES:
                raise answer_too_large()
        answer = self._pending.answer
        assert answer is not None
        if answer.status != SUCCESS:
            yield answer
            return
        yield from (rest + answer.body).splitlines(keepends=True)


class AnswerLines(Iterator[bytes]):
    """The lines of a successful answer. The request is sent with the first one.

    Args:
        open_stream: sends the request.
        check: raises the error of an answer with another status than 200.
    """

    def __init__(
        self, open_stream: Callable[[], LineStream], check: Callable[[Answer], object]
    ) -> None:
        self._open_stream = open_stream
        self._check = check
        self._lock = threading.Lock()
        self._stream: LineStream | None = None
        self._is_closed = False

    def __next__(self) -> bytes:
        if self._is_closed:
            raise StopIteration
        if self._stream is None:
            self._open()
        assert self._stream is not None
        try:
            line = next(self._stream)
        except ServerUnreachableError:
            if self._is_closed:
                raise StopIteration from None
            raise
        if isinstance(line, Answer):
            self._check(line)
            raise StopIteration
        return line

    def _open(self) -> None:
        stream = self._open_stream()
        with self._lock:
            self._stream = stream
            is_closed = self._is_closed
        if is_closed:  # meanwhile, by another thread
            stream.close()

    def close(self) -> None:
        """End the answer. Any thread may call this; one that waits stops then."""
        with self._lock:
            self._is_closed = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()
