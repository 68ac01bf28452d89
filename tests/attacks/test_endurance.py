"""Kill, restart, load and unload under load.

Answers must stay right, and nothing may leak.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import Server, StartServer
from framed import ClosedError
from pocketserve_client import Client, ServerError
from soaking import note, rounds

pytestmark = pytest.mark.live

ROW = [5.1, 3.5, 1.4]
PEERS = 3
LIMIT_S = 120.0
MORE_MEMORY = 32 * 2**20
"""Growth that allocators may cause; a leak of 20 kB per load would exceed it."""


class Seen:
    """Counts outcomes of requests across threads."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._changed = threading.Condition()

    def add(self, outcome: str) -> None:
        """Count one outcome."""
        with self._changed:
            self.counts[outcome] += 1
            self._changed.notify_all()

    def wait(self, outcome: str, count: int) -> None:
        """Wait until an outcome was counted this often."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.counts[outcome] >= count, LIMIT_S
            ), self.counts


@contextmanager
def asking(ask: Callable[[], str]) -> Iterator[Seen]:
    """Send requests from several threads until the block ends, and count the outcomes."""
    ends = threading.Event()
    seen = Seen()

    def run() -> None:
        while not ends.is_set():
            seen.add(ask())

    threads = [threading.Thread(target=run) for _ in range(PEERS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ends.set()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def value_of(server: Server) -> float:
    """Return the constantly queried model's answer over the socket."""
    with server.connect() as peer:
        answer = peer.call("POST /predictions/petals", b"[5.1,3.5,1.4]")
        assert answer.status == 200, answer.document
        return float(answer.document["predictions"][0]["value"])


@pytest.mark.parametrize(
    "kills",
    [
        3,
        pytest.param(rounds(10, 50), marks=pytest.mark.soak),
    ],
)
def test_a_killed_server_never_answers_wrongly_and_restarts(
    kills: int, new_server: StartServer, models_copy: Path
) -> None:
    """The next server answers at once, whatever the previous one was doing."""
    state = models_copy.parent / "state"
    total = Counter[str]()
    expected = None
    for _ in range(kills):
        server = new_server(models_copy, "--state-dir", str(state), "--load", "petals")
        expected = expected or value_of(server)

        def ask(server: Server = server, expected: float = expected) -> str:
            try:
                if value_of(server) == expected:
                    return "right"
                return "wrong"
            except (OSError, ClosedError):
                return "cut off"

        with asking(ask) as seen:
            seen.wait("right", 20)
            server.process.kill()
            server.process.wait(LIMIT_S)
        total += seen.counts
    assert total["wrong"] == 0
    assert total["right"] >= 20 * kills
    assert not list(state.glob("trial-*"))
    assert not list(state.glob("tmp*"))
    note(
        "kill -9 under load",
        f"{kills}: {total['right']} answers, {total['wrong']} wrong",
    )


def resident_bytes(server: Server) -> int:
    """Return the server's resident memory."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")
    )


@pytest.mark.alone
@pytest.mark.parametrize(
    "loads",
    [
        40,
        pytest.param(rounds(300, 2000), marks=pytest.mark.soak),
    ],
)
def test_requests_during_loads_and_unloads_are_answered_or_refused(
    loads: int, new_server: StartServer, models_copy: Path
) -> None:
    """Each request gets the right answer or an error that the model is missing."""
    server = new_server(models_copy)
    expected = value_of(server)

    def ask() -> str:
        with server.connect() as peer:
            answer = peer.call("POST /predictions/petals", b"[5.1,3.5,1.4]")
        if answer.status == 200:
            if answer.document["predictions"][0]["value"] == expected:
                return "right"
            return "wrong"
        if answer.code in ("MODEL_NOT_FOUND", "MODEL_NOT_READY"):
            return "away"
        return f"{answer.code}"

    with Client(server.url, server.token) as client, asking(ask) as seen:
        before = 0
        for number in range(loads):
            client.unload("petals")
            client.load("petals")
            if number == loads // 4:
                before = resident_bytes(server)
        grown = resident_bytes(server) - before
    assert set(seen.counts) <= {"right", "away"}
    assert seen.counts["right"] > 0
    assert grown < MORE_MEMORY
    with (
        pytest.raises(ServerError, match="not found"),
        Client(server.url, server.token) as client,
    ):
        client.predict("nothing", ROW)
    note(
        "loads and unloads under load",
        f"{loads}: {seen.counts.total()} answers, 0 wrong, {grown / 2**20:+.1f} MiB",
    )
    assert server.stop() == 0
