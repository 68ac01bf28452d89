"""Decode and encode the socket protocol's vectors: whole, cut, and followed by more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framed import encode_header, feed
from pocketserve_wire import DATATYPES
from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError, HttpPeerError
from pocketserve_wire.frame_decoder import FrameDecoder
from pocketserve_wire.frames import Frame, FrameType, Header, encode_frame
from pocketserve_wire.oip import decode_infer_request, decode_infer_response
from pocketserve_wire.tensor import to_raw
from wire.wire_bodies import SETTINGS
from wire.wire_vectors import FOLDER, Vector, load, summary

GOOD = load("valid", "frames")
BAD = load("invalid", "frames")
# Bytes that are legal after any frame that follows READY.
PONG = encode_header(
    Header(
        FrameType.PONG,
        0,
        77,
        0,
        0,
        0,
        0,
    )
)


def expected(vector: Vector) -> list[dict[str, object]]:
    """Return the vector's frames without the notes about their bodies."""
    return [
        {key: value for key, value in frame.items() if key != "tensors"}
        for frame in vector.facts["frames"]
    ]


def feed_all(decoder: FrameDecoder, pieces: Iterable[bytes]) -> list[Frame]:
    """Return all frames of a stream in pieces."""
    return [frame for piece in pieces for frame in feed(decoder, piece)]


def split(data: bytes, step: int) -> list[bytes]:
    """Return the data in pieces of ``step`` bytes."""
    return [data[start : start + step] for start in range(0, len(data), step)]


