"""A connection's memory is released or reused at once."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import struct
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from pocketserve.transports.socket.server import INCOMING
from pocketserve_wire.errors import ConnectionFault, GoAwayReason
from pocketserve_wire.frame_decoder import FrameDecoder
from pocketserve_wire.frames import Frame, FrameType, encode_head

MIB = 1024 * 1024
HEAD = encode_head(
    Frame(FrameType.REQUEST, request_id=1, target=b"POST /predictions/petals"), 8 * MIB
)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Turn off the cyclic collector, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leave(peer) -> None:
    peer.close()


def reset(peer) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def stay(peer) -> None:
    assert peer.ends().fault is ConnectionFault.TIMEOUT
    peer.close()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("end", [leave, reset, stay])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(3 * MIB),
    ],
    ids=["header", "half a body"],
)
def test_a_lost_connection_leaves_nothing(local, until, end, body):
    server = local({"frame": 0.5} if end is stay else None)
    with server.connect() as peer:
        until(lambda: server.server.connections == 1)
        connection = weakref.ref(*server.server._connections)
        decoder = weakref.ref(connection()._reader.decoder)
        # A short body timeout for the connection that stays.
        with contextlib.suppress(ConnectionError):
            peer.send(HEAD + body)
        end(peer)
    until(lambda: connection() is None and decoder() is None)


def test_incomplete_bodies_count_over_all_connections(local, until):
    """A body counts from its header until it is complete or its connection lost.

    Small bodies always fit.
    """
    server = local({"quiet": 2.0}, max_body_bytes=MIB, socket_bytes_inflight=MIB)
    target = "POST /predictions/petals"
    with contextlib.ExitStack() as stack:
        *others, last = [
            stack.enter_context(server.connect()) for _ in range(INCOMING + 1)
        ]
        whole = [other.write(target, bytes(MIB)) for other in others]
        for other, frame in zip(others, whole, strict=True):
            other.send(frame[:100])
        until(
            lambda: (
                not server.server.incoming.acquire(1)
                or server.server.incoming.release(1)
            )
        )
        refused = last.call(target, bytes(MIB // 2))
        assert refused.status == 429
        assert refused.code == "QUEUE_FULL"
        assert "all connections" in refused.document["error"]
        assert last.call(target, b"[5.1,3.5,1.4]").status == 200
        others[0].send(whole[0][100:])
        assert others[0].answer().status == 400
        others[1].close()
        until(lambda: server.server.incoming.acquire(2 * MIB))
        server.server.incoming.release(2 * MIB)
        assert last.call(target, bytes(MIB // 2)).status == 400


class Echo:
    """A session that returns its input without a copy."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, arrays: Any, signature: str | None = None) -> Any:
        """Run like a session."""
        return {
            spec.name: array
            for spec, array in zip(self._session.outputs, arrays.values(), strict=True)
        }


def test_waiting_answers_are_not_overwritten_by_new_requests(local):
    started = local(queue_limit=64, batching=False)
    with started.connect(receive_buffer=4096) as peer:
        assert (
            peer.call(
                "POST /predictions/digits", f"[{','.join(['0'] * 64)}]".encode()
            ).status
            == 200
        )
        idle = started.service.engine.running("digits", "tflite").queue._entries.idle
        idle[0] = Echo(idle[0])
        size = 64 * 4
        rows = 2000
        tensor = {
            "name": "image",
            "datatype": "FP32",
            "shape": [rows, 8, 8, 1],
        }
        tensor["parameters"] = {"binary_data_size": rows * size}
        head = json.dumps(
            {"parameters": {"binary_data_output": True}, "inputs": [tensor]}
        ).encode()
        asked = {}
        for number in range(24):
            data = struct.pack("<f", number) * (rows * 64)
            asked[
                peer.ask(
                    "POST /v2/models/digits/infer", head + data, json_length=len(head)
                )
            ] = data
        for request_id, answer in peer.answers(len(asked)).items():
            assert answer.status == 200
            assert answer.body[answer.json_length :] == asked[request_id]


def test_a_bodys_memory_is_reused_for_the_next_of_its_size(local, monkeypatch):
    reused = []
    find = FrameDecoder._reusable
    monkeypatch.setattr(
        FrameDecoder,
        "_reusable",
        lambda self, size: (
            reused.append((memory := find(self, size)) is not None) or memory
        ),
    )
    with local().connect() as peer:
        for _ in range(4):
            answer = peer.call(
                "POST /v2/models/nobody/infer", b"{}" + bytes(300_000), json_length=2
            )
            assert answer.code == "MODEL_NOT_FOUND"
    assert reused == [False, True, True, True]


def test_waiting_answers_are_sent_before_the_end(local, until):
    started = local(socket_inflight=60)
    with started.connect(receive_buffer=4096) as peer:
        sent = [peer.ask("GET /openapi.json") for _ in range(60)]
        until(lambda: started.server.connections == 1)
        [connection] = started.server._connections
        until(
            lambda: (
                connection._inflight.last_id == sent[-1]
                and not len(connection._inflight)
            )
        )
        started.server.drain()
        frames = [peer.next() for _ in range(len(sent) + 1)]
        assert (
            sorted(
                frame.request_id for frame in frames if frame.type == FrameType.RESPONSE
            )
            == sent
        )
        assert [frame.arg for frame in frames if frame.type == FrameType.GOAWAY] == [
            GoAwayReason.SHUTTING_DOWN
        ]
