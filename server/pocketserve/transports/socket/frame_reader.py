"""The reading half of a connection: bytes to frames, with deadlines."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError
from pocketserve_wire.frames import Frame

if TYPE_CHECKING:
    from pocketserve.transports.socket.inflight import InflightRequests
    from pocketserve.transports.socket.timeouts import Timeouts
    from pocketserve_wire.frame_decoder import FrameDecoder

_WAIT_ALL: Final = int(socket.MSG_WAITALL)


QUIET: Final = -1
END: Final = -2
"""Internal frame types: nothing arrived for a while; the peer closed its side."""

_QUIET = Frame(QUIET)
_END = Frame(END)


class FrameReader:
    """Reads frames, for the thread that is the connection's reader.

    Args:
        decoder: the handshake's; it may have bytes of the first request.

    Attributes:
        ends: deadline of the current frame; None between frames.
    """

    def __init__(
        self,
        connection: socket.socket,
        decoder: FrameDecoder,
        inflight: InflightRequests,
        timeouts: Timeouts,
    ) -> None:
        self._socket = connection
        self.decoder = decoder
        self._inflight = inflight
        self._timeouts = timeouts
        self._frames = 0  # complete frames when the current one began
        self.ends: float | None = None
        decoder.admit, decoder.reuse = inflight.admit, True
        connection.setblocking(True)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeouts.receive_timeout
        )

    def read(self) -> Frame:
        """Return the next frame, or one of type QUIET or END.

        Raises:
            ConnectionFaultError: the peer broke the protocol, or a frame took too long.
            OSError: the connection is broken.
        """
        decoder = self.decoder
        while (frame := decoder.next()) is None:
            if decoder.mid_frame:
                self._check_time(decoder)
            else:
                self.ends = None
            try:
                # Read the rest of a body in one call: the kernel wakes this thread once
                # instead of for each segment.
                count = self._socket.recv_into(
                    decoder.buffer(), 0, _WAIT_ALL if decoder.in_body else 0
                )
            except BlockingIOError:
                decoder.rest()
                return _QUIET
            if not count:
                return _END
            decoder.received(count)
        self.ends = None
        self._inflight.received()
        return frame

    def _check_time(self, decoder: FrameDecoder) -> None:
        now = time.monotonic()
        # A skipped frame counts as complete, too.
        if self.ends is None or decoder.frames != self._frames:
            self.ends, self._frames = now + self._timeouts.frame, decoder.frames
        elif now > self.ends:
            raise self.too_slow()

    def too_slow(self) -> ConnectionFaultError:
        """Return the error for a frame that took too long."""
        text = f"a frame must be complete within {self._timeouts.frame:g} s"
        return ConnectionFaultError(ConnectionFault.TIMEOUT, text)

    def drop(self) -> None:
        """Stop reading for good.

        For the reader, which remains the reader.
        """
        self.decoder.drop()
        self._inflight.received()
