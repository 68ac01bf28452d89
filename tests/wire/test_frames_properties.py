"""Test the frame codec with random frames, noise and mutations, and its memory."""

from __future__ import annotations

import contextlib
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framed import encode_header, feed
from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError
from pocketserve_wire.frame_decoder import (
    ALIGNMENT,
    ALLOWED,
    BUFFER_BYTES,
    FrameDecoder,
    HandshakeState,
    Role,
)
from pocketserve_wire.frames import (
    CRITICAL,
    HEADER_BYTES,
    MAX_EXT_BYTES,
    Extension,
    Frame,
    FrameType,
    Header,
    encode_ext,
    encode_frame,
    encode_head,
    encode_retry_after,
    parse_ext,
    parse_header,
)
from pocketserve_wire.limits import FIRST_BODY_BYTES, GROWTH_BYTES
from wire.wire_bodies import SETTINGS
from wire.wire_vectors import load, summary

MIB = 1024 * 1024
MAX = 64 * MIB
STATES = {
    "hello": ALLOWED[Role.SERVER, HandshakeState.HELLO],
    "auth": ALLOWED[Role.SERVER, HandshakeState.AUTH],
    "challenge": ALLOWED[Role.CLIENT, HandshakeState.HELLO],
    "ready": ALLOWED[Role.CLIENT, HandshakeState.AUTH],
    "server": ALLOWED[Role.SERVER, HandshakeState.READY],
    "client": ALLOWED[Role.CLIENT, HandshakeState.READY],
}

