"""What a connection leaves behind: nothing, and at once, for the next body may be as large as the last."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from collections.abc import Iterator

import pytest

from pocketserve_wire.faults import ConnectionFault
from pocketserve_wire.frames import Frame, FrameType, encode_head

MIB = 1024 * 1024
HEAD = encode_head(Frame(FrameType.REQUEST, request_id=1, target=b"POST /predictions/petals"), 8 * MIB)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the cyclic collector: what dies, dies by itself."""
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
@pytest.mark.parametrize("body", [b"", bytes(3 * MIB)], ids=["header", "half a body"])
def test_a_lost_connection_leaves_nothing(local, until, end, body):
    server = local()
    with server.connect() as peer:
        peer.send(HEAD + body)
        until(lambda: server.server.connections == 1)
        connection = weakref.ref(*server.server._connections)
        decoder = weakref.ref(connection()._decoder)
        end(peer)
    until(lambda: connection() is None and decoder() is None)
