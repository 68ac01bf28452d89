"""Read how many samples a FLAC or MP3 file claims to have.

Sources: RFC 9639 for FLAC's STREAMINFO; ISO/IEC 11172-3 for the frames of MPEG audio;
ffmpeg's libavformat/mp3dec.c for the Xing header; id3.org for ID3v2.
"""

from __future__ import annotations

import re
from typing import Final

ID3_BYTES: Final = 10
"""The header of an ID3v2 tag, and its footer."""

MAX_TAGS: Final = 16
ID3_FOOTER: Final = 0x10  # in the tag's flags
XING_FRAMES: Final = 1  # in the header's flags
MP3_PADDING: Final = 3000
"""Samples that encoders add at most, and ffmpeg removes: two frames, and their delay."""

XING_PLACE: Final = 64  # bytes of a frame in which a Xing header begins
_MPEG_RATES: Final = (44_100, 48_000, 32_000)
_MPEG_1: Final = 3
_MPEG_2: Final = 2
_LAYER_3: Final = 1

_XING: Final = re.compile(rb"(?:Xing|Info)(.{4})(.{4})", re.DOTALL)


def claimed_seconds(body: memoryview, kind: str) -> float | None:
    """Return the least length that a file's header claims; None if it claims none.

    Args:
        kind: one of CONTAINERS.
    """
    start = bytes(body[after_tags(body) :][:XING_PLACE])
    if kind == "FLAC":
        return _flac_seconds(start)
    if kind == "MP3":
        return _mp3_seconds(start)
    return None


def after_tags(body: memoryview) -> int:
    """Return the offset after the ID3v2 tags at the start of a file."""
    offset = 0
    for _ in range(MAX_TAGS):
        header = bytes(body[offset : offset + ID3_BYTES])
        if len(header) < ID3_BYTES or not header.startswith(b"ID3"):
            break
        size = 0
        for byte in header[6:]:
            size = size << 7 | byte & 0x7F
        offset += ID3_BYTES + size
        if header[5] & ID3_FOOTER:
            offset += ID3_BYTES
    return offset


def _flac_seconds(start: bytes) -> float | None:
    # The marker, the header of STREAMINFO, the sizes of blocks and frames; then 20 bits
    # of rate, 3 of channels, 5 of sample size, 36 of samples.
    packed = int.from_bytes(start[18:26], "big")
    rate = packed >> 44
    samples = packed & (1 << 36) - 1
    if not start.startswith(b"fLaC") or not rate or not samples:
        return None
    return samples / rate


def _mp3_seconds(start: bytes) -> float | None:
    """Return the length that a Xing header states."""
    xing = _XING.search(start)
    if xing is None or start[0] != 0xFF:
        return None
    if not int.from_bytes(xing[1], "big") & XING_FRAMES:
        return None
    version = start[1] >> 3 & 3
    layer = start[1] >> 1 & 3
    rate_index = start[2] >> 2 & 3
    if layer != _LAYER_3 or rate_index == len(_MPEG_RATES):
        return None
    rate = _MPEG_RATES[rate_index]
    frame_samples = 1152
    if version != _MPEG_1:
        frame_samples = 576
        rate //= 2
        if version != _MPEG_2:
            rate //= 2
    frames = int.from_bytes(xing[2], "big")
    samples = frames * frame_samples - MP3_PADDING
    return samples / rate
