"""WAV files: from untrusted bytes to samples.

The standard library's ``wave`` reads neither floating point nor companded samples, refuses most extensible headers and
believes the sizes that a file states. Recorders write all of these, and many leave sizes at 0 or at their maximum when
a recording is streamed or cut off: whatever samples are there count.

Formats are those of Microsoft's "Multiple channel audio data and WAVE files"; A-law and mu-law those of ITU-T G.711.
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
MAX_CHUNKS = 1000  # in front of the samples; real files have less than ten
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
}  # bytes per sample that can be read


class Sound(NamedTuple):
    """Samples from -1 to 1, float32 of shape [frames, channels], and frames per second."""

    samples: Array
    rate: int

    @property
    def seconds(self) -> float:
        """The length of the sound."""
        return len(self.samples) / self.rate


class SampleFormat(NamedTuple):
    """The layout of samples in memory: code PCM, FLOAT, A_LAW or MU_LAW; bytes of each, valid bits on top."""

    code: int
    channels: int
    rate: int
    width: int
    order: str = "<"


def is_wav(body: memoryview) -> bool:
    """Return whether the bytes start like a WAV file (RIFF, its big-endian RIFX or its 64-bit RF64)."""
    return (
        bytes(body[:4]) in (b"RIFF", b"RIFX", b"RF64")
        and bytes(body[8:12]) == b"WAVE"[: max(0, len(body) - 8)]
    )


def read_wav(body: memoryview, max_seconds: float, *, mono: bool) -> Sound:
    """Decode a WAV file.

    Args:
        max_seconds: length above which it is refused before any sample is decoded.
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
    """Convert samples in memory to numbers; a last frame that is cut off is left out."""
    size = form.width * form.channels
    frames = len(data) // size
    if not frames:
        raise invalid_input("the sound holds no samples")
    if frames > MAX_FRAMES or frames > max_seconds * form.rate:
        raise invalid_input(
            f"the sound lasts {frames / form.rate:.1f} seconds ({frames} frames); the limits are {max_seconds:g} "
            f"seconds (audio.max_seconds in model.toml) and {MAX_FRAMES} frames; send it in parts"
        )
    samples = np.empty((frames, 1 if mono else form.channels), np.float32)
    # Mixing down block by block keeps many channels out of memory.
    for first in cancellable(range(0, frames, BLOCK_FRAMES)):
        last = min(first + BLOCK_FRAMES, frames)
        block = _to_real(data[first * size : last * size], form).reshape(
            -1, form.channels
        )
        samples[first:last] = block.mean(axis=1, keepdims=True) if mono else block
        if not np.isfinite(samples[first:last]).all():
            raise invalid_input(
                "the sound holds samples that are no numbers (NaN or infinite)"
            )
    return Sound(samples, form.rate)


def _chunks(body: memoryview, order: str) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and content of each chunk, cut to what is there."""
    at = 12
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(body):
            return
        name = bytes(body[at : at + 4])
        (size,) = struct.unpack_from(f"{order}I", body, at + 4)
        at += 8
        if name == b"data" and size == 0:  # recorders that were cut off leave it open
            size = len(body)
        yield name, body[at : at + size]
        at = min(at + size, len(body))
        if size % 2 and at < len(body) and bytes(body[at : at + 4]) not in _KNOWN_IDS:
            at += 1  # chunks are padded to even sizes, by most writers


def _read_format(chunk: memoryview, order: str) -> SampleFormat:
    if len(chunk) < 16:
        raise invalid_input("the WAV file's format is cut off")
    code, channels, rate, _, align, bits = struct.unpack_from(f"{order}HHIIHH", chunk)
    if (
        code == EXTENSIBLE and len(chunk) >= 26
    ):  # the first two bytes of the sub-format's GUID
        (code,) = struct.unpack_from(f"{order}H", chunk, 24)
    if not 1 <= channels <= MAX_CHANNELS:
        raise invalid_input(
            f"the WAV file has {channels} channels; 1 to {MAX_CHANNELS} can be read"
        )
    if not MIN_RATE <= rate <= MAX_RATE:
        raise invalid_input(
            f"the sound has {rate} samples per second; {MIN_RATE} to {MAX_RATE} can be read"
        )
    width = (
        align // channels
        if align and align % channels == 0 and align // channels * 8 >= bits
        else -(-bits // 8)
    )
    if width not in _WIDTHS.get(code, ()):
        raise invalid_input(
            f"the WAV file's samples (format {code}, {bits} bits) cannot be read; save it as 16-bit PCM"
        )
    return SampleFormat(code, channels, rate, width, order)


def _to_real(data: memoryview, form: SampleFormat) -> Array:
    """Return float32 from -1 to 1."""
    width = form.width
    if form.code in (A_LAW, MU_LAW):
        return (_a_law_table() if form.code == A_LAW else _mu_law_table())[
            np.frombuffer(data, np.uint8)
        ]
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        packed = np.frombuffer(data, np.uint8).reshape(-1, 3)
        padded[:, 1:] = packed if form.order == "<" else packed[:, ::-1]
        values, width = padded.reshape(-1).view("<i4"), 4
    else:
        kind = "f" if form.code == FLOAT else "u" if width == 1 else "i"
        values = np.frombuffer(data, f"{form.order}{kind}{width}")
    scale = 1.0 if form.code == FLOAT else 2.0 ** (8 * width - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        real: Array = (
            (values.astype(np.float64) - (128.0 if width == 1 else 0.0)) / scale
        ).astype(np.float32)
    return real


def _mu_law_table() -> Array:
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4) & 7, code & 15
    size = (((mantissa.astype(np.int32) << 3) + 0x84) << exponent) - 0x84
    return (np.where(code & 0x80, -size, size) / 32768).astype(np.float32)


def _a_law_table() -> Array:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (code >> 4) & 7, (code & 15).astype(np.int32)
    low = (mantissa << 4) + 8
    size = np.where(
        exponent == 0,
        low,
        (low + 0x100) << np.maximum(exponent.astype(np.int32) - 1, 0),
    )
    return (np.where(code & 0x80, size, -size) / 32768).astype(np.float32)
