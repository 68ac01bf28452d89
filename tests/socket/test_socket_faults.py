"""Every protocol error after READY has its number and name, and affects no other
client.
"""

from __future__ import annotations

import threading
import time

import pytest

from framed import feed
from pocketserve_wire.errors import ConnectionFault
from pocketserve_wire.frames import HEADER, Frame, FrameType, encode_frame, json_frame

MIB = 1024 * 1024


def header(
    kind: int,
    request_id: int = 0,
    arg: int = 0,
    *,
    mark: bytes = b"OI",
    flags: int = 0,
    target: int = 0,
    ext: int = 0,
    text: int = 0,
    body: int = 0,
) -> bytes:
    """Return a frame header with any values."""
    return HEADER.pack(
        mark,
        kind,
        flags,
        request_id,
        arg,
        target,
        ext,
        text,
        body,
    )


def request(request_id: int, ext: bytes = b"") -> bytes:
    """Return a REQUEST with these extensions."""
    target = b"GET /v2"
    return (
        header(FrameType.REQUEST, request_id, target=len(target), ext=len(ext))
        + target
        + ext
    )


REQUEST = FrameType.REQUEST
PING = FrameType.PING
CANCEL = FrameType.CANCEL
FAULTS = {
    ConnectionFault.BAD_MARK: {
        "mark": header(PING, mark=b"IO"),
        "first byte": b"H",
        "second byte": b"OJ",
        "http": b"GET / HTTP/1.1\r\n\r\n",
    },
    ConnectionFault.BAD_FRAME: {
        "flags": header(PING, flags=1),
        "flags of a request": header(REQUEST, 1, flags=0x80, target=7),
        "flags of an optional frame": header(0x80, flags=2),
        "no target": header(REQUEST, 1),
        "long target": header(REQUEST, 1, target=1025),
        "target of ping": header(PING, target=1),
        "target of an optional frame": header(0x90, target=1),
        "long ext": header(REQUEST, 1, target=7, ext=4097),
        "ext of ping": header(PING, ext=3),
        "ext of cancel": header(CANCEL, 1, ext=3),
        "json over body": header(REQUEST, 1, target=7, text=2, body=1),
        "json over body of an optional frame": header(0xFF, text=2, body=1),
        "body of ping": header(PING, body=1),
        "body of cancel": header(CANCEL, 1, body=1),
        "body of pong": header(FrameType.PONG, text=1, body=1),
        "arg of cancel": header(CANCEL, 1, 1),
        "error that is not json": header(FrameType.ERROR, text=1, body=2),
        "ext cut in its head": request(1, b"\x02\x01"),
        "ext cut in its value": request(1, b"\x02\x05\x00abcd"),
        "ext twice": request(1, b"\x40\x00\x00" * 2),
        "retry_after of 3 bytes": request(1, b"\x01\x03\x00abc"),
        "empty content type": request(1, b"\x02\x00\x00"),
        "long content type": request(1, b"\x02\x81\x00" + b"a" * 129),
        "content type not ascii": request(1, b"\x02\x01\x00\xe9"),
    },
    ConnectionFault.UNEXPECTED_FRAME: {
        "hello": json_frame(FrameType.HELLO, b"{}"),
        "challenge": json_frame(FrameType.CHALLENGE, b"{}"),
        "auth": json_frame(FrameType.AUTH, b"{}"),
        "ready": json_frame(FrameType.READY, b"{}"),
        "response": header(FrameType.RESPONSE, 1, 200),
        "goaway": json_frame(FrameType.GOAWAY, b"{}"),
    },
    ConnectionFault.FRAME_TOO_LARGE: {
        "body": header(REQUEST, 1, target=7, body=65 * MIB + 1),
        "largest body": header(REQUEST, 1, target=7, body=2**32 - 1),
        "optional frame": header(0x80, body=65_537),
        "error": header(FrameType.ERROR, text=65_537, body=65_537),
    },
    ConnectionFault.BAD_REQUEST_ID: {
        "zero": header(REQUEST, target=7),
        "of ping": header(PING, 1),
        "cancel of nothing": header(CANCEL),
        "repeated": request(3) + request(3),
        "decreasing": request(3) + request(2),
        "decreasing from the end": request(2**32 - 1) + request(1),
    },
    ConnectionFault.UNKNOWN_FRAME: {
        "0x00": header(0),
        "0x05": header(0x05),
        "0x42": header(0x42),
        "0x7f": header(0x7F),
    },
}
CASES = [(fault, name) for fault, cases in FAULTS.items() for name in cases]


