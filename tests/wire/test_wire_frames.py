"""Feed hostile bytes to the frame decoder: only its own exception is raised."""

from __future__ import annotations

import ctypes
import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framed import feed
from hostile_frames import Hostile
from pocketserve_wire.errors import ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import (
    HEADER_BYTES,
    MAX_EXT_BYTES,
    MAX_TARGET_BYTES,
    Extension,
    Frame,
    FrameType,
    encode_frame,
)

MAX_BODY = 1 << 20
Outcome = tuple[list[Frame], object]


def decode(
    data: bytes,
    sizes: list[int],
    allowed: frozenset = ALLOWED[Role.SERVER, HandshakeState.READY],
) -> Outcome:
    """Feed bytes in pieces; return the frames and the fault."""
    decoder = FrameDecoder(allowed, MAX_BODY)
    frames: list[Frame] = []
    position = 0
    try:
        for size in sizes:
            piece = memoryview(data)[position : position + size]
            position += size
            while len(piece):
                space = decoder.buffer()
                count = min(len(space), len(piece))
                space[:count] = piece[:count]
                space.release()
                decoder.received(count)
                piece = piece[count:]
                while (frame := decoder.next()) is not None:
                    frames.append(frame)
    except ConnectionFaultError as fault:
        return frames, (fault.fault, fault.message)
    return frames, decoder.mid_frame


@pytest.mark.parametrize("seed", range(40))
def test_hostile_bytes_give_frames_or_one_fault(seed):
    hostile = Hostile(seed)
    pieces = random.Random(seed)
    for _ in range(50):
        data = b"".join(hostile.connection(25))
        whole = decode(data, [len(data)])
        for sizes in (
            [1] * len(data),
            [pieces.randint(1, 200) for _ in range(len(data))],
        ):
            frames, end = decode(data, sizes)
            assert end == whole[1]
            assert [(one.type, bytes(one.body)) for one in frames] == [
                (one.type, bytes(one.body)) for one in whole[0]
            ]
        for frame in whole[0]:
            assert len(frame.target) <= MAX_TARGET_BYTES
            assert len(frame.body) <= MAX_BODY
            assert sum(map(len, frame.ext.values())) <= MAX_EXT_BYTES


def test_hostile_handshakes():
    hostile = Hostile(7)
    for _ in range(2000):
        data = b"".join(hostile.greeting())
        frames, _ = decode(
            data, [len(data)], ALLOWED[Role.SERVER, HandshakeState.HELLO]
        )
        assert all(len(frame.body) <= 4096 - HEADER_BYTES for frame in frames)


def test_memory_grows_with_received_bytes_not_with_claims():
    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], 2**31)
    feed(
        decoder,
        bytes.fromhex("4f491000010000000000000007000000000000000000ff3f") + b"GET /v2",
    )
    assert len(decoder.buffer()) <= 1 << 20


def request(number: int, target: bytes, body: bytes, json_length: int) -> bytes:
    return encode_frame(
        Frame(
            FrameType.REQUEST,
            number,
            0,
            target,
            {},
            json_length,
            body,
        )
    )


@given(
    st.lists(
        st.sampled_from([b"GET /", b"GET /a", b"GET /b", b"GET /ab", b"POST /a"]),
        max_size=8,
    ),
    st.booleans(),
)
def test_each_frame_owns_its_target(targets, with_ext):
    ext = {Extension.CONTENT_TYPE: b"a/b"} if with_ext else {}
    frames = []
    for number, target in enumerate(targets, 1):
        frames.append(
            Frame(
                FrameType.REQUEST,
                number,
                0,
                target,
                ext,
                body=b"/",
            )
        )
    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], MAX_BODY)
    taken = feed(decoder, b"".join(map(encode_frame, frames)))
    assert [(one.target, one.ext, bytes(one.body)) for one in taken] == [
        (target, ext, b"/") for target in targets
    ]


def long_request(number: int, fill: int, size: int = 100_000) -> bytes:
    body = bytes([fill]) * size
    return encode_frame(
        Frame(FrameType.REQUEST, number, target=b"POST /v2/models/m/infer", body=body)
    )


def address_of(body: memoryview) -> int:
    """Return the address of the first byte."""
    return ctypes.addressof(ctypes.c_char.from_buffer(body))


def kept(reuse: bool = True) -> FrameDecoder:
    decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.READY], MAX_BODY)
    decoder.reuse = reuse
    return decoder


def test_a_long_body_reuses_the_last_ones_memory():
    decoder = kept()
    places = set()
    for number in range(1, 4):
        (frame,) = feed(decoder, long_request(number, number))
        assert bytes(frame.body) == bytes([number]) * 100_000
        places.add(address_of(frame.body))
        del frame
    assert len(places) == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda body: body,
        lambda body: np.frombuffer(body, np.uint8)[10:20],
    ],
)
def test_a_body_in_use_is_not_overwritten(look: Callable[[memoryview], Any]):
    decoder = kept()
    (frame,) = feed(decoder, long_request(1, 1))
    seen = look(frame.body)
    del frame
    (frame,) = feed(decoder, long_request(2, 2))
    assert set(bytes(seen)) == {1}
    assert set(bytes(frame.body)) == {2}


@pytest.mark.parametrize("size", [99_999, 100_001, 20_000])
def test_a_body_of_another_length_gets_new_memory(size: int):
    decoder = kept()
    feed(decoder, long_request(1, 1))
    (frame,) = feed(decoder, long_request(2, 2, size))
    assert bytes(frame.body) == bytes([2]) * size


@pytest.mark.parametrize("end", [FrameDecoder.rest, FrameDecoder.drop])
def test_an_idle_connection_keeps_no_body(end: Callable[[FrameDecoder], None]):
    decoder = kept()
    gc.collect()
    tracemalloc.start()
    try:
        feed(decoder, long_request(1, 1))
        assert tracemalloc.get_traced_memory()[0] > 100_000
        end(decoder)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()


def test_a_decoder_keeps_no_body_by_default():
    decoder = kept(reuse=False)
    tracemalloc.start()
    try:
        feed(decoder, long_request(1, 1))
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
