"""Answers in parts over the socket: PART frames, sent while the model works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketserve.engine.scheduling.cancellation import Cancellation, cancelled

if TYPE_CHECKING:
    from pocketserve.api.messages import ApiResponse
    from pocketserve.transports.socket.connection import Connection


class SocketParts:
    """Sends parts of one answer on the thread that runs the request.

    Args:
        cancellation: the request's; set when the connection breaks, too.

    Attributes:
        size: bytes sent so far.
    """

    def __init__(
        self, connection: Connection, request_id: int, cancellation: Cancellation
    ) -> None:
        self._connection = connection
        self._request_id = request_id
        self._cancellation = cancellation
        self.size = 0

    def send(self, data: bytes) -> None:
        """Send a part, once the client has read the one before.

        Raises:
            ApiError: CANCELLED, by the client or because it has gone or doesn't read.
        """
        self.check()
        limit = self._connection.client_max_frame
        for start in range(0, len(data), limit):
            self._send_frame(data[start : start + limit])

    def _send_frame(self, data: bytes) -> None:
        is_sent = self._connection.send_part(self._request_id, data, self._cancellation)
        if not is_sent:
            raise cancelled()
        self.size += len(data)

    def check(self) -> None:
        """Raise as :meth:`send` if the client has given up or gone."""
        self._cancellation.check()

    def end(self, response: ApiResponse) -> None:
        """Do nothing: a RESPONSE frame follows in any case."""
