"""Log each request of both transports, refusals included, without its contents."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from conftest import MODELS, Server, StartServer
from pocketserve.terminal.log_output import JsonLogFormatter, LogFormatter, LogHandler
from pocketserve.transports.request_log import (
    MAX_UNTRUSTED_LINES,
    RequestLog,
    read_trace_id,
)
from pocketserve_client import Client
from pocketserve_client.errors import ServerError

SECRET = "the-words-of-a-caller"


def fields(server: Server) -> list[dict[str, Any]]:
    """Return the request documents in a server's log."""
    documents = []
    for line in server.log.read_text().splitlines():
        if line.startswith("{"):
            documents.append(json.loads(line))
    return [document for document in documents if "transport" in document]


def exchange(port: int, sent: bytes) -> bytes:
    """Return a port's answer to some bytes, until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", port), 120)) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def ask(server: Server, url: str) -> None:
    """Send accepted and refused requests with secrets in each place."""
    with Client(url, token_file=server.log.with_name("token")) as client:
        client.predict("petals", [5.1, 3.5, 1.4])
        for name, body, parameters in (
            ("petals", f'["{SECRET}"]'.encode(), {"top_k": SECRET}),
            (str(server.token), b"[1]", {"top_k": "1"}),
            ("no-model", SECRET.encode(), {"stream": str(server.token)}),
        ):
            with pytest.raises(ServerError):
                client.predict(name, body, parameters=parameters)


def test_each_request_has_a_log_line_without_secrets(
    new_server: StartServer,
) -> None:
    server = new_server(MODELS, "--request-log", "on", "--log-format", "json")
    ask(server, server.url)
    ask(server, f"socket://127.0.0.1:{server.socket_port}")
    server.stop()
    lines = fields(server)
    for transport in ("http", "socket"):
        own = []
        for line in lines:
            if line["transport"] == transport and line["method"] == "POST":
                own.append(line)
        asked = [
            (
                line["path"],
                line["model"],
                line["status"],
            )
            for line in own
        ]
        cut = f"{str(server.token)[:16]}..."
        assert asked == [
            ("/predictions/petals", "petals", 200),
            ("/predictions/petals", "petals", 400),
            (f"/predictions/{cut}", cut, 404),
            ("/predictions/no-model", "no-model", 404),
        ]
        assert own[0]["bytes_in"] == len("[5.1,3.5,1.4]")
        assert own[0]["bytes_out"] > 100
        assert all(
            line["ms"] > 0 and line["level"] == "info" and line["time"].endswith("Z")
            for line in own
        )
        assert own[0]["message"].startswith(
            f"{transport} POST /predictions/petals 200 petals "
        )
    text = server.log.read_text()
    assert SECRET not in text
    assert str(server.token) not in text


ROW = {
    "name": "features",
    "datatype": "FP32",
    "shape": [1, 3],
    "data": [5.1, 3.5, 1.4],
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def send_with_ids(server: Server) -> None:
    """Send inferences, refusals and a socket request.

    Check the ids of the answers.
    """
    path = "/v2/models/petals/infer"
    headers = {"X-Request-Id": "order-7/a:b", "traceparent": PARENT}
    for number in range(2):  # the second request is compiled
        body = {"id": f"infer-{number}", "inputs": [ROW]}
        answer = server.call("POST", path, json=body, headers=headers)
        assert answer.headers["X-Request-Id"] == "order-7/a:b"
        assert answer.json()["id"] == f"infer-{number}"

    refused = server.call("POST", "/predictions/nothing", data=b"[1]", headers=headers)
    assert refused.status_code == 404
    assert refused.headers["X-Request-Id"] == "order-7/a:b"

    url = f"{server.url}{path}"
    large = server.session.post(url, data=b" " * 5000, headers=headers)
    assert large.status_code == 401
    assert large.headers["X-Request-Id"] == "order-7/a:b"

    with server.connect() as connection:
        document = {"id": "by socket", "inputs": [ROW]}
        connection.call(f"POST {path}", json.dumps(document).encode())


@pytest.mark.parametrize("form", ["json", "text"])
def test_request_ids_are_logged_and_answered(
    new_server: StartServer, form: str
) -> None:
    server = new_server(MODELS, "--request-log", "on", "--log-format", form)
    send_with_ids(server)
    server.stop()
    if form == "text":
        log = server.log.read_text()
        assert f"B out, request_id order-7/a:b, trace_id {TRACE}, id infer-1" in log
        assert "B out, id by%20socket" in log
        return
    ids = []
    for line in fields(server):
        if line["method"] == "POST":
            names = ("request_id", "trace_id", "id")
            ids.append(tuple(line.get(name) for name in names))
    own = ("order-7/a:b", TRACE)
    assert ids == [
        (*own, "infer-0"),
        (*own, "infer-1"),
        (*own, None),
        (None, None, None),
        (None, None, "by%20socket"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 129,
        "a b",
        "a;b",
        "\xe4",
        "<script>",
    ],
)
def test_invalid_request_ids_are_not_repeated(server: Server, name: str) -> None:
    answer = server.call("GET", "/v2", headers={"X-Request-Id": name.encode("latin-1")})
    assert answer.status_code == 200
    assert "X-Request-Id" not in answer.headers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"00-{TRACE}",
        PARENT.upper(),
        f"00-{TRACE[:-1]}-00f067aa0ba902b7-01",
        PARENT + "\n",
        PARENT + "-more",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_invalid_traces_are_not_logged(text: str) -> None:
    assert read_trace_id(PARENT) == TRACE
    assert read_trace_id(f"01{PARENT[2:]}-more") == TRACE
    assert read_trace_id(text) == ""


def test_unauthenticated_refusals_are_logged(new_server: StartServer) -> None:
    server = new_server(
        MODELS,
        "--request-log",
        "on",
        "--log-format",
        "json",
        "--max-body-bytes",
        "1024",
    )
    server.session.get(
        f"{server.url}/v2/models?key={SECRET}",
        headers={"Authorization": f"Bearer {SECRET}"},
    )
    server.call("GET", "/nowhere/a%0Ab")
    server.call("POST", "/predictions/petals", data=b" " * 2000)
    server.session.head(f"{server.url}/v2/health/live")
    exchange(server.port, b"\x16\x03\x01")
    exchange(server.socket_port, f"GET /{SECRET} HTTP/1.1\r\n\r\n".encode())
    with (
        pytest.raises(Exception, match="token"),
        Client(f"socket://127.0.0.1:{server.socket_port}", token="x") as client,
    ):
        client.index()
    server.stop()
    assert [
        (
            line["transport"],
            line["method"],
            line["path"],
            line["status"],
        )
        for line in fields(server)
    ] == [
        ("http", "GET", "/v2/models", 401),
        ("http", "GET", "/nowhere/a%0Ab", 404),
        ("http", "POST", "/predictions/petals", 413),
        ("http", "HEAD", "/v2/health/live", 200),
        ("http", "-", "-", 400),
        ("socket", "HELLO", "-", 400),
        ("socket", "HELLO", "-", 401),
    ]
    assert SECRET not in server.log.read_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--request-log", "off"],
        ["--request-log=on", "--log-level=warning"],
        [],
    ],
)
def test_there_are_no_lines_without_a_terminal_or_when_switched_off(
    new_server: StartServer, options: list[str]
) -> None:
    server = new_server(MODELS, *options)
    ask(server, server.url)
    assert "/predictions" not in server.log.read_text()


def read_until(terminal: int, end: str) -> str:
    """Return a terminal's output up to some words."""
    text = ""
    deadline = time.monotonic() + 120
    while end not in text:
        ready, _, _ = select.select(
            [terminal], [], [], max(0.0, deadline - time.monotonic())
        )
        assert ready, text
        text += os.read(terminal, 4096).decode()
    return text


