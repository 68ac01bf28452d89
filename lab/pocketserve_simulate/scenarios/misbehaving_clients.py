"""Clients that misbehave, as other apps on a phone do: one that vanishes, and one that never reads its answers."""

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
    """Misbehaves from :meth:`start` to :meth:`stop`; ``requests`` counts those that it has sent, whole or in part."""

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
        self._model, self._question = model, question
        self._stopping = threading.Event()
        work: Callable[[], None] = {
            VANISHING: self._vanish,
            NEVER_READS: self._never_read,
        }[kind]
        self._thread = threading.Thread(target=work, name=kind)

    def start(self) -> None:
        """Begin to misbehave."""
        self._thread.start()

    def stop(self) -> None:
        """Leave; returns once all its connections are gone."""
        self._stopping.set()
        self._thread.join()

    def _vanish(self) -> None:
        """Ask, and be gone before the answer: with a whole request, or in the middle of one."""
        request = _infer_request(self._model, self._question)
        while not self._stopping.wait(VANISH_EVERY_S):
            with self._connected() as connection:
                if connection is not None:
                    self._send(
                        connection, request[: -10 if self.requests % 2 else None]
                    )
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _never_read(self) -> None:
        """Ask on several connections for as long as the server takes it, and read nothing."""
        with contextlib.ExitStack() as stack:
            sent: dict[socket.socket, int] = {}
            while not self._stopping.wait(
                RETRY_S if len(sent) < DEAF_CONNECTIONS else VANISH_EVERY_S
            ):
                if len(sent) < DEAF_CONNECTIONS:
                    connection = stack.enter_context(self._connected())
                    if connection is not None:
                        sent[connection] = 0
                for connection in list(sent):
                    sent[connection] += 1
                    # Few bytes that ask for many: what is not read must be kept somewhere.
                    frame = Frame(
                        FrameType.REQUEST,
                        request_id=sent[connection],
                        target=b"GET /openapi.json",
                    )
                    if not self._send(connection, encode_frame(frame)):
                        del sent[connection]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket | None]:
        """Give a connection whose handshake is done; None where there is no server now."""
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
        """Send what the system takes at once; returns whether the connection is still any good."""
        try:
            sent = connection.send(data)
        except BlockingIOError:
            return True  # full, as it is meant to be
        except OSError:
            return False  # the server had enough of it
        self.requests += 1
        return sent == len(data)


def _infer_request(model: str, question: Question) -> bytes:
    tensors = [as_tensor(name, value) for name, value in question.inputs.items()]
    body = encode_infer_request(InferRequest(inputs=tensors, binary_output=True))
    content = b"".join(body.chunks)
    length = body.json_length if body.json_length is not None else len(content)
    target = f"POST /v2/models/{model}/infer".encode("ascii")
    return encode_frame(
        Frame(
            FrameType.REQUEST,
            request_id=1,
            target=target,
            json_length=length,
            body=content,
        )
    )
