"""Write valid and invalid WAV files."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

RATE = 16_000


def tone(
    seconds: float = 1.0, rate: int = RATE, frequency: float = 440.0, channels: int = 1
) -> Any:
    """Return a sine of half the full scale, float64 [frames, channels]."""
    times = np.arange(round(seconds * rate)) / rate
    return np.repeat(
        0.5 * np.sin(2 * np.pi * frequency * times)[:, None], channels, axis=1
    )


def chunk(
    name: bytes, content: bytes, order: str = "<", size: int | None = None
) -> bytes:
    """Return a chunk with its padding; ``size`` is its claimed size."""
    stated = size
    if size is None:
        stated = len(content)
    return (
        name + struct.pack(f"{order}I", stated) + content + b"\0" * (len(content) % 2)
    )


def format_chunk(
    code: int,
    channels: int,
    rate: int,
    bits: int,
    order: str = "<",
    align: int | None = None,
    sub: int | None = None,
) -> bytes:
    """Return the contents of ``fmt ``; ``sub`` makes it an extensible one."""
    width = align
    if align is None:
        width = channels * -(-bits // 8)
    content = struct.pack(
        f"{order}HHIIHH",
        code if sub is None else 0xFFFE,
        channels,
        rate,
        rate * width,
        width,
        bits,
    )
    if sub is not None:
        content += struct.pack(f"{order}HHIH", 22, bits, 0, sub) + bytes.fromhex(
            "000000001000800000aa00389b71"
        )
    return chunk(b"fmt ", content, order)


def stored(
    samples: Any, bits: int, *, floating: bool = False, order: str = "<"
) -> bytes:
    """Return samples from -1 to 1 in the file's encoding."""
    flat = np.asarray(samples).reshape(-1)
    if floating:
        return bytes(flat.astype(f"{order}f{bits // 8}").tobytes())
    if bits == 8:
        return bytes(
            np.clip(np.rint(flat * 128) + 128, 0, 255).astype(np.uint8).tobytes()
        )
    whole = np.clip(
        np.rint(flat * 2.0 ** (bits - 1)), -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    ).astype(np.int64)
    wide = whole.astype(f"{order}i8").view(np.uint8).reshape(-1, 8)
    count = bits // 8
    return bytes((wide[:, :count] if order == "<" else wide[:, 8 - count :]).tobytes())


def wav(
    samples: Any,
    rate: int = RATE,
    bits: int = 16,
    *,
    floating: bool = False,
    order: str = "<",
    **more: Any,
) -> bytes:
    """Return a whole file.

    Args:
        more: ``before``: chunks before the samples; ``size``: the samples' claimed size;
        ``riff``: the file's claimed size; ``sub``: an extensible header.
    """
    channels = np.asarray(samples).shape[1]
    code = 1
    if floating:
        code = 3
    sub = None
    if more.get("sub"):
        sub = code
    head = format_chunk(
        code,
        channels,
        rate,
        bits,
        order,
        sub=sub,
    ) + more.get("before", b"")
    body = head + chunk(
        b"data",
        stored(samples, bits, floating=floating, order=order),
        order,
        more.get("size"),
    )
    magic = b"RIFF"
    if order == ">":
        magic = b"RIFX"
    return (
        magic
        + struct.pack(f"{order}I", more.get("riff", 4 + len(body)))
        + b"WAVE"
        + body
    )