u32 = st.integers(0, 2**32 - 1)
ids = st.integers(1, 2**32 - 1)
exts = st.dictionaries(
    st.integers(0, 255).filter(lambda tag: tag not in iter(Extension)),
    st.binary(max_size=20),
    max_size=4,
)
known_exts = st.fixed_dictionaries(
    {},
    optional={
        1: st.binary(min_size=4, max_size=4),
        2: st.text("ab/+; ", min_size=1, max_size=128).map(str.encode),
    },
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Generate any frame that a server or client may read after READY."""
    ready = (
        ALLOWED[Role.SERVER, HandshakeState.READY]
        | ALLOWED[Role.CLIENT, HandshakeState.READY]
    )
    kind = draw(st.sampled_from(sorted(ready)))
    if kind in (FrameType.PING, FrameType.PONG):
        return Frame(kind, arg=draw(u32))
    if kind is FrameType.CANCEL:
        return Frame(kind, draw(ids))
    body = draw(st.binary(max_size=300))
    ext = draw(exts) | draw(known_exts)
    if kind in (FrameType.GOAWAY, FrameType.ERROR):
        request_id = 0
        if kind is FrameType.GOAWAY:
            request_id = draw(u32)
        return Frame(
            kind, request_id, draw(u32), ext=ext, json_length=len(body), body=body
        )
    json_length = draw(st.integers(0, len(body)))
    if kind is FrameType.PART:
        return Frame(kind, draw(ids), json_length=json_length, body=body)
    if kind is FrameType.RESPONSE:
        return Frame(
            kind, draw(ids), draw(st.integers(200, 599)), b"", ext, json_length, body
        )
    target = draw(st.binary(min_size=1, max_size=1024))
    return Frame(
        kind,
        draw(ids),
        draw(u32),
        target,
        ext,
        json_length,
        body,
    )


def decoder_for(frame: Frame) -> FrameDecoder:
    """Return a decoder of the frame's receiver."""
    return FrameDecoder(
        ALLOWED[Role.SERVER, HandshakeState.READY]
        if frame.type in ALLOWED[Role.SERVER, HandshakeState.READY]
        else ALLOWED[Role.CLIENT, HandshakeState.READY],
        MAX,
    )


@SETTINGS
@given(frames(), st.lists(st.integers(0, 2000), max_size=5))
def test_random_frames_round_trip(frame: Frame, cuts: list[int]) -> None:
    """Frames are cut at random positions."""
    data = encode_frame(frame)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = decoder_for(frame)
    found = [
        f
        for start, end in itertools.pairwise(bounds)
        for f in feed(decoder, data[start:end])
    ]
    (one,) = found
    assert one.type == frame.type
    assert one.request_id == frame.request_id
    assert one.arg == frame.arg
    assert one.target == frame.target
    assert list(one.ext.items()) == list(frame.ext.items())
    assert one.json_length == frame.json_length
    assert bytes(one.body) == frame.body
    assert one.discarded is False
    assert encode_frame(one) == data
    assert encode_head(frame, len(frame.body)) + frame.body == data


@SETTINGS
@given(
    st.sampled_from(sorted(STATES)),
    st.booleans(),
    st.binary(max_size=200),
    st.integers(0, 30),
)
def test_noise_raises_nothing_but_faults(
    state: str, listens: bool, noise: bytes, kept: int
) -> None:
    """Some of the random bytes follow the start of a valid header."""
    start = encode_header(
        Header(
            FrameType.REQUEST,
            1,
            0,
            5,
            3,
            2,
            9,
        )
    )[:kept]
    decoder = FrameDecoder(STATES[state], MAX, listens=listens)
    with contextlib.suppress(ConnectionFaultError):
        for frame in feed(decoder, start + noise):
            assert frame.type in STATES[state]


@SETTINGS
@given(st.binary(max_size=64))
def test_random_extensions_are_read_or_refused(data: bytes) -> None:
    """Extensions that are read are encoded to the same bytes again."""
    with contextlib.suppress(ConnectionFaultError):
        assert encode_ext(parse_ext(data)) == data


def test_mutated_vectors_are_read_or_refused() -> None:
    """There are 200,000 damaged frames."""
    chance = random.Random(20260101)
    vectors = [
        v
        for folder in ("valid", "invalid")
        for v in load(folder, "frames")
        if len(v.data) < 400
    ]
    outcomes = dict.fromkeys(["read", "refused", "waiting"], 0)
    for number in range(200_000):
        vector = vectors[number % len(vectors)]
        data = bytearray(vector.data)
        for _ in range(chance.randint(1, 3)):
            position = chance.randrange(min(len(data), 64))
            data[position] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, data[position] ^ (1 << chance.randrange(8)))
            )
        decoder = vector.decoder()
        try:
            outcomes["read" if feed(decoder, data) else "waiting"] += 1
        except ConnectionFaultError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 1000, outcomes


