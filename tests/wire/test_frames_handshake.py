"""Run the handshake's vectors through both sides, and check other properties."""

from __future__ import annotations

import json
from typing import Any

import pytest

from framed import feed
from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType
from pocketserve_wire.handshake import (
    LEAST_MAX_FRAME,
    ClientHandshake,
    ConnectionLimits,
    ServerHandshake,
    client_proof,
    server_proof,
    transcript,
)
from pocketserve_wire.strict_json import dumps
from wire.wire_vectors import Vector, load

GOOD = load("valid", "handshake")
BAD = load("invalid", "handshake")
AWAITS = {
    "HELLO": ALLOWED[Role.SERVER, HandshakeState.HELLO],
    "CHALLENGE": ALLOWED[Role.CLIENT, HandshakeState.HELLO],
    "AUTH": ALLOWED[Role.SERVER, HandshakeState.AUTH],
    "READY": ALLOWED[Role.CLIENT, HandshakeState.AUTH],
}
LIMITS = ConnectionLimits(1, 2, 3, 4, "x")


def key(text: str | None) -> bytes | None:
    """Return a key from its digits."""
    if text is None:
        return None
    return bytes.fromhex(text)


def server_of(vector: Vector) -> ServerHandshake:
    """Return the server's side with the vector's key and nonce."""
    facts = vector.facts
    limits = ConnectionLimits(**facts["limits"])
    return ServerHandshake(
        key(facts["server_key"]), bytes.fromhex(facts["server_nonce"]), limits
    )


def client_of(vector: Vector) -> ClientHandshake:
    """Return the client's side after the vector's HELLO."""
    facts = vector.facts
    nonce = bytes.fromhex(facts["client_nonce"])
    client = ClientHandshake(
        key(facts["client_key"]),
        nonce,
        facts["client_max_frame"],
        facts["client_name"],
        takes_parts=facts.get("client_parts", False),
    )
    if facts.get("byte_exact"):
        assert client.hello.hex() == facts["hello"]
    client.hello = bytes.fromhex(facts["hello"])
    return client


def frame(vector: Vector, name: str) -> Frame:
    """Decode one frame of a vector in the state that expects it."""
    (found,) = feed(
        FrameDecoder(AWAITS[name], 4096), bytes.fromhex(vector.facts[name.lower()])
    )
    return found


@pytest.mark.parametrize("vector", GOOD, ids=str)
def test_the_server_accepts_a_valid_client(vector: Vector) -> None:
    """It sends the vector's frames, and stores the client's values."""
    server = server_of(vector)
    challenge = server.answer_hello(frame(vector, "HELLO"))
    if challenge.hex() != vector.facts["challenge"]:
        assert not vector.facts["byte_exact"]
        # this server would have chosen other texts; the client's side is tested with
        # the vector
        return
    ready = server.answer_auth(frame(vector, "AUTH"))
    assert ready.hex() == vector.facts["ready"]
    assert server.client_max_frame == vector.facts["client_max_frame"]
    assert server.client_takes_parts is vector.facts.get("client_parts", False)


@pytest.mark.parametrize("vector", GOOD, ids=str)
def test_the_client_accepts_a_valid_server(vector: Vector) -> None:
    """It sends the vector's AUTH and learns the limits."""
    client = client_of(vector)
    assert (
        client.answer_challenge(frame(vector, "CHALLENGE")).hex()
        == vector.facts["auth"]
    )
    assert client.accept_ready(frame(vector, "READY")) == ConnectionLimits(
        **vector.facts["limits"]
    )


@pytest.mark.parametrize(
    "more",
    [
        {"proof": "0" * 64},
        {"proof": 7},
        {"proof": None},
    ],
)
def test_an_unrequested_proof_is_ignored(more: dict[str, Any]) -> None:
    """Both sides ignore it if there is no token."""
    (vector,) = [vector for vector in GOOD if vector.name == "handshake_without_token"]
    server = server_of(vector)
    client = client_of(vector)
    server.answer_hello(frame(vector, "HELLO"))
    auth = Frame(FrameType.AUTH, body=bytearray(dumps(more)))
    assert server.answer_auth(auth).hex() == vector.facts["ready"]
    client.answer_challenge(frame(vector, "CHALLENGE"))
    ready = Frame(FrameType.READY, body=bytearray(dumps(vector.facts["limits"] | more)))
    assert client.accept_ready(ready) == ConnectionLimits(**vector.facts["limits"])


@pytest.mark.parametrize(
    "server",
    [
        ...,
        None,
        7,
        ["x"],
    ],
)
def test_the_servers_name_is_optional(server: object) -> None:
    (vector,) = [vector for vector in GOOD if vector.name == "handshake_without_token"]
    client = client_of(vector)
    client.answer_challenge(frame(vector, "CHALLENGE"))
    content = vector.facts["limits"] | {"server": server}
    body = dumps({name: value for name, value in content.items() if value is not ...})
    assert (
        client.accept_ready(Frame(FrameType.READY, body=bytearray(body))).server == ""
    )