def test_requests_are_listed_on_a_terminal(tmp_path: Path) -> None:
    main, terminal = os.openpty()
    with serving(tmp_path, terminal):
        text = read_until(main, "the socket protocol is served at")
        url = re.search(r"http://127\.0\.0\.1:\d+", text)
        assert url is not None
        requests.get(f"{url[0]}/v2/models", timeout=120)
        assert "INFO http GET /v2/models 200 - " in read_until(main, " B out")
    os.close(main)


def test_requests_do_not_wait_for_a_blocked_log(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with (
        serving(tmp_path, writer, "--request-log", "on"),
        requests.Session() as session,
    ):
        url = re.search(
            r"http://127\.0\.0\.1:\d+",
            read_until(reader, "the socket protocol is served at"),
        )
        assert url is not None
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(60):
            assert session.get(f"{url[0]}/v2/models", timeout=120).status_code == 200
        text = os.read(reader, 4096).decode()
        session.get(f"{url[0]}/v2/models", timeout=120)
        text += read_until(reader, " B out")
    os.close(reader)
    missing = re.search(
        r"WARNING (\d+) lines are missing here, because nothing read standard error\n",
        text,
    )
    assert missing is not None
    assert int(missing[1]) + text.count(" GET /v2/models ") >= 60


def test_long_lines_are_cut_when_there_is_no_room() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(writer, "w", encoding="utf-8") as stream:
        handler = LogHandler(stream)
        handler.setFormatter(LogFormatter("%(message)s"))
        for text in ("é" * 3000, "left out"):
            handler.emit(logging.makeLogRecord({"msg": text}))
        begun = os.read(reader, 8192).decode()
        assert begun == "é" * len(begun)
        assert 0 < len(begun) < 3000
        handler.emit(logging.makeLogRecord({"msg": "there again"}))
        assert os.read(reader, 8192).decode() == (
            "\n2 lines are missing here, because nothing read standard error\nthere again\n"
        )
    os.close(reader)


@contextmanager
def serving(tmp_path: Path, log: int, *options: str) -> Iterator[None]:
    """Start a server that logs to a descriptor, which is closed here."""
    environment = {**os.environ, "POCKETSERVE_STATE_DIR": str(tmp_path)}
    ports = (
        "--http-port",
        "0",
        "--socket-port",
        "0",
        "--ready-file",
        str(tmp_path / "ready"),
        "--no-auth",
    )
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        str(MODELS),
        *ports,
        *options,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=log, env=environment
    )
    os.close(log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)


