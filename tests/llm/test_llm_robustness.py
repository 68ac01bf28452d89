"""What a phone does to language models: freezing, killing, leaving, and damaged files."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gguf_files
from conftest import Server, start_server
from pocketserve_client import Client, ServerError

pytestmark = pytest.mark.llm
MODEL = "tiny"
STREAMS = 1000
WARM_UP = 100
"""Streams after which all threads and buffers of the server exist."""

FILES = 200
CHUNKS = 8
WAIT_S = 300.0
FROZEN_S = 6.0
"""Longer than the time after which a client sends PING, shorter than twice that."""

MAX_GROWTH = 24 * 2**20
SPARE_DESCRIPTORS = 16
"""For connections and their threads that are about to end."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    gguf_files.write_tiny(folder / f"{MODEL}.gguf")
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def clients(server: Server) -> list[Client]:
    """Return a client for each transport."""
    urls = (server.url, f"socket://127.0.0.1:{server.socket_port}")
    return [Client(url, server.token, timeout=WAIT_S) for url in urls]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def engines_of(server: Server) -> list[int]:
    """Return the process ids of a server's engines."""
    engines = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int(status_of(int(folder.name))["PPid"])
        except (OSError, KeyError):  # it ended meanwhile
            continue
        if parent == server.process.pid and b"runtimes.llm.child" in command:
            engines.append(int(folder.name))
    return engines


class Usage:
    """The resources of a server and its engine."""

    def __init__(self, server: Server) -> None:
        (engine,) = engines_of(server)
        self.engine = engine
        self.descriptors = 0
        self.memory = 0
        for pid in (server.process.pid, engine):
            self.descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            self.memory += int(status_of(pid)["RssAnon"].split()[0]) * 1024


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_streams_that_are_cancelled_leave_nothing(server: Server) -> None:
    chance = random.Random(1)
    both = clients(server)
    before = None
    for number in range(STREAMS):
        client = both[number % 2]
        with client.chat(MODEL, f"Hello {number}", max_tokens=400) as stream:
            for _ in range(chance.randrange(6)):
                next(stream)
        if number == WARM_UP:
            assert both[0].chat(MODEL, "Hello", max_tokens=2).text()
            before = Usage(server)
    assert before is not None
    for client in both:
        assert client.chat(MODEL, "Hello", max_tokens=2).text()
    limit = before.descriptors + SPARE_DESCRIPTORS
    wait_until(lambda: Usage(server).descriptors <= limit)
    after = Usage(server)
    assert after.engine == before.engine
    assert after.memory - before.memory < MAX_GROWTH
    for client in both:
        client.close()


@pytest.mark.parametrize("target", ["server", "engine"])
@pytest.mark.parametrize("transport", [0, 1], ids=["http", "socket"])
def test_a_stream_survives_the_freezer(
    server: Server, target: str, transport: int
) -> None:
    client = clients(server)[transport]
    fields = {"max_tokens": 300, "temperature": 0}
    whole = client.chat(MODEL, "Hello", **fields).text()
    (engine,) = engines_of(server)
    pid = server.process.pid if target == "server" else engine
    with client.chat(MODEL, "Hello", **fields) as stream:
        pieces = [next(stream)]
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(FROZEN_S, os.kill, (pid, signal.SIGCONT)).start()
        pieces.extend(stream)
    assert "".join(pieces) == whole
    assert engines_of(server) == [engine]
    client.close()


def mutated(content: bytes, seed: int) -> bytes:
    """Return a file with some bytes changed, removed or repeated."""
    chance = random.Random(seed)
    data = bytearray(content)
    # Most faults are in the header.
    end = len(data) if seed % 4 == 0 else 8192
    kind = seed % 5
    if kind == 0:
        del data[chance.randrange(end) :]
    elif kind == 1:
        start = chance.randrange(end)
        del data[start : start + chance.randrange(1, 64)]
    elif kind == 2:
        start = chance.randrange(end)
        data[start:start] = data[start : start + chance.randrange(1, 64)]
    else:
        for _ in range(chance.randrange(1, 11)):
            data[chance.randrange(min(end, len(data)))] = chance.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_damaged_files_end_no_server(server: Server, models: Path, chunk: int) -> None:
    content = (models / f"{MODEL}.gguf").read_bytes()
    client = clients(server)[chunk % 2]
    codes = []
    for seed in range(chunk, FILES, CHUNKS):
        file = models / f"damaged{seed}.gguf"
        file.write_bytes(mutated(content, seed))
        try:
            client.load(file.stem)
            client.chat(file.stem, "Hello", max_tokens=2, timeout=WAIT_S).text()
        except ServerError as error:
            codes.append(error.code)
        finally:
            file.unlink()
        assert server.process.poll() is None
        assert client.is_ready()
    assert all(codes)
    assert client.chat(MODEL, "Hello", max_tokens=2).text()
    client.close()
