"""The socket's vectors of refused requests, asked over HTTP: the same bytes get the same status and code."""

from __future__ import annotations

import pytest

from conftest import MODELS, Server, StartServer
from framed import feed
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame
from wire.wire_vectors import Vector, load

# Malformed targets cannot even be said in HTTP, and extensions have no counterpart there.
COMMON = [
    vector
    for vector in load("invalid", "request")
    if all(
        answer["status"] != 501 and answer["code"] != "INVALID_REQUEST"
        for answer in vector.facts["answers"]
    )
    or vector.facts["rule"] == "bodies"
]

pytestmark = pytest.mark.live


def frames(vector: Vector) -> list[Frame]:
    """The vector's REQUESTs; extensions that are broken on purpose are left out."""
    decoder = FrameDecoder(
        ALLOWED[Role.SERVER, HandshakeState.READY],
        2**20,
        lambda header: not header.ext_length,
    )
    return [frame for frame in feed(decoder, vector.data) if not frame.discarded]


@pytest.mark.parametrize("vector", COMMON, ids=str)
def test_http_says_the_same(
    vector: Vector, server: Server, new_server: StartServer
) -> None:
    """Both transports share routing, decoding and errors."""
    maximum = vector.facts["max_body"]
    asked = (
        server
        if maximum == 2**26
        else new_server(MODELS, "--max-body-bytes", str(maximum))
    )
    answers = {
        answer["request_id"]: (answer["status"], answer["code"])
        for answer in vector.facts["answers"]
    }
    for frame in frames(vector):
        method, path = frame.target.decode("ascii").split(" ")
        split = frame.json_length != len(frame.body)
        headers = (
            {"Inference-Header-Content-Length": str(frame.json_length)} if split else {}
        )
        got = asked.call(method, path, data=bytes(frame.body), headers=headers)
        code = got.json()["code"] if got.status_code != 200 else ""
        assert (got.status_code, code) == answers[frame.request_id], got.text