@pytest.mark.parametrize(
    "announced",
    [
        FIRST_BODY_BYTES + 1,
        64 * MIB,
    ],
)
def test_memory_grows_with_received_bytes_only(announced: int) -> None:
    """Ten bytes of an announced 64 MiB take 1 MiB.

    Later steps add 4 MiB or a quarter.
    """
    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], announced)
    head = (
        encode_header(
            Header(
                FrameType.REQUEST,
                1,
                0,
                6,
                0,
                0,
                announced,
            )
        )
        + b"GET /x"
    )
    tracemalloc.start()
    try:
        assert feed(decoder, head + bytes(10)) == []
        len(decoder.buffer())
        assert tracemalloc.get_traced_memory()[1] < 2.5 * FIRST_BODY_BYTES
        sent = 10
        piece = bytes(BUFFER_BYTES)
        while sent < min(announced, 24 * MIB):
            space = decoder.buffer()
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            decoder.received(count)
            assert decoder.next() is None or sent + count == announced
            sent += count
            # At any time: the body was not copied either.
            most = tracemalloc.get_traced_memory()[1]
            step = max(FIRST_BODY_BYTES, min(sent, max(GROWTH_BYTES, sent // 4)))
            # The allocator of bytearrays may itself take an eighth more.
            assert most <= 1.125 * (sent + step) + 2 * BUFFER_BYTES
    finally:
        tracemalloc.stop()


def test_an_unauthenticated_frame_reserves_no_memory() -> None:
    """Before READY, the header of a frame over 4 KiB is refused."""
    for allowed in (
        ALLOWED[Role.SERVER, HandshakeState.HELLO],
        ALLOWED[Role.SERVER, HandshakeState.AUTH],
        ALLOWED[Role.CLIENT, HandshakeState.HELLO],
        ALLOWED[Role.CLIENT, HandshakeState.AUTH],
    ):
        kind = min(allowed)
        decoder = FrameDecoder(allowed, MAX)
        with pytest.raises(ConnectionFaultError) as caught:
            feed(
                decoder,
                encode_header(
                    Header(
                        kind,
                        0,
                        0,
                        0,
                        0,
                        64 * MIB,
                        64 * MIB,
                    )
                ),
            )
        assert caught.value.fault is ConnectionFault.FRAME_TOO_LARGE


def test_discarded_bodies_take_no_memory() -> None:
    """A body that is not admitted is read into the same small buffer repeatedly."""
    decoder = FrameDecoder(
        ALLOWED[Role.SERVER, HandshakeState.READY], MAX, lambda header: False
    )
    head = (
        encode_header(
            Header(
                FrameType.REQUEST,
                1,
                0,
                6,
                0,
                0,
                16 * MIB,
            )
        )
        + b"GET /x"
    )
    feed(decoder, head)
    piece = bytes(MIB)
    tracemalloc.start()
    try:
        found = [frame for _ in range(16) for frame in feed(decoder, piece)]
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    (frame,) = found
    assert frame.discarded
    assert frame.body == b""
    assert not decoder.mid_frame


def test_large_bodies_are_complete() -> None:
    """The body grows in four steps and is cut at odd positions."""
    body = np.random.default_rng(1).bytes(5 * MIB + 3)
    data = encode_frame(
        Frame(FrameType.RESPONSE, 9, 200, ext={2: b"image/png"}, body=body)
    )
    decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.READY], MAX)
    pieces = []
    for start in range(0, len(data), 70_001):
        pieces.append(data[start : start + 70_001])
    (frame,) = [frame for piece in pieces for frame in feed(decoder, piece)]
    assert frame.body == body
    assert frame.ext == {2: b"image/png"}


@pytest.mark.parametrize("target_length", range(1, 18))
@pytest.mark.parametrize(
    "ext",
    [
        {},
        {9: b"abc"},
    ],
    ids=["no ext", "ext"],
)
@pytest.mark.parametrize(
    "size",
    [
        64,
        2 * MIB,
    ],
    ids=["short", "long"],
)
def test_aligned_tensors_stay_aligned_in_memory(
    target_length: int, ext: dict[int, bytes], size: int
) -> None:
    """A multiple of 8 in the body is one in memory, as over HTTP."""
    frame = Frame(
        FrameType.REQUEST,
        1,
        0,
        b"x" * target_length,
        ext,
        0,
        bytes(size),
    )
    for pieces in (
        [encode_frame(frame)],
        [encode_frame(frame)[:30], encode_frame(frame)[30:]],
    ):
        decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], MAX)
        (found,) = [f for piece in pieces for f in feed(decoder, piece)]
        assert np.frombuffer(found.body, np.uint8).ctypes.data % ALIGNMENT == 0
        assert found.target == frame.target
        assert len(found.body) == size


@pytest.mark.parametrize(
    "step",
    [
        BUFFER_BYTES - 1,
        BUFFER_BYTES,
        2**20,
    ],
)
def test_a_full_buffer_may_end_within_a_header(step: int) -> None:
    """24 does not divide 65,536: the start of a header moves to the buffer's front."""
    count = 3 * BUFFER_BYTES // HEADER_BYTES
    data = b"".join(
        encode_frame(Frame(FrameType.PING, arg=number)) for number in range(count)
    )
    decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.READY], MAX)
    found = [
        frame.arg
        for start in range(0, len(data), step)
        for frame in feed(decoder, data[start : start + step])
    ]
    assert found == list(range(count))