def test_files_are_the_generators_output() -> None:
    """No vector was edited by hand, and none is missing or left over."""
    command = [sys.executable, "-E", str(FOLDER / "make_vectors.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_there_are_enough_small_vectors() -> None:
    """Test suites of other languages may rely on it."""
    assert len(GOOD) >= 60
    assert len(BAD) >= 80
    assert max(path.stat().st_size for path in FOLDER.rglob("*.bin")) <= 128 * 1024


def test_every_fault_that_bytes_can_cause_has_vectors() -> None:
    """Faults of time and load have no bytes of their own."""
    codes = {
        vector.facts["code"]
        for kind in ("frames", "handshake")
        for vector in load("invalid", kind)
    }
    by_circumstances = {"TIMEOUT", "TOO_MANY_CONNECTIONS", "SLOW_READER", "INTERNAL"}
    assert codes == {fault.name for fault in ConnectionFault} - by_circumstances


@pytest.mark.parametrize(
    "step",
    [
        1,
        7,
        65_536,
        2**20,
    ],
)
@pytest.mark.parametrize("vector", GOOD, ids=str)
def test_valid_vectors_in_pieces(vector: Vector, step: int) -> None:
    if step == 1 and len(vector.data) > 16_384:
        step = 3
    decoder = vector.decoder()
    frames = feed_all(decoder, split(vector.data, step))
    assert [summary(frame) for frame in frames] == expected(vector)
    assert not decoder.mid_frame


@pytest.mark.parametrize(
    "vector", [v for v in GOOD if v.facts["state"] == "ready"], ids=str
)
def test_valid_vectors_followed_by_more(vector: Vector) -> None:
    """Another frame and the start of a third don't disturb the first."""
    decoder = vector.decoder()
    *frames, pong = feed(decoder, vector.data + PONG + PONG[:5])
    assert [summary(frame) for frame in frames] == expected(vector)
    assert pong.type == FrameType.PONG
    assert pong.arg == 77
    assert decoder.mid_frame


@SETTINGS
@given(st.data())
def test_valid_vectors_in_a_row_cut_at_random(data: st.DataObject) -> None:
    """The vectors are control frames and answers."""
    candidates = []
    for v in GOOD:
        if (
            v.facts["receiver"] == "client"
            and v.facts["state"] == "ready"
            and len(v.data) < 8192
        ):
            candidates.append(v)
    chosen = data.draw(st.lists(st.sampled_from(candidates), min_size=2, max_size=4))
    stream = b"".join(vector.data for vector in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [
        stream[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    frames = feed_all(chosen[0].decoder(), pieces)
    assert [{**summary(f), "max": 0} for f in frames] == [
        {**e, "max": 0} for v in chosen for e in expected(v)
    ]


@pytest.mark.parametrize("vector", [v for v in GOOD if v.facts["canonical"]], ids=str)
def test_valid_vectors_encode_to_the_same_bytes(vector: Vector) -> None:
    assert (
        b"".join(encode_frame(frame) for frame in feed(vector.decoder(), vector.data))
        == vector.data
    )


@pytest.mark.parametrize(
    ("vector", "number"),
    [
        (v, n)
        for v in GOOD
        for n, frame in enumerate(v.facts["frames"])
        if "tensors" in frame
    ],
    ids=lambda value: str(value),
)
def test_inference_bodies_contain_the_described_tensors(
    vector: Vector, number: int
) -> None:
    frame = feed(vector.decoder(), vector.data)[number]
    decode = decode_infer_response
    if frame.type == FrameType.REQUEST:
        decode = decode_infer_request
    message = decode(frame.body, frame.json_length)
    tensors = message.inputs if frame.type == FrameType.REQUEST else message.outputs  # type: ignore[union-attr]
    wanted = vector.facts["frames"][number]["tensors"]
    assert [
        (t.name, t.datatype, list(t.shape), bytes(to_raw(t)).hex()) for t in tensors
    ] == [
        (
            t["name"],
            t["datatype"],
            t["shape"],
            t["raw"],
        )
        for t in wanted
    ]


def test_every_datatype_goes_both_ways() -> None:
    """The raw form works for all, the JSON form where it exists."""
    seen = {
        (
            frame["name"],
            tensor["datatype"],
            tensor["binary"],
        )
        for vector in GOOD
        for frame in vector.facts["frames"]
        for tensor in frame.get("tensors", ())
    }
    for direction in ("REQUEST", "RESPONSE"):
        assert {
            datatype for way, datatype, raw in seen if way == direction and raw
        } == set(DATATYPES)
        assert {d for way, d, raw in seen if way == direction and not raw} == set(
            DATATYPES
        ) - {"FP16", "BF16"}


def until_fault(
    decoder: FrameDecoder, pieces: list[bytes]
) -> tuple[list[Frame], ConnectionFaultError, int]:
    """Return the frames before the fault, the fault, and the number of pieces."""
    frames = []
    for number, piece in enumerate(pieces, 1):
        rest = piece
        while rest:
            space = decoder.buffer()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            decoder.received(count)
            rest = rest[count:]
            try:
                while (frame := decoder.next()) is not None:
                    frames.append(frame)
            except ConnectionFaultError as error:
                return frames, error, number
    pytest.fail("no fault was found")


@pytest.mark.parametrize(
    "step",
    [
        1,
        24,
        2**20,
    ],
)
@pytest.mark.parametrize("vector", BAD, ids=str)
def test_invalid_vectors_in_pieces(vector: Vector, step: int) -> None:
    """Frames before the fault are found, at any piece size."""
    frames, error, _ = until_fault(vector.decoder(), split(vector.data, step))
    assert error.fault.name == vector.facts["code"]
    assert int(error.fault) == vector.facts["reason"]
    assert isinstance(error, HttpPeerError) == vector.facts["http"]
    assert len(frames) == vector.facts["good_frames"]


@pytest.mark.parametrize("vector", BAD, ids=str)
def test_invalid_vectors_followed_by_more(vector: Vector) -> None:
    with pytest.raises(ConnectionFaultError) as caught:
        feed(vector.decoder(), vector.data + PONG * 3)
    assert caught.value.fault.name == vector.facts["code"]


@pytest.mark.parametrize(
    "vector", [v for v in BAD if v.facts["code"] != "BAD_MARK"], ids=str
)
def test_faults_are_found_as_early_as_possible(vector: Vector) -> None:
    """A bad header needs only the header, bad extensions the whole frame."""
    _, _, taken = until_fault(vector.decoder(), split(vector.data, 1))
    last_header = vector.data.rindex(b"OI", 0, len(vector.data) - 22)
    assert taken == (
        len(vector.data) if vector.facts["needs_all"] else last_header + 24
    )
