"""WAV files of recorders, and damaged or hostile ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.tasks.audio.wav import Sound, is_wav, read_wav
from pocketserve_wire import ApiError, ErrorCode
from sounds import chunk, format_chunk, stored, tone, wav

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
)
TONE = tone(0.05, channels=2)


def read(body: bytes, *, mono: bool = False, seconds: float = 60) -> Sound:
    """Return the sound of a file."""
    return read_wav(memoryview(body), seconds, mono=mono)


FORMATS = [
    (8, False),
    (16, False),
    (24, False),
    (32, False),
    (32, True),
    (64, True),
]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("sub", [False, True], ids=["plain", "extensible"])
@pytest.mark.parametrize(("bits", "floating"), FORMATS)
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_wav_formats(
    channels: int, bits: int, floating: bool, sub: bool, order: str
) -> None:
    """Every width, number of channels and byte order gives the same samples."""
    samples = tone(0.02, channels=channels) * np.linspace(1, 0.5, channels)
    found = read(
        wav(
            samples,
            44_100,
            bits,
            floating=floating,
            order=order,
            sub=sub,
        )
    )
    assert found.rate == 44_100
    assert found.samples.dtype == np.float32
    np.testing.assert_allclose(
        found.samples, samples, atol=1 / 128 if bits == 8 else 1 / 32000
    )
    mixed = read(
        wav(
            samples,
            44_100,
            bits,
            floating=floating,
            order=order,
            sub=sub,
        ),
        mono=True,
    )
    np.testing.assert_allclose(
        mixed.samples[:, 0], found.samples.mean(axis=1), atol=1e-6
    )


MU_LAW = {
    0x00: -32124,
    0x0F: -16764,
    0x7F: 0,
    0x80: 32124,
    0xF0: 120,
    0xFF: 0,
}
A_LAW = {
    0x2A: -32256,
    0xAA: 32256,
    0xD5: 8,
    0x55: -8,
    0x80: 5504,
}


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (7, MU_LAW),
        (6, A_LAW),
    ],
    ids=["mu-law", "A-law"],
)
def test_companded_samples(code: int, table: dict[int, int]) -> None:
    """The telephone's 8-bit codes equal values of G.711's tables."""
    body = (
        b"RIFF\0\0\0\0WAVE"
        + format_chunk(code, 1, 8000, 8)
        + chunk(b"data", bytes(table))
    )
    assert [
        round(value * 32768) for value in read(body).samples[:, 0].tolist()
    ] == list(table.values())


def test_wide_containers() -> None:
    """Of 24 bits in four bytes, the upper three bytes count."""
    body = (
        b"RIFF\0\0\0\0WAVE"
        + format_chunk(1, 2, 8000, 24, align=8)
        + chunk(b"data", stored(TONE, 32))
    )
    np.testing.assert_allclose(read(body).samples, TONE, atol=1e-6)


WHOLE = wav(TONE)
DATA = chunk(b"data", stored(TONE, 16))
ODD = {
    "JUNK in front": wav(TONE, before=chunk(b"JUNK", b"\0" * 28)),
    "LIST in front, of odd size": wav(TONE, before=chunk(b"LIST", b"INFO!")),
    "odd size without padding": wav(TONE, before=chunk(b"LIST", b"INFO!")[:-1]),
    "chunks behind": WHOLE + chunk(b"LIST", b"INFOISFT"),
    "a RIFF size of 0": wav(TONE, riff=0),
    "a RIFF size that is too large": wav(TONE, riff=2**32 - 1),
    "streamed: size of samples 0": wav(TONE, size=0),
    "streamed: size of samples all ones": wav(TONE, size=2**32 - 1),
    "RF64": b"RF64\xff\xff\xff\xffWAVE"
    + chunk(b"ds64", b"\0" * 28)
    + wav(TONE, size=2**32 - 1)[12:],
    "a wrong byte rate and alignment": WHOLE[:28]
    + b"\xff\xff\xff\xff\0\0"
    + WHOLE[34:],
    "a last frame cut off": wav(TONE, size=2**31)[:-1],
}


@pytest.mark.parametrize("case", ODD)
def test_malformed_files_with_valid_samples(case: str) -> None:
    """Errors around the samples are ignored."""
    found = read(ODD[case]).samples
    expected = len(TONE) - (case == "a last frame cut off")
    assert len(found) == expected
    np.testing.assert_allclose(found, TONE[:expected], atol=1e-4)


BAD = {
    "nothing": (b"RIFF", "ends before its samples"),
    "no chunks": (b"RIFF\0\0\0\0WAVE", "ends before its samples"),
    "no samples' chunk": (WHOLE[:36], "ends before its samples"),
    "no samples": (wav(TONE[:0]), "holds no samples"),
    "samples first": (b"RIFF\0\0\0\0WAVE" + DATA, "in front of their format"),
    "a short format": (
        b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", b"\1\0\1\0") + DATA,
        "format is cut off",
    ),
    "no channels": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(1, 0, 8000, 16, align=2) + DATA,
        "0 channels",
    ),
    "many channels": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(1, 65, 8000, 16) + DATA,
        "65 channels",
    ),
    "no rate": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(1, 1, 0, 16) + DATA,
        "0 samples per second",
    ),
    "ADPCM": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(2, 1, 8000, 4) + DATA,
        "format 2, 4 bits",
    ),
    "MP3 inside": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(0x55, 1, 8000, 0) + DATA,
        "save it as 16-bit PCM",
    ),
    "half floats": (
        b"RIFF\0\0\0\0WAVE" + format_chunk(3, 1, 8000, 16) + DATA,
        "format 3, 16 bits",
    ),
    "NaN": (wav(np.array([[np.nan]]), bits=32, floating=True), "not numbers"),
    "infinite": (wav(np.array([[np.inf]]), bits=64, floating=True), "not numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_files_are_rejected_with_one_sentence(case: str) -> None:
    body, text = BAD[case]
    with pytest.raises(ApiError, match=text) as caught:
        read(body)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_long_files_are_rejected_before_decoding() -> None:
    """The actual length counts, not the announced one."""
    with pytest.raises(
        ApiError, match=r"lasts 0\.2 seconds .* limits are 0\.1 seconds"
    ):
        read(wav(tone(0.2)), seconds=0.1)


def test_is_wav() -> None:
    """The first bytes suffice, even alone."""
    assert all(is_wav(memoryview(WHOLE[:count])) for count in (4, 8, 10, 12, 100))
    assert not is_wav(memoryview(b"RIFF\0\0\0\0WEBPVP8 "))
    assert not is_wav(memoryview(b"RIF"))


@given(st.data())
@SETTINGS
def test_random_bytes_are_a_sound_or_rejected(data: st.DataObject) -> None:
    """Truncated and damaged files raise only ApiError and never give more than they
    contain.
    """
    whole = bytearray(
        data.draw(
            st.sampled_from(
                [
                    WHOLE,
                    ODD["RF64"],
                    wav(TONE, bits=24, sub=True),
                ]
            )
        )
    )
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, 79), st.integers(0, 255)), max_size=4)
    ):
        whole[place] = value
    body = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    code: ErrorCode | None = None
    try:
        found = read(body)
    except ApiError as error:
        found, code = None, error.code  # type: ignore[assignment]
    assert (
        code is ErrorCode.INVALID_INPUT
        if found is None
        else np.isfinite(found.samples).all()
    )
    assert found is None or 0 < found.samples.size <= len(body)


@given(
    st.lists(st.integers(-32768, 32767), min_size=1, max_size=200),
    st.integers(1, 4),
    st.integers(1000, 768_000),
)
@SETTINGS
def test_round_trip(values: list[int], channels: int, rate: int) -> None:
    """16-bit samples are exact."""
    samples = np.resize(np.array(values), (len(values), channels)) / 32768
    found = read(wav(samples, rate))
    assert found.rate == rate
    assert found.seconds == len(values) / rate
    assert (found.samples * 32768 == np.rint(samples * 32768)).all()
    assert struct.unpack_from("<I", wav(samples, rate), 24) == (rate,)
