"""Decode WAV files from untrusted bytes.

The standard library's ``wave`` reads neither floating point nor companded samples,
rejects most extensible headers and trusts the sizes in a file. Recorders write all of
these, and many leave sizes at 0 or at their maximum if a recording is streamed or cut
off: the samples that are present count.

Formats are those of Microsoft's "Multiple channel audio data and WAVE files"; A-law and
mu-law those of ITU-T G.711.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tensors import Array

PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
MAX_CHUNKS = 1000  # before the samples; real files have fewer than ten
MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 1000, 768_000
MAX_FRAMES = 1 << 25  # of decoded sound: 128 MiB as mono float32; 11 minutes at 48 kHz
BLOCK_FRAMES = 1 << 16
_KNOWN_IDS = frozenset(
    (
        b"data",
        b"fmt ",
        b"fact",
        b"LIST",
        b"JUNK",
        b"bext",
        b"cue ",
        b"smpl",
        b"PEAK",
        b"id3 ",
    )
)
_WIDTHS = {
    PCM: (1, 2, 3, 4),
    FLOAT: (4, 8),
    A_LAW: (1,),
    MU_LAW: (1,),
}
"""Supported bytes per sample, by format."""


class Sound(NamedTuple):
    """Samples from -1 to 1, float32 [frames, channels], and frames per second."""

    samples: Array
    rate: int

    @property
    def seconds(self) -> float:
        """Return the length of the sound."""
        return len(self.samples) / self.rate


class SampleFormat(NamedTuple):
    """The layout of samples in memory.

    Attributes:
        code: PCM, FLOAT, A_LAW or MU_LAW.
        width: bytes per sample; its valid bits are the upper ones.
        order: byte order, ``<`` or ``>``.
    """

    code: int
    channels: int
    rate: int
    width: int
    order: str = "<"


def is_wav(body: memoryview) -> bool:
    """Return whether the bytes start like a WAV file.

    That is RIFF, its big-endian variant RIFX or its 64-bit variant RF64.
    """
    kind = b"WAVE"[: max(0, len(body) - 8)]
    if bytes(body[8:12]) != kind:
        return False
    return bytes(body[:4]) in (b"RIFF", b"RIFX", b"RF64")


def read_wav(body: memoryview, max_seconds: float, *, mono: bool) -> Sound:
    """Decode a WAV file.

    Args:
        max_seconds: a longer file is rejected before any sample is decoded.
        mono: mix the channels down to their mean.
    """
    order = ">" if bytes(body[:4]) == b"RIFX" else "<"
    form: SampleFormat | None = None
    for name, chunk in _chunks(body, order):
        if name == b"fmt ":
            form = _read_format(chunk, order)
        elif name == b"data":
            if form is None:
                raise invalid_input("the WAV file has samples in front of their format")
            return decode(chunk, form, max_seconds, mono=mono)
    raise invalid_input("the WAV file ends before its samples")


def decode(
    data: memoryview, form: SampleFormat, max_seconds: float, *, mono: bool
) -> Sound:
    """Convert samples in memory to numbers; an incomplete last frame is dropped."""
    size = form.width * form.channels
    frames = len(data) // size
    _check_length(frames, form.rate, max_seconds)
    channels = form.channels
    if mono:
        channels = 1
    samples = np.empty((frames, channels), np.float32)
    # Mixing down block by block saves the memory of many channels.
    for first in cancellable(range(0, frames, BLOCK_FRAMES)):
        last = min(first + BLOCK_FRAMES, frames)
        block = _to_real(data[first * size : last * size], form)
        block = block.reshape(-1, form.channels)
        if mono:
            block = block.mean(axis=1, keepdims=True)
        samples[first:last] = block
        if not np.isfinite(block).all():
            raise invalid_input(
                "the sound has samples that are not numbers (NaN or infinite)"
            )
    return Sound(samples, form.rate)


def _check_length(frames: int, rate: int, max_seconds: float) -> None:
    """Raise unless a sound has samples, and not too many."""
    if not frames:
        raise invalid_input("the sound holds no samples")
    if frames > MAX_FRAMES or frames > max_seconds * rate:
        raise invalid_input(
            f"the sound lasts {frames / rate:.1f} seconds ({frames} frames); the "
            f"limits are {max_seconds:g} seconds (audio.max_seconds in model.toml) and "
            f"{MAX_FRAMES} frames; send it in parts"
        )


def _chunks(body: memoryview, order: str) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and content of each chunk; the last may be cut off."""
    at = 12
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(body):
            return
        name = bytes(body[at : at + 4])
        (size,) = struct.unpack_from(f"{order}I", body, at + 4)
        at += 8
        if name == b"data" and size == 0:  # the recording was interrupted
            size = len(body)
        end = at + size
        yield name, body[at:end]
        at = min(end, len(body))
        # Most writers pad chunks to even sizes.
        if size % 2 and at < len(body) and not _is_known_id(body, at):
            at += 1


