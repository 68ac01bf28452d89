"""Estimate a picture's memory from its header, before a decoder allocates it.

This covers GIF, WebP and JPEG. For PNG and BMP, Pillow reads only the header until more
is asked for, and so does pillow-heif for HEIC; the opened picture's size is early enough
for them. libheif rejects pixels beyond the announced size.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from struct import unpack_from

from pocketserve.tasks.base import invalid_input

# Blocks before the first picture; megabytes of profiles and XMP data have some
# thousands.
MAX_STEPS = 1 << 16
MAX_SCANS = 100
"""Limit of scans in a JPEG file; encoders write ten.

Each costs the decoder a pass over all pixels.
"""
OTHER_KINDS = (
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"%PDF", "PDF"),
    (b"8BPS", "PSD"),
    (b"\0\0\x01\0", "ICO"),
    (b"qoif", "QOI"),
    (b"DDS ", "DDS"),
    (b"v/1\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
)
"""First bytes of pictures that Pillow may open and this server rejects.

Otherwise their decoders would get bytes from any client.
"""

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_MARKER = re.compile(rb"\xff([^\x00\x01\xff\xd0-\xd7])")
"""The marker of a JPEG segment, or of a picture's start or end.

Stuffing, TEM and restarts don't match.
"""


def picture_kind(body: memoryview) -> str:
    """Return the kind of an unsupported file, or ""."""
    start = bytes(body[:64])
    for magic, kind in OTHER_KINDS:
        if start.startswith(magic):
            return kind
    if start[:1] == b"P" and start[1:2] in b"1234567" and start[2:3].isspace():
        return "PPM"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<svg", b"<?xml")):
        return "SVG"
    return ""


def size_to_hold(body: bytes | memoryview) -> tuple[int, int] | None:
    """Return the size that the decoder allocates whole; None if unknown.

    A GIF's first frame may be larger than its screen, and Pillow allocates both on opening.
    It allocates a WebP's canvas twice, with four bytes per pixel: 34 bytes of a file can ask
    for 2 GiB. A JPEG counts if its picture needs several scans: then the decoder keeps all
    coefficients at any scale.
    """
    if body[:6] in (b"GIF87a", b"GIF89a") and len(body) >= 13:
        return _gif_size(body)
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return _webp_canvas(body)
    if body[:3] == b"\xff\xd8\xff":
        return _multi_scan_jpeg_size(body)
    return None


def _gif_size(body: bytes | memoryview) -> tuple[int, int]:
    """Return the size of the screen and the first frame together.

    A malformed file is read as Pillow does, since its allocation counts.
    """
    width, height = unpack_from("<HH", body, 6)
    palette = 0
    if body[10] & 0x80:
        palette = 6 << (body[10] & 7)
    blocks = _GifBlocks(body, 13 + palette)
    while True:
        kind = blocks.next_kind()
        if kind in (b"", b";"):
            return width, height
        if kind == b"!":
            blocks.skip_extension()
        elif kind == b",":
            frame = blocks.read(9)
            if len(frame) == 9:
                x, y, frame_width, frame_height = unpack_from("<HHHH", frame)
                width = max(width, x + frame_width)
                height = max(height, y + frame_height)
            return width, height


class _GifBlocks:
    """A position in the blocks of a GIF.

    The number of steps is limited.
    """

    def __init__(self, body: bytes | memoryview, start: int) -> None:
        self._file = io.BytesIO(body)
        self._file.seek(start)
        self._steps = itertools.count()

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def next_kind(self) -> bytes:
        """Return the byte that begins a block; empty at the end."""
        kind = self._file.read(1)
        if kind not in (b"", b";"):
            _limit(next(self._steps))
        return kind

    def skip_extension(self) -> None:
        label = self._file.read(1)
        block = self._sub_block()
        if label == b"\xff" and block.startswith(b"NETSCAPE2.0"):
            self._sub_block()
        # An empty first block is the end only in a comment.
        if label != b"\xfe" or block:
            while self._sub_block():
                pass

    def _sub_block(self) -> bytes:
        _limit(next(self._steps))
        size = int.from_bytes(self._file.read(1), "little")
        return self._file.read(size)


def _webp_canvas(body: bytes | memoryview) -> tuple[int, int] | None:
    """Return the canvas in the first chunk; libwebp rejects larger frames."""
    kind = body[12:16]
    start = body[20:30]
    if len(start) < 10:
        return None  # a file that ends here has no picture
    if kind == b"VP8X":
        width = int.from_bytes(start[4:7], "little") + 1
        height = int.from_bytes(start[7:10], "little") + 1
        return width, height
    if kind == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":  # the two highest bits of each side are about scaling
        width, height = unpack_from("<HH", start, 6)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _multi_scan_jpeg_size(body: bytes | memoryview) -> tuple[int, int] | None:
    """Return the size if more scans follow, as in libjpeg.

    The first scan then lacks a part of the picture.
    """
    components = 0
    size = (0, 0)
    is_progressive = False
    for step, (marker, at) in enumerate(_jpeg_segments(body)):
        _limit(step)
        segment = body[at : at + 8]
        if marker in (_SOI, _EOI):
            continue  # libjpeg continues after a file that only has tables
        if len(segment) < 3:
            return None
        if marker == _SOS:
            has_more_scans = is_progressive or segment[2] < components
            if has_more_scans:
                return size
            return None
        if marker in _FRAMES and len(segment) == 8:
            is_progressive = marker in _PROGRESSIVE
            height, width, components = unpack_from(">HHB", segment, 3)
            size = (width, height)
    return None


def scans_of(body: bytes) -> int:
    """Count a JPEG file's scans, up to one more than MAX_SCANS.

    Scans of further pictures in the file count, too. Inside a scan these bytes are always a
    marker; between scans, in a profile or thumbnail, they may not be. So only a file with
    many is parsed.
    """
    count = body.count(b"\xff\xda")
    if count <= MAX_SCANS:
        return count
    scans = (marker for marker, _ in _jpeg_segments(body) if marker == _SOS)
    return sum(1 for _ in itertools.islice(scans, MAX_SCANS + 1))


def _jpeg_segments(body: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield a JPEG's markers and positions of content.

    It follows libjpeg.
    """
    match = _MARKER.search(body, 2)
    while match is not None:
        marker = match[1][0]
        at = match.end()
        yield marker, at
        if marker not in (_SOI, _EOI) and at + 2 <= len(body):
            (length,) = unpack_from(">H", body, at)
            at += max(2, length)
        match = _MARKER.search(body, at)


def _limit(steps: int) -> None:
    if steps >= MAX_STEPS:
        raise invalid_input(
            f"the picture file has more than {MAX_STEPS} blocks in front of the "
            "picture; save it anew"
        )