def test_bodies_do_not_share_memory() -> None:
    """A kept frame is unchanged while later ones are read."""
    first = encode_frame(
        Frame(FrameType.RESPONSE, 1, 200, body=b"first", json_length=5)
    )
    second = encode_frame(
        Frame(FrameType.RESPONSE, 2, 200, body=b"SECND", json_length=5)
    )
    decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.READY], MAX)
    kept = feed(decoder, first + second)
    feed(decoder, second * 3000)
    assert [bytes(frame.body) for frame in kept] == [b"first", b"SECND"]


def test_a_stale_buffer_view_is_revoked() -> None:
    """An owner that keeps it can't stop the decoder's growth or write into a frame."""
    decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.READY], MAX)
    feed(
        decoder,
        encode_header(
            Header(
                FrameType.RESPONSE,
                1,
                200,
                0,
                0,
                0,
                3 * MIB,
            )
        ),
    )
    view = decoder.buffer()
    decoder.received(len(view))
    assert decoder.next() is None
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    assert len(decoder.buffer()) > 0


def test_an_end_within_a_frame_is_detected() -> None:
    data = encode_frame(Frame(FrameType.REQUEST, 1, 0, b"GET /", body=b"abc"))
    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], MAX)
    states = []
    for byte in data:
        feed(decoder, bytes([byte]))
        states.append((decoder.mid_frame, decoder.buffered))
    header = [(True, True)] * (HEADER_BYTES - 1)
    assert states == [
        *header,
        *[(True, False)] * (len(data) - len(header) - 1),
        (False, False),
    ]


def test_admit_sees_each_request_header_once() -> None:
    seen: list[int] = []

    def admit(header: Header) -> bool:
        seen.append(header.request_id)
        return header.request_id != 2

    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], MAX, admit)
    data = []
    for number in (1, 2, 3):
        data.append(
            encode_frame(Frame(FrameType.REQUEST, number, 0, b"GET /", body=b"abc"))
        )
    ping = encode_frame(Frame(FrameType.PING))
    feed(decoder, data[0][:HEADER_BYTES])
    assert seen == [1]
    rest = feed(decoder, data[0][HEADER_BYTES:] + ping + b"".join(data[1:]) + ping)
    assert seen == [1, 2, 3]
    assert [summary(frame)["discarded"] for frame in rest] == [
        False,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "milliseconds",
    [
        0,
        1,
        2**31,
        2**32 - 1,
    ],
)
def test_retry_after_is_clipped_and_round_trips(milliseconds: int) -> None:
    assert int.from_bytes(encode_retry_after(milliseconds), "little") == milliseconds
    assert (
        encode_retry_after(2**40) == encode_retry_after(2**32 - 1) == bytes([255] * 4)
    )
    assert encode_retry_after(-5) == bytes(4)


def test_a_header_can_be_checked_without_a_decoder() -> None:
    """The result is the decoder's."""
    with pytest.raises(ConnectionFaultError) as caught:
        parse_header(b"OJ" + bytes(22))
    assert caught.value.fault is ConnectionFault.BAD_MARK
    assert CRITICAL == 0x80  # a response is matched by its tag


def test_the_fast_path_for_requests_checks_the_same() -> None:
    """Both paths agree at each limit."""
    for target in (0, 1, 1024, 1025):
        for ext in (0, MAX_EXT_BYTES, MAX_EXT_BYTES + 1):
            for request_id in (0, 1):
                for json_length in (4, 5):
                    header = Header(
                        FrameType.REQUEST, request_id, 0, target, ext, json_length, 4
                    )
                    good = (
                        1 <= target <= 1024
                        and ext <= MAX_EXT_BYTES
                        and request_id > 0
                        and json_length <= 4
                    )
                    try:
                        assert parse_header(encode_header(header)) == header
                        assert good
                    except ConnectionFaultError:
                        assert not good
