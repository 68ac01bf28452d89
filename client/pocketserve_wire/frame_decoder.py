"""Decode the bytes of a connection to frames, without any I/O.

The owner receives into :meth:`FrameDecoder.buffer`, reports the number of bytes and
takes the frames out. Large bodies are received into their final memory, so nothing is
copied twice. Memory grows with the bytes received, not with the announced length.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

from .errors import ConnectionFault, ConnectionFaultError, HttpPeerError
from .frames import (
    FIRST_SKIPPED_TYPE,
    HEADER_BYTES,
    MARK,
    MAX_HANDSHAKE_BYTES,
    Frame,
    FrameType,
    Header,
    frame_too_large,
    parse_ext,
    parse_header,
)
from .limits import FIRST_BODY_BYTES, grow

BUFFER_BYTES: Final = 16_384
"""Size of the receive buffer. At most this much of a large frame is copied."""

_HTTP_METHODS = tuple(
    f"{name} ".encode()
    for name in (
        "GET",
        "POST",
        "PUT",
        "HEAD",
        "DELETE",
        "OPTIONS",
        "PATCH",
        "CONNECT",
        "TRACE",
    )
)


class Role(enum.Enum):
    """A side of a connection."""

    SERVER = 1
    CLIENT = 2


class HandshakeState(enum.Enum):
    """Progress of the handshake.

    HELLO is answered by CHALLENGE, AUTH by READY; then requests may follow.
    """

    HELLO = 1
    AUTH = 2
    READY = 3


ALLOWED: Final[Mapping[tuple[Role, HandshakeState], frozenset[FrameType]]] = {
    (Role.SERVER, HandshakeState.HELLO): frozenset({FrameType.HELLO, FrameType.ERROR}),
    (Role.SERVER, HandshakeState.AUTH): frozenset({FrameType.AUTH, FrameType.ERROR}),
    (Role.SERVER, HandshakeState.READY): frozenset(
        {
            FrameType.REQUEST,
            FrameType.CANCEL,
            FrameType.PING,
            FrameType.PONG,
            FrameType.ERROR,
        }
    ),
    (Role.CLIENT, HandshakeState.HELLO): frozenset(
        {FrameType.CHALLENGE, FrameType.ERROR}
    ),
    (Role.CLIENT, HandshakeState.AUTH): frozenset({FrameType.READY, FrameType.ERROR}),
    (Role.CLIENT, HandshakeState.READY): frozenset(
        {
            FrameType.RESPONSE,
            FrameType.PART,
            FrameType.PING,
            FrameType.PONG,
            FrameType.GOAWAY,
            FrameType.ERROR,
        }
    ),
}
"""Frames that each side may receive in each state, in PROTOCOL.md's order."""

_REQUEST: Final = int(FrameType.REQUEST)
# Plain numbers, because a header contains plain numbers.
_WITH_BODY: Final = frozenset({_REQUEST, int(FrameType.RESPONSE), int(FrameType.PART)})
ALIGNMENT: Final = 8
"""Bodies start at a multiple of this in memory, and so do the tensors in them."""

_NO_BYTES: Final = bytearray()


