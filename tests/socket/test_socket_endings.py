"""How connections end: closed, reset, timed out, or with the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from framed import ClosedError, Framed
from pocketserve_wire.errors import GoAwayReason
from pocketserve_wire.frames import Frame, FrameType, encode_frame

NUMBERS = b"[5.1, 3.5, 1.4]"
PETALS = "POST /predictions/petals"
ENDS_S = 50.0
"""Time for a server to end on a busy machine; below WAITS, which it must not use up."""

WAITS = ("--drain-timeout", "60")
"""Longer timeouts than the server's, for waiting on it."""


def goaway(peer: Framed) -> Frame:
    frame = peer.frame(FrameType.GOAWAY)
    document = json.loads(bytes(frame.body))
    assert document["code"] == GoAwayReason(frame.arg).name
    assert document["error"]
    return frame


def test_a_half_closed_connection_gets_all_answers(peer):
    asked = [peer.ask(PETALS, NUMBERS) for _ in range(20)]
    peer.socket.shutdown(socket.SHUT_WR)
    answers = peer.answers(len(asked))
    assert sorted(answers) == asked
    assert {one.status for one in answers.values()} == {200}
    with pytest.raises(ClosedError, match="without a word"):
        peer.next()


def test_a_half_closed_connection_waits_for_slow_answers(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        asked = [peer.ask(slow.target, slow.body) for _ in range(3)]
        peer.socket.shutdown(socket.SHUT_WR)
        slow.begun()
        slow.finish()
        assert sorted(peer.answers(3)) == asked
        assert peer.ends().frame is None


def reset(peer: Framed) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_reset_within_a_body(server):
    for cut in (30, 70_000):
        peer = server.connect()
        peer.send(peer.write(PETALS, NUMBERS.ljust(200_000))[:cut])
        reset(peer)


def test_a_lost_connection_leaves_nothing_behind(local, models_copy, slow, until):
    server = local(models_dir=models_copy)
    peer = server.connect()
    for _ in range(3):
        peer.ask(slow.target, slow.body)
    slow.begun()
    reset(peer)
    until(lambda: not server.server.connections)
    with server.connect() as other:
        assert other.call(PETALS, NUMBERS).status == 200
    slow.finish()
    until(lambda: server.server.workers.busy == 0)


def test_an_idle_connection_needs_no_thread(local, until):
    server = local()
    peers = [server.connect() for _ in range(4)]
    try:
        until(lambda: server.server.workers.busy == 0)
        for peer in peers:
            assert peer.call(PETALS, NUMBERS).status == 200
    finally:
        for peer in peers:
            peer.close()
    until(lambda: not server.server.connections)


def test_a_connection_without_frames_is_closed(local):
    server = local(socket_idle=1.0)
    with server.connect() as peer:
        assert peer.limits.idle_ms == 1000
        assert peer.call("GET /v2").status == 200
        assert goaway(peer).arg == GoAwayReason.IDLE
        assert peer.ends().frame is None


def test_a_connection_that_waits_for_an_answer_is_not_idle(
    new_server, models_copy, slow, local
):
    with local(socket_idle=1.0, models_dir=models_copy).connect() as peer:
        asked = peer.ask(slow.target, slow.body)
        slow.begun()
        peer.socket.settimeout(1.5)
        with pytest.raises(TimeoutError):
            peer.next()
        peer.socket.settimeout(120)
        slow.finish()
        assert peer.answer().request_id == asked
        assert goaway(peer).request_id == asked


# --- Clients that don't read


def big(peer: Framed) -> tuple[str, bytes]:
    """Return a request whose answer has about 10 MB."""
    return "POST /v1/models/petals:predict", json.dumps(
        {"instances": [[1, 2, 3]] * 300_000}
    ).encode()


def test_a_client_that_never_reads_is_disconnected(local, until):
    server = local({"stall": 0.3})
    with server.connect(receive_buffer=4096) as peer:
        peer.ask(*big(peer))
        until(lambda: not server.server.connections)
        # A reset outside a full window is dropped (RFC 5961, section 3.2).
        with suppress(TimeoutError):
            assert peer.ends().frame is None
    with server.connect() as peer:
        assert peer.call(PETALS, NUMBERS).status == 200
    until(lambda: server.server.workers.busy == 0)


def test_a_client_that_only_sends_is_disconnected(local, until):
    server = local({"stall": 0.3})
    with server.connect(receive_buffer=4096) as peer:
        ping = encode_frame(Frame(FrameType.PING)) * 1000
        with suppress(OSError):  # it is reset, or the server accepts no more
            while server.server.connections:
                peer.send(ping)
    until(lambda: not server.server.connections)


def test_pings_are_answered_between_large_answers(peer):
    asked = [peer.ask(*big(peer)) for _ in range(2)]
    peer.send(encode_frame(Frame(FrameType.PING, arg=8)))
    got = [peer.next() for _ in range(3)]
    assert got[-1].type == FrameType.RESPONSE
    assert sorted(frame.request_id for frame in got) == [0, *asked]


def test_a_slow_reader_gets_everything_and_others_do_not_wait(server):
    with server.connect(receive_buffer=4096) as slow, server.connect() as other:
        asked = slow.ask(*big(slow))
        for _ in range(3):
            assert other.call(PETALS, NUMBERS).status == 200
        answer = slow.answer()
        assert (answer.request_id, answer.status) == (asked, 200)
        assert len(answer.document["predictions"]) == 300_000


# --- Shutdown of the server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish(new_server, models_copy, slow, number):
    server = new_server(models_copy, *WAITS)
    with server.connect() as busy, server.connect() as idle:
        asked = [busy.ask(slow.target, slow.body) for _ in range(3)]
        slow.begun()
        busy.ping(1)  # all three were read
        server.process.send_signal(number)
        said = goaway(busy)
        assert (said.arg, said.request_id) == (GoAwayReason.SHUTTING_DOWN, asked[-1])
        assert goaway(idle).arg == GoAwayReason.SHUTTING_DOWN
        assert idle.ends().frame is None
        late = busy.call(PETALS, NUMBERS)
        assert (late.status, late.code) == (503, "SHUTTING_DOWN")
        with pytest.raises(OSError, match="refused"):
            server.connect()
        slow.finish()
        assert sorted(busy.answers(3)) == asked
        assert busy.ends().frame is None
    assert server.process.wait(ENDS_S) == 0
    assert "Traceback" not in server.log.read_text()


def test_a_second_signal_ends_at_once(new_server, models_copy, slow):
    server = new_server(models_copy, *WAITS)
    with server.connect() as peer:
        peer.ask(slow.target, slow.body)
        slow.begun()
        server.process.send_signal(signal.SIGTERM)
        goaway(peer)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(ENDS_S) == 1
        assert peer.ends().frame is None


def test_peers_that_hang_do_not_delay_the_shutdown(new_server, models_copy):
    server = new_server(models_copy, *WAITS)
    half = server.connect()
    half.send(half.write(PETALS, NUMBERS)[:30])
    deaf = server.connect(receive_buffer=4096)
    deaf.ask(*big(deaf))
    unauthenticated = Framed(server.socket_port, None, greet=False)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(ENDS_S) == 0
    for connection in (half, deaf, unauthenticated):
        connection.close()


def tasks(server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def test_an_idle_server_has_one_more_thread_and_uses_no_cpu_time(
    new_server, models_copy
):
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not tell of a process's threads")
    plain = new_server(models_copy, "--no-socket")
    ours = new_server(models_copy)
    for server in (plain, ours):
        assert server.call("GET", "/v2").status_code == 200
    assert tasks(ours) == tasks(plain) + 1