def _is_known_id(body: memoryview, at: int) -> bool:
    """Return whether a known chunk begins at an offset."""
    return bytes(body[at : at + 4]) in _KNOWN_IDS


def _read_format(chunk: memoryview, order: str) -> SampleFormat:
    """Read the chunk with the layout of samples."""
    if len(chunk) < 16:
        raise invalid_input("the WAV file's format is cut off")
    code, channels, rate, _, align, bits = struct.unpack_from(f"{order}HHIIHH", chunk)
    if code == EXTENSIBLE and len(chunk) >= 26:
        # The first two bytes of the sub-format's GUID.
        (code,) = struct.unpack_from(f"{order}H", chunk, 24)
    if not 1 <= channels <= MAX_CHANNELS:
        raise invalid_input(
            f"the WAV file has {channels} channels; 1 to {MAX_CHANNELS} can be read"
        )
    if not MIN_RATE <= rate <= MAX_RATE:
        raise invalid_input(
            f"the sound has {rate} samples per second; {MIN_RATE} to {MAX_RATE} can be read"
        )
    width = _sample_width(align, channels, bits)
    if width not in _WIDTHS.get(code, ()):
        raise invalid_input(
            f"the WAV file's samples (format {code}, {bits} bits) cannot be read; save "
            "it as 16-bit PCM"
        )
    return SampleFormat(code, channels, rate, width, order)


def _sample_width(align: int, channels: int, bits: int) -> int:
    """Return the bytes per sample: by the frame's size, else by the valid bits."""
    aligned, rest = divmod(align, channels)
    if aligned and not rest and aligned * 8 >= bits:
        return aligned
    return -(-bits // 8)


def _to_real(data: memoryview, form: SampleFormat) -> Array:
    """Return float32 from -1 to 1."""
    if form.code == A_LAW:
        return _a_law_table()[np.frombuffer(data, np.uint8)]
    if form.code == MU_LAW:
        return _mu_law_table()[np.frombuffer(data, np.uint8)]
    with np.errstate(over="ignore", invalid="ignore"):
        real: Array = _scaled(data, form).astype(np.float32)
    return real


def _scaled(data: memoryview, form: SampleFormat) -> Array:
    """Return PCM and floating-point samples as float64."""
    if form.code == FLOAT:
        floats = np.frombuffer(data, f"{form.order}f{form.width}")
        return floats.astype(np.float64)
    if form.width == 1:
        unsigned = np.frombuffer(data, np.uint8)
        return (unsigned.astype(np.float64) - 128.0) / 128.0
    if form.width == 3:
        return _three_bytes(data, form.order) / 2.0**31
    values = np.frombuffer(data, f"{form.order}i{form.width}")
    bits = 8 * form.width
    scale: float = 2.0 ** (bits - 1)
    return np.asarray(values.astype(np.float64) / scale)


def _three_bytes(data: memoryview, order: str) -> Array:
    """Return 24-bit samples as the upper bytes of 32-bit integers."""
    packed = np.frombuffer(data, np.uint8).reshape(-1, 3)
    if order == ">":
        packed = packed[:, ::-1]
    padded = np.zeros((len(packed), 4), np.uint8)
    padded[:, 1:] = packed
    return padded.reshape(-1).view("<i4").astype(np.float64)


def _mu_law_table() -> Array:
    """Return the value of each mu-law code."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent = (code >> 4) & 7
    mantissa = (code & 15).astype(np.int32)
    biased = (mantissa << 3) + 0x84
    size = (biased << exponent) - 0x84
    signed = np.where(code & 0x80, -size, size)
    return (signed / 32768).astype(np.float32)


def _a_law_table() -> Array:
    """Return the value of each A-law code."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent = ((code >> 4) & 7).astype(np.int32)
    mantissa = (code & 15).astype(np.int32)
    low = (mantissa << 4) + 8
    shift = np.maximum(exponent - 1, 0)
    high = (low + 0x100) << shift
    size = np.where(exponent == 0, low, high)
    signed = np.where(code & 0x80, size, -size)
    return (signed / 32768).astype(np.float32)