def test_text_lines_contain_no_debug_messages_of_other_packages(
    new_server: StartServer,
) -> None:
    server = new_server(MODELS, "--request-log", "on", "--log-level", "debug")
    picture = (MODELS / "digits/samples/7.png").read_bytes()
    answer = server.call("POST", "/predictions/digits", data=picture)
    server.stop()
    text = server.log.read_text()
    size = len(answer.content)
    line = rf" INFO http POST /predictions/digits 200 digits [\d.]+ ms, {len(picture)} B in, {size} B out$"
    assert re.search(line, text, re.MULTILINE)
    assert "STREAM" not in text


def test_unauthenticated_requests_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = RequestLog()
    sizes = {
        "started": time.monotonic(),
        "bytes_in": 0,
        "bytes_out": 0,
    }
    # The counter's second starts in the future, so it can't end during the test.
    log._second = 1 << 40
    for _ in range(MAX_UNTRUSTED_LINES + 5):
        log._has_room(1 << 40)
    assert not log._has_room(1 << 40)
    assert log._has_room(1 + (1 << 40))
    assert caplog.messages == ["6 more requests without the token were not logged"]
    log.write(
        "http",
        "get\n",
        "/a b\n",
        "m",
        200,
        **sizes,
    )
    assert " - /a%20b%0A 200 m " in caplog.messages[-1]


def test_a_document_keeps_a_traceback_in_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord(
            "name",
            logging.ERROR,
            "file",
            1,
            "failed: %s",
            ("a\x1b",),
            (ValueError, error, None),
        )
    text = JsonLogFormatter().format(record)
    assert "\n" not in text
    assert "\x1b" not in text
    document = json.loads(text)
    assert document["level"] == "error"
    assert document["message"] == "failed: a\x1b"
    assert "two\nlines" in document["traceback"]
