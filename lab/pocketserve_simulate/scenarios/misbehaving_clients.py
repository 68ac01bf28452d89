"""Misbehaving clients: one disconnects before the answer, one never reads answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from pocketserve_client import handshake
from pocketserve_client.arrays import as_tensor
from pocketserve_client.errors import PocketserveError
from pocketserve_simulate.scenarios.questions import Question
from pocketserve_simulate.scenarios.scenario import NEVER_READS, VANISHING
from pocketserve_simulate.scenarios.traffic import ServerAddresses
from pocketserve_wire.frames import Frame, FrameType, encode_frame
from pocketserve_wire.oip import InferRequest, encode_infer_request

CONNECT_TIMEOUT_S: Final = 2.0
VANISH_EVERY_S: Final = 0.05
RETRY_S: Final = 0.2
DEAF_CONNECTIONS: Final = 4
MAX_ANSWER_BYTES: Final = 1 << 20
RESET: Final = struct.pack("ii", 1, 0)


class MisbehavingClient:
    """Misbehaves from :meth:`start` to :meth:`stop`.

    Attributes:
        requests: number of requests sent, complete or not.
    """

    def __init__(
        self, kind: str, addresses: ServerAddresses, model: str, question: Question
    ) -> None:
        self.kind = kind
        self.requests = 0
        url = urlsplit(addresses.socket)
        self._address = (str(url.hostname), int(url.port or 0))
        self._key = (
            addresses.token_file.read_text(encoding="ascii").strip().encode("ascii")
        )
        self._model = model
        self._question = question
        self._stopping = threading.Event()
        work: Callable[[], None] = {
            VANISHING: self._vanish,
            NEVER_READS: self._never_read,
        }[kind]
        self._thread = threading.Thread(target=work, name=kind)

    def start(self) -> None:
        """Start to misbehave."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; return once all connections are closed."""
        self._stopping.set()
        self._thread.join()

    def _vanish(self) -> None:
        """Send requests, and reset the connection before the answer.

        Every other request is incomplete.
        """
        request = _infer_request(self._model, self._question)
        while not self._stopping.wait(VANISH_EVERY_S):
            with self._connected() as connection:
                if connection is not None:
                    end = None
                    if self.requests % 2:
                        end = -10
                    self._send(connection, request[:end])
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _never_read(self) -> None:
        """Send on several connections while the server accepts it, and read nothing."""
        with contextlib.ExitStack() as stack:
            sent: dict[socket.socket, int] = {}
            pause = RETRY_S
            while not self._stopping.wait(pause):
                if len(sent) < DEAF_CONNECTIONS:
                    connection = stack.enter_context(self._connected())
                    if connection is not None:
                        sent[connection] = 0
                for connection in list(sent):
                    sent[connection] += 1
                    if not self._request_document(connection, sent[connection]):
                        del sent[connection]
                pause = VANISH_EVERY_S
                if len(sent) < DEAF_CONNECTIONS:
                    pause = RETRY_S

    def _request_document(self, connection: socket.socket, number: int) -> bool:
        """Send a small request with a large answer, which the server has to keep."""
        frame = Frame(FrameType.REQUEST, request_id=number, target=b"GET /openapi.json")
        return self._send(connection, encode_frame(frame))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket | None]:
        """Yield an authenticated connection; None if there is no server now."""
        try:
            connection, _, _ = handshake.open_connection(
                self._address, self._key, CONNECT_TIMEOUT_S, MAX_ANSWER_BYTES
            )
        except PocketserveError:
            yield None
            return
        with connection:
            connection.settimeout(0.0)
            yield connection

    def _send(self, connection: socket.socket, data: bytes) -> bool:
        """Send without waiting; return whether the connection can still be used."""
        try:
            sent = connection.send(data)
        except BlockingIOError:
            # Its buffers are full, as intended.
            return True
        except OSError:
            # The server has closed it.
            return False
        self.requests += 1
        return sent == len(data)


def _infer_request(model: str, question: Question) -> bytes:
    tensors = [as_tensor(name, value) for name, value in question.inputs.items()]
    body = encode_infer_request(InferRequest(inputs=tensors, binary_output=True))
    content = b"".join(body.chunks)
    length = body.json_length
    if length is None:
        length = len(content)
    frame = Frame(
        FrameType.REQUEST,
        request_id=1,
        target=f"POST /v2/models/{model}/infer".encode("ascii"),
        json_length=length,
        body=content,
    )
    return encode_frame(frame)