class FrameDecoder:
    """The receiving half of a connection. Not thread-safe: one reader at a time.

    Attributes:
        frames: number of complete frames, including skipped ones.
        reuse: receive the next long body of the same length into the memory of the last
            one, unless a memoryview of it still exists. Recently used memory is in the
            processor's cache and need not be zeroed.
        in_body: whether the last :meth:`buffer` is part of a body. It then ends where
            the frame ends, or where the memory allocated so far ends.

    Args:
        allowed: frame types that the peer may send now, a set of :data:`ALLOWED`. Set
            :attr:`allowed` when the connection's state changes, before the next frame.
        max_body: size limit of a REQUEST, RESPONSE or PART body, else FRAME_TOO_LARGE.
        admit: decides from a checked header whether to keep such a body. Other bodies
            are read and dropped; their frames have ``discarded`` set.
        listens: this side is a server, whose clients may speak HTTP by mistake.
    """

    def __init__(
        self,
        allowed: frozenset[FrameType],
        max_body: int,
        admit: Callable[[Header], bool] | None = None,
        *,
        listens: bool = False,
    ) -> None:
        self.allowed = allowed
        self._last_request_id = 0
        self.frames = 0
        self.in_body = False
        self.reuse = False
        self.admit = admit
        self._max_body = max_body
        self._listens = listens
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._header: Header | None = None
        self._payload = _NO_BYTES
        self._last: bytearray | None = None
        self._target = b""
        self._expected = self._filled = 0
        self._padding = 0
        self._discarding = 0
        self._room: memoryview | None = None

    @property
    def mid_frame(self) -> bool:
        """Return whether an incomplete frame is buffered."""
        return self._header is not None or self._start != self._end

    @property
    def buffered(self) -> bool:
        """Return whether bytes are buffered that have not been decoded yet."""
        return self._start != self._end

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes; valid until :meth:`received`.

        It is never empty after :meth:`next` returned None.
        """
        if self._header is not None and not self._discarding:
            if len(self._payload) == self._filled:
                grow(self._payload, self._expected)
            self.in_body = True
            self._room = memoryview(self._payload)[self._filled :]
            return self._room
        self.in_body = False
        if self._start == self._end:
            self._start = self._end = 0
            return self._view[:]  # a slice, because the reader may release it
        if self._end == BUFFER_BYTES:
            rest = self._end - self._start
            self._view[:rest] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Report that ``count`` bytes were written to :meth:`buffer`."""
        if not self.in_body:
            self._end += count
            return
        self._filled += count
        if self._room is not None:
            self._room.release()  # a bytearray cannot grow while it is exported
            self._room = None

    def drop(self) -> None:
        """Free all buffers and stop decoding. Call it from the reading thread only."""
        self.admit = None
        self._header = self._room = self._last = None
        self._payload = _NO_BYTES
        self._start = self._end = self._expected = self._filled = self._discarding = 0

    def next(self) -> Frame | None:
        """Return the next complete frame, or None if more bytes are needed.

        Unknown optional frames are skipped.

        Raises:
            ConnectionFaultError: the peer broke the protocol; discard the decoder.
        """
        while True:
            if self._header is None and not self._begin():
                return None
            if self._discarding:
                count = min(self._discarding, self._end - self._start)
                self._start += count
                self._discarding -= count
                if self._discarding:
                    return None
            elif self._filled < self._expected:
                return None
            frame = self._finish()
            if frame is not None:
                return frame

    def _begin(self) -> bool:
        """Parse the next header, if complete, and start its payload."""
        have = self._end - self._start
        if have < HEADER_BYTES:
            if have:
                self._check_first_bytes(have)
            return False
        try:
            header = parse_header(self._buffer, self._start)
        except ConnectionFaultError:
            self._check_first_bytes(have)  # recognizes HTTP clients
            raise
        self._check_expected(header)
        self._listens = False
        self._start += HEADER_BYTES
        self._header = header
        _, _, _, target_length, ext_length, _, body_length = header
        if self._keeps(header):
            self._start_payload(target_length + ext_length, body_length)
        else:
            self._discarding = target_length + ext_length + body_length
            self._expected = self._filled = 0
        return True

    def _keeps(self, header: Header) -> bool:
        """Return whether to keep a frame's payload."""
        kind = header[0]
        if kind >= FIRST_SKIPPED_TYPE:
            return False
        return self.admit is None or kind not in _WITH_BODY or self.admit(header)

    def _start_payload(self, front: int, body: int) -> None:
        """Move the received part of the payload to memory of its own.

        Args:
            front: bytes of target and extensions, in front of the body.
            body: bytes of the body.
        """
        # The header's last bytes stay in front as padding, so that the body is aligned.
        self._padding = padding = -front % ALIGNMENT
        self._expected = expected = padding + front + body
        first = self._start - padding
        have = self._end - first
        if have >= expected:
            self._payload = self._buffer[first : first + expected]
            self._filled = expected
            self._start = first + expected
            return
        memory = self._reusable(expected)
        if memory is None:
            memory = bytearray(min(expected, FIRST_BODY_BYTES))
        self._payload = memory
        with memoryview(self._payload) as payload:
            payload[:have] = self._view[first : self._end]
        self._filled = have
        self._start = self._end

    def _reusable(self, size: int) -> bytearray | None:
        """Return the last long body's memory if it has this size and no views."""
        last, self._last = self._last, None
        if last is None or len(last) != size:
            return None
        try:
            last.append(last.pop())  # raises BufferError while a view exists
        except BufferError:
            return None
        return last

    def rest(self) -> None:
        """Free cached memory. Call it from the reading thread only."""
        self._last = None

    def _check_first_bytes(self, have: int) -> None:
        """Raise if the first bytes of a frame belong to another protocol."""
        first = bytes(self._view[self._start : self._start + min(have, 8)])
        if MARK.startswith(first[:2]):
            return
        if self._listens:
            if any(first.startswith(method) for method in _HTTP_METHODS):
                raise HttpPeerError
            if any(method.startswith(first) for method in _HTTP_METHODS):
                return
        raise ConnectionFaultError(
            ConnectionFault.BAD_MARK, "a frame must start with the bytes 4f 49"
        )

    @property
    def _in_handshake(self) -> bool:
        return FrameType.PING not in self.allowed  # allowed on both sides from READY on

    def _check_expected(self, header: Header) -> None:
        """Raise if the peer may not send this frame in the current state."""
        kind = header[0]
        if kind not in self.allowed:
            self._reject_unless_skipped(kind)
        elif kind in _WITH_BODY:
            self._check_body(header)
        elif self._in_handshake:
            _check_handshake_frame(header)

    def _reject_unless_skipped(self, kind: int) -> None:
        if kind < FIRST_SKIPPED_TYPE:
            raise _unexpected(f"{FrameType(kind).name} is not allowed here")
        if self._in_handshake:
            raise _unexpected(f"frame type 0x{kind:02x} is not allowed before READY")

    def _check_body(self, header: Header) -> None:
        """Check request id and length of a REQUEST, RESPONSE or PART."""
        kind, request_id, _, _, _, _, body_length = header
        if kind == _REQUEST:
            if request_id <= self._last_request_id:
                last = self._last_request_id
                raise ConnectionFaultError(
                    ConnectionFault.BAD_REQUEST_ID,
                    f"request_id {request_id} follows {last}; ids must increase",
                )
            self._last_request_id = request_id
        if body_length > self._max_body:
            raise frame_too_large(f"body_len {body_length} exceeds {self._max_body}")

    def _finish(self) -> Frame | None:
        header, self._header = self._header, None
        self.frames += 1
        assert header is not None
        kind, request_id, arg, target_length, ext_length, json_length, body_length = (
            header
        )
        if kind >= FIRST_SKIPPED_TYPE:
            return None
        if not self._expected and (target_length or ext_length or body_length):
            return Frame(kind, request_id, arg, json_length=json_length, discarded=True)
        if self.reuse and BUFFER_BYTES < self._expected <= FIRST_BODY_BYTES:
            self._last = self._payload
        memory, self._payload = self._payload, _NO_BYTES
        ext_start = self._padding + target_length
        body_start = ext_start + ext_length
        target = self._target
        if len(target) != target_length or not memory.startswith(target, self._padding):
            # Peers repeat their targets. Reusing the object keeps its cached hash.
            target = self._target = bytes(memory[self._padding : ext_start])
        payload = memoryview(memory)
        ext = parse_ext(payload[ext_start:body_start]) if ext_length else {}
        return Frame(
            kind, request_id, arg, target, ext, json_length, payload[body_start:]
        )


def _check_handshake_frame(header: Header) -> None:
    if header.ext_length:
        raise ConnectionFaultError(
            ConnectionFault.BAD_FRAME, "ext_len must be 0 before READY"
        )
    if header.body_length > MAX_HANDSHAKE_BYTES - HEADER_BYTES:
        raise frame_too_large(
            f"frames before READY may have {MAX_HANDSHAKE_BYTES} bytes at most"
        )


def _unexpected(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.UNEXPECTED_FRAME, message)
