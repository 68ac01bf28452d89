"""Test the client of engines with correct, broken, slow and hostile engines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketserve.runtimes.llm.client import (
    MAX_EVENT_BYTES,
    EngineConnection,
    EngineError,
    EngineInterruptedError,
    EngineLostError,
    EngineTimeoutError,
)

WAIT_S = 120.0
NAME = "e.sock"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

Answer = Callable[[bytes], EngineConnection]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Answer]:
    """Return a function that starts an engine which sends these bytes and ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / NAME))
    listener.listen()
    threads: list[threading.Thread] = []

    def serve(data: bytes) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:  # the client has closed the connection
                pass

    def start(data: bytes) -> EngineConnection:
        threads.append(threading.Thread(target=serve, args=(data,)))
        threads[-1].start()
        return EngineConnection(tmp_path, NAME, time.monotonic() + WAIT_S)

    yield start
    for thread in threads:
        thread.join(WAIT_S)
    listener.close()


def collect(connection: EngineConnection) -> list[object]:
    try:
        return list(connection.stream("/x", {}))
    finally:
        connection.close()


def test_events_are_read_and_comments_skipped(engine: Answer) -> None:
    data = STREAM + b': ping\n\ndata: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    assert collect(engine(data)) == [{"a": 1}, {"a": 2}]


def test_a_chunked_answer_is_joined(engine: Answer) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [b'data: {"a"', b": 1}\n\nda", b"ta: [DONE]\n\n"]
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    assert collect(engine(head + b"".join(chunks) + b"0\r\n\r\n")) == [{"a": 1}]


def test_a_refusal_has_status_kind_and_details(engine: Answer) -> None:
    body = b'{"error": {"code": 400, "message": "no", "type": "bad", "n_ctx": 8}}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    with pytest.raises(EngineError, match="no") as caught:
        collect(engine(head + body))
    assert caught.value.status == 400
    assert caught.value.kind == "bad"
    assert caught.value.details["n_ctx"] == 8


def test_an_error_in_the_stream_ends_it(engine: Answer) -> None:
    data = STREAM + b'data: {"a": 1}\n\ndata: {"error": {"message": "late"}}\n\n'
    with pytest.raises(EngineError, match="late"):
        collect(engine(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        STREAM,
        STREAM + b"data: {",
        STREAM + b"data: {nonsense}\n\n",
        STREAM + b"data: " + b"[" * 100_000 + b"\n\n",
        STREAM + b"data: " + b"x" * (MAX_EVENT_BYTES + 1),
        b"HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\n{{{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nda",
    ],
)
def test_a_broken_answer_is_a_lost_engine(engine: Answer, data: bytes) -> None:
    with pytest.raises(EngineLostError):
        collect(engine(data))


def test_a_silent_engine_reaches_the_deadline(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / NAME))
        listener.listen()
        connection = EngineConnection(tmp_path, NAME, time.monotonic() + 0.05)
        with pytest.raises(EngineTimeoutError):
            collect(connection)


def test_an_interrupted_request_fails_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / NAME))
        listener.listen()
        connection = EngineConnection(tmp_path, NAME, time.monotonic() + WAIT_S)
        connection.interrupt()
        with pytest.raises(EngineInterruptedError):
            collect(connection)


def test_a_socket_in_a_folder_with_a_long_path_can_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        short = tmp_path / "short"
        short.symlink_to(folder)
        listener.bind(str(short / NAME))
        listener.listen()
        EngineConnection(folder, NAME, time.monotonic() + WAIT_S).close()


def test_a_missing_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        EngineConnection(tmp_path, NAME, time.monotonic() + WAIT_S)