@pytest.mark.parametrize("vector", [*GOOD, *BAD], ids=str)
def test_transcripts_and_proofs_match_the_vectors(vector: Vector) -> None:
    """.bin contains the frames in order."""
    facts = vector.facts
    names = [name for name in ("hello", "challenge", "auth", "ready") if name in facts]
    assert vector.data.hex() == "".join(facts[name] for name in names)
    if "transcript" not in facts:
        return
    hashed = transcript(
        bytes.fromhex(facts["hello"]), bytes.fromhex(facts["challenge"])
    )
    assert hashed.hex() == facts["transcript"]
    client = key(facts["client_key"])
    server = key(facts["server_key"])
    assert facts.get("client_proof") == (client and client_proof(client, hashed))
    assert facts.get("server_proof") == (server and server_proof(server, hashed))


@pytest.mark.parametrize("vector", BAD, ids=str)
def test_a_bad_frame_is_refused_with_its_code(vector: Vector) -> None:
    """Only the named side refuses the named frame; earlier frames pass."""
    facts = vector.facts
    last = facts["refused_frame"]
    if facts["refused_by"] == "server":
        server = server_of(vector)
        steps = {"HELLO": server.answer_hello, "AUTH": server.answer_auth}
    else:
        client = client_of(vector)
        steps = {"CHALLENGE": client.answer_challenge, "READY": client.accept_ready}  # type: ignore[dict-item]
    for name, step in steps.items():
        if name == last:
            with pytest.raises(ConnectionFaultError) as caught:
                step(frame(vector, name))
            break
        step(frame(vector, name))
    assert caught.value.fault.name == facts["code"]
    assert int(caught.value.fault) == facts["reason"]
    assert caught.value.message.strip()


def test_the_worked_example() -> None:
    """Its values were written down before the code."""
    (golden,) = [vector for vector in GOOD if vector.name == "handshake_golden"]
    assert (
        golden.facts["hello"][:48] == "4f4901000000000000000000000000004b0000004b000000"
    )
    assert (
        golden.facts["challenge"][:48]
        == "4f4902000000000000000000000000004700000047000000"
    )
    assert (
        golden.facts["transcript"]
        == "407bafc917bce6fedb1ef4e09a84f8bf3dd62d4675adc4c455cad85de3f0e484"
    )
    assert (
        golden.facts["client_proof"]
        == "ab6825554945d6acf70f125a2dff7360804f37400c7da3ac6d00c76d86da8f8e"
    )
    assert (
        golden.facts["server_proof"]
        == "0691646e8181041393b16b32a95222e2cece4f85092bbf40b067619ac19ee389"
    )


def hello(**changes: Any) -> Frame:
    """Return a HELLO with changes."""
    body = json.dumps(
        {
            "v": [1, 1],
            "nonce": "c0" * 16,
            "max_frame": LEAST_MAX_FRAME,
        }
        | changes
    ).encode()
    return Frame(FrameType.HELLO, json_length=len(body), body=body)


def test_the_supported_range_is_reported() -> None:
    """ERROR UNSUPPORTED_VERSION names it."""
    with pytest.raises(ConnectionFaultError) as caught:
        ServerHandshake(b"k", bytes(16), LIMITS).answer_hello(hello(v=[2, 9]))
    told = json.loads(caught.value.body())
    assert told["code"] == "UNSUPPORTED_VERSION"
    assert told["v"] == [1, 1]


def test_all_wrong_proofs_get_the_same_answer() -> None:
    """The text tells an unauthenticated client nothing."""
    texts = {
        step_of(vector) for vector in BAD if vector.facts["refused_frame"] == "AUTH"
    } - {None}
    assert len(texts) == 1


def step_of(vector: Vector) -> bytes | None:
    """Return the ERROR body for a refused AUTH; None if the proof was not the cause."""
    server = server_of(vector)
    server.answer_hello(frame(vector, "HELLO"))
    with pytest.raises(ConnectionFaultError) as caught:
        server.answer_auth(frame(vector, "AUTH"))
    if caught.value.fault is ConnectionFault.UNAUTHORIZED:
        return caught.value.body()
    return None


@pytest.mark.parametrize("half", ["server", "client"])
def test_steps_cannot_be_skipped_or_repeated(half: str) -> None:
    """A proof without a transcript would be valid for every connection."""
    proof = json.dumps({"proof": client_proof(b"k", b""), "max_frame": 1}).encode()
    last = Frame(
        FrameType.AUTH if half == "server" else FrameType.READY,
        json_length=len(proof),
        body=proof,
    )
    server = ServerHandshake(b"k", bytes(16), LIMITS)
    client = ClientHandshake(b"k", bytes(16), LEAST_MAX_FRAME)
    with pytest.raises(ConnectionFaultError) as caught:
        (server.answer_auth if half == "server" else client.accept_ready)(last)
    assert caught.value.fault is ConnectionFault.UNEXPECTED_FRAME
    first = hello()
    (challenge,) = feed(
        FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.HELLO], 1),
        server.answer_hello(first),
    )
    client.answer_challenge(challenge)
    again = (
        (server.answer_hello, first)
        if half == "server"
        else (client.answer_challenge, challenge)
    )
    with pytest.raises(ConnectionFaultError) as caught:
        again[0](again[1])
    assert caught.value.fault is ConnectionFault.UNEXPECTED_FRAME


@pytest.mark.parametrize(
    "name",
    [
        "camera/2.1",
        "a" * 99,
        "two\nlines",
        "gr\u00fcn",
        7,
        None,
    ],
)
def test_a_clients_name_is_never_a_fault(name: object) -> None:
    assert ServerHandshake(None, bytes(16), LIMITS).answer_hello(hello(client=name))
