"""The socket's vectors of rejected requests get the same status and code over HTTP."""

from __future__ import annotations

import pytest

from conftest import MODELS, Server, StartServer
from framed import feed
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame
from wire.wire_vectors import Vector, load

# HTTP cannot express malformed targets and has no equivalent of extensions.
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
    """Return the vector's REQUESTs without deliberately broken extensions."""
    decoder = FrameDecoder(
        ALLOWED[Role.SERVER, HandshakeState.READY],
        2**20,
        lambda header: not header.ext_length,
    )
    return [frame for frame in feed(decoder, vector.data) if not frame.discarded]


@pytest.mark.parametrize("vector", COMMON, ids=str)
def test_http_gives_the_same_answers(
    vector: Vector, server: Server, new_server: StartServer
) -> None:
    """Both transports share routing, decoding and errors."""
    maximum = vector.facts["max_body"]
    asked = (
        server
        if maximum == 2**26
        else new_server(MODELS, "--max-body-bytes", str(maximum))
    )
    answers = {}
    for answer in vector.facts["answers"]:
        answers[answer["request_id"]] = (answer["status"], answer["code"])
    for frame in frames(vector):
        method, path = frame.target.decode("ascii").split(" ")
        split = frame.json_length != len(frame.body)
        headers = (
            {"Inference-Header-Content-Length": str(frame.json_length)} if split else {}
        )
        got = asked.call(method, path, data=bytes(frame.body), headers=headers)
        code = ""
        if got.status_code != 200:
            code = got.json()["code"]
        assert (got.status_code, code) == answers[frame.request_id], got.text