@pytest.mark.parametrize(("fault", "name"), CASES, ids=str)
def test_a_protocol_error_is_named_and_ends_the_connection(server, peer, fault, name):
    peer.send(FAULTS[fault][name])
    closed = peer.ends()
    assert closed.fault is fault, closed
    assert set(closed.document) == {"error", "code"}
    assert closed.document["code"] == fault.name


@pytest.mark.parametrize(("fault", "name"), CASES, ids=str)
def test_a_protocol_error_byte_by_byte(server, peer, fault, name):
    for byte in FAULTS[fault][name]:
        try:
            peer.send(bytes([byte]))
        except OSError:
            break  # the server may answer before the last byte
    closed = peer.ends()
    assert closed.fault is fault, closed


def test_a_protocol_error_after_requests_ends_all(peer):
    peer.send(request(1) + request(2) + header(0x05))
    closed = peer.ends()
    assert closed.fault is ConnectionFault.UNKNOWN_FRAME


def test_optional_frames_of_unknown_types_are_skipped(peer):
    optional = [
        header(0x80),
        header(0xFE, 7, 9, ext=4, text=2, body=3) + b"\x01\x02\x03\x04abc",
        header(0x81, body=65_536) + bytes(65_536),
    ]
    peer.send(
        b"".join(
            [
                *optional,
                request(1),
                *optional,
                request(5),
                encode_frame(Frame(PING, arg=3)),
            ]
        )
    )
    kinds = {peer.next().type for _ in range(3)}
    assert kinds == {FrameType.RESPONSE, FrameType.PONG}


def test_an_error_from_the_client_ends_the_connection(peer):
    peer.send(
        json_frame(FrameType.ERROR, b'{"error":"enough","code":"INTERNAL"}', arg=13)
    )
    assert peer.ends().frame is None


def test_pongs_and_cancels_of_unknown_ids_are_skipped(peer):
    peer.send(header(FrameType.PONG, arg=9) + header(CANCEL, 77))
    peer.ping(2**32 - 1)
    assert peer.call("GET /v2").status == 200


@pytest.mark.parametrize(
    ("ext", "status", "code"),
    [
        (b"\x81\x00\x00", 501, "NOT_IMPLEMENTED"),
        (b"\x82\x02\x00ab", 501, "NOT_IMPLEMENTED"),
        (b"\x03\x00\x00\x7f\x02\x00ab", 200, None),
        (b"\x02\x09\x00image/png", 200, None),
    ],
)
def test_extensions(peer, ext, status, code):
    peer.send(request(1, ext))
    answer = peer.answer()
    assert (answer.status, answer.code) == (status, code)
    assert peer.send(request(2)) is None
    assert peer.answer().status == 200


@pytest.mark.parametrize("cut", [1, 2, 23, 24, 30, 40])
def test_a_close_within_a_frame_is_no_error(server, cut):
    with server.connect() as peer:
        peer.send(peer.write("POST /predictions/petals", b"[1,2,3]")[:cut])
        peer.socket.shutdown(1)
        assert peer.ends().frame is None


def test_a_started_frame_must_be_completed_in_time(local):
    server = local({"frame": 0.3})
    for cut in (1, 24, 40):
        with server.connect() as peer:
            peer.send(peer.write("POST /predictions/petals", b"[1,2,3]")[:cut])
            closed = peer.ends()
            assert closed.fault is ConnectionFault.TIMEOUT


def test_complete_optional_frames_do_not_expire_as_an_incomplete_one(local):
    """Each frame ends within the next piece, so some frame is always incomplete."""
    timeouts = 2.0
    quiet = 0.1
    with local({"frame": timeouts, "quiet": quiet}).connect() as peer:
        frame = header(0x80, body=8) + bytes(8)
        deadline = time.monotonic() + 1.25 * timeouts
        pause = threading.Event()
        peer.send(frame[:10])
        while time.monotonic() < deadline:
            pause.wait(quiet / 2)
            peer.send(frame[10:] + frame[:10])
        peer.send(frame[10:])
        pause.wait(1.25 * timeouts)  # and the last one leaves no deadline behind
        assert peer.call("GET /v2").status == 200


def test_single_bytes_do_not_extend_the_frame_deadline(local):
    with local({"frame": 0.3}).connect() as peer:
        peer.socket.settimeout(0.02)
        frame = iter(peer.write("POST /predictions/petals", bytes(1000)))
        while not peer.waiting:
            try:
                peer.send(bytes([next(frame)]))
                peer.waiting += feed(peer.decoder, peer.socket.recv(65536))
            except TimeoutError:
                continue
        assert peer.ends().fault is ConnectionFault.TIMEOUT
