"""Mutate bytes, possible lengths and whole pieces, reproducibly by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

LENGTHS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
MAX_BYTES = 1 << 20


def mutate(content: bytes, source: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """Return the content after one to four changes.

    Args:
        words: the format's own words, which are inserted anywhere.
    """
    data = bytearray(content)
    for _ in range(source.randint(1, 4)):
        change = source.choice(_CHANGES)
        change(data, source)
        if words and source.random() < 0.3:
            at = source.randrange(len(data) + 1)
            data[at:at] = source.choice(words)
    return bytes(data[:MAX_BYTES])


def _cut(data: bytearray, source: random.Random) -> None:
    del data[source.randrange(len(data) + 1) :]


def _flip(data: bytearray, source: random.Random) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _overwrite(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data) + 1)
    data[at : at + 16] = source.randbytes(source.randint(1, 16))


def _length(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data) + 1)
    size = source.choice((1, 2, 4, 8))
    value = source.choice(LENGTHS) & (2 ** (8 * size) - 1)
    data[at : at + size] = value.to_bytes(size, source.choice(("little", "big")))


def _repeat(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data) + 1)
    part = bytes(data[start : start + source.choice((1, 2, 8, 64, 512))])
    data[start:start] = part * source.choice((1, 2, 16, 256))


def _remove(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data) + 1)
    del data[start : start + source.randint(1, 64)]


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_cut, _flip, _flip, _overwrite, _length, _length, _repeat, _remove),
)
