"""Bytes of a connection to frames, without touching the connection.

The owner receives into :meth:`FrameDecoder.buffer`, says how much came, and takes the frames out. Large bodies are
received where they stay: nothing is copied twice. Memory grows with what has come, never with what was announced.
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
"""Small frames are received whole. Of a large one no more than this is copied before it is where it stays."""

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
    """Progress of the handshake: HELLO and its CHALLENGE, AUTH and its READY, then requests."""

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
            FrameType.PING,
            FrameType.PONG,
            FrameType.GOAWAY,
            FrameType.ERROR,
        }
    ),
}
"""Frames that each side may receive in each state; in the order of android_bridge/PROTOCOL.md."""

_REQUEST: Final = int(FrameType.REQUEST)
_WITH_BODY: Final = frozenset(
    {_REQUEST, int(FrameType.RESPONSE)}
)  # as numbers, which each header has
ALIGNMENT: Final = 8
"""Bodies start at a multiple of this in memory, so that tensors, which start at one in the body, do so too."""

_NOTHING: Final = bytearray()


class FrameDecoder:
    """The reading half of a connection. Not thread-safe: one reader at a time.

    Attributes:
        frames: number of whole frames, those passed over among them.
        reuse: use a long body's memory again for the next one of the same length, unless a memoryview of it exists by
            then: memory that was just used is in the processor's cache and need not be cleared.
        in_body: whether what :meth:`buffer` gave last ends where the frame, or its memory so far, ends.

    Args:
        allowed: frame types that may come now, a set of :data:`ALLOWED`; change :attr:`allowed` as the connection goes
            on, before the next frame is taken out.
        max_body: bytes that a REQUEST or RESPONSE may have, else FRAME_TOO_LARGE.
        admit: whether the body of a REQUEST or RESPONSE is kept; called once its header is checked. One that is not
            kept is read, thrown away, and its frame comes with ``discarded``.
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
        self._payload = _NOTHING
        self._last: bytearray | None = None
        self._target = b""
        self._expected = self._filled = 0
        self._padding = 0
        self._discarding = 0
        self._room: memoryview | None = None

    @property
    def mid_frame(self) -> bool:
        """Return whether a frame was begun and is not whole yet."""
        return self._header is not None or self._start != self._end

    @property
    def buffered(self) -> bool:
        """Return whether bytes are here that no frame was made of yet: part of one, or whole ones."""
        return self._start != self._end

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty once :meth:`next` has said None. Valid until :meth:`received`."""
        if self._header is not None and not self._discarding:
            if len(self._payload) == self._filled:
                grow(self._payload, self._expected)
            self.in_body = True
            self._room = memoryview(self._payload)[self._filled :]
            return self._room
        self.in_body = False
        if self._start == self._end:
            self._start = self._end = 0
            return self._view[:]  # whoever gets it may release it
        if self._end == BUFFER_BYTES:
            rest = self._end - self._start
            self._view[:rest] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Say that ``count`` bytes were put into the buffer, which is taken back."""
        if not self.in_body:
            self._end += count
            return
        self._filled += count
        if self._room is not None:
            self._room.release()  # a bytearray cannot grow while it is exported
            self._room = None

    def drop(self) -> None:
        """Free what was received, and the owner: nothing more is read. Only for whoever may read."""
        self.admit = None
        self._header = self._room = self._last = None
        self._payload = _NOTHING
        self._start = self._end = self._expected = self._filled = self._discarding = 0

    def next(self) -> Frame | None:
        """Return the next whole frame, or None until more bytes come. Unknown optional frames are passed over.

        Raises:
            ConnectionFaultError: the peer broke the protocol; the decoder must not be used any more.
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
        """Read a header, if it is whole, and take what is there of the payload."""
        have = self._end - self._start
        if have < HEADER_BYTES:
            if have:
                self._check_first_bytes(have)
            return False
        try:
            header = parse_header(self._buffer, self._start)
        except ConnectionFaultError:
            self._check_first_bytes(have)  # tells HTTP clients apart
            raise
        self._check_expected(header)
        self._listens = False
        self._start += HEADER_BYTES
        self._header = header
        kind, _, _, target_length, ext_length, _, body_length = header
        if kind < FIRST_SKIPPED_TYPE and (
            self.admit is None or kind not in _WITH_BODY or self.admit(header)
        ):
            self._keep(target_length + ext_length, body_length)
        else:
            self._discarding = target_length + ext_length + body_length
            self._expected = self._filled = 0
        return True

    def _keep(self, front: int, body: int) -> None:
        """Move the payload's received bytes, with ``front`` of them before the body, to their own memory."""
        # The header's last bytes are kept in front as padding, so that the body starts aligned.
        self._padding = padding = -front % ALIGNMENT
        self._expected = expected = padding + front + body
        first = self._start - padding
        have = self._end - first
        if have >= expected:
            self._payload = self._buffer[first : first + expected]
            self._filled = expected
            self._start = first + expected
            return
        self._payload = self._reusable(expected) or bytearray(
            min(expected, FIRST_BODY_BYTES)
        )
        with memoryview(self._payload) as payload:
            payload[:have] = self._view[first : self._end]
        self._filled = have
        self._start = self._end

    def _reusable(self, size: int) -> bytearray | None:
        """Return the memory of the last long body, if it is as long and no view of it is left."""
        last, self._last = self._last, None
        if last is None or len(last) != size:
            return None
        try:
            last.append(last.pop())  # impossible while a view exists
        except BufferError:
            return None
        return last

    def rest(self) -> None:
        """Free memory that is only kept for speed; only for whoever may read."""
        self._last = None

    def _check_first_bytes(self, have: int) -> None:
        """Refuse a peer of another protocol as soon as its first bytes tell."""
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
        return (
            FrameType.PING not in self.allowed
        )  # both sides may send it from READY on

    def _check_expected(self, header: Header) -> None:
        kind, request_id, _, _, ext_length, _, body_length = header
        if kind not in self.allowed:
            if kind < FIRST_SKIPPED_TYPE:
                raise _unexpected(f"{FrameType(kind).name} may not come here")
            if self._in_handshake:
                raise _unexpected(f"frame type 0x{kind:02x} may not come before READY")
        elif kind in _WITH_BODY:
            if kind == _REQUEST:
                if request_id <= self._last_request_id:
                    raise ConnectionFaultError(
                        ConnectionFault.BAD_REQUEST_ID,
                        f"request_id {request_id} follows {self._last_request_id}; ids must increase",
                    )
                self._last_request_id = request_id
            if body_length > self._max_body:
                raise frame_too_large(
                    f"body_len {body_length} exceeds {self._max_body}"
                )
        elif self._in_handshake and ext_length:
            raise ConnectionFaultError(
                ConnectionFault.BAD_FRAME, "ext_len must be 0 before READY"
            )
        elif self._in_handshake and body_length > MAX_HANDSHAKE_BYTES - HEADER_BYTES:
            raise frame_too_large(
                f"frames before READY may have {MAX_HANDSHAKE_BYTES} bytes at most"
            )

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
        memory, self._payload = self._payload, _NOTHING
        ext_start = self._padding + target_length
        body_start = ext_start + ext_length
        target = self._target
        if len(target) != target_length or not memory.startswith(target, self._padding):
            # Peers repeat their targets: the same object is made once, and hashed once.
            target = self._target = bytes(memory[self._padding : ext_start])
        payload = memoryview(memory)
        ext = parse_ext(payload[ext_start:body_start]) if ext_length else {}
        return Frame(
            kind, request_id, arg, target, ext, json_length, payload[body_start:]
        )


def _unexpected(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.UNEXPECTED_FRAME, message)
