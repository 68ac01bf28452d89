"""What a file's header says of its cost, read from the bytes before a decoder allocates anything for it.

This is for GIF, WebP and JPEG. Of PNG and BMP, Pillow reads the header alone until somebody asks for more, and so does
pillow-heif of HEIC: there the size that the opened picture tells is early enough. libheif refuses pixels beyond what
the header announced.
"""

from __future__ import annotations

import re
from struct import unpack_from

from pocketserve.tasks.base import invalid_input

MAX_STEPS = 1 << 16
"""Segments or blocks in front of the first picture. Colour profiles and XMP data of megabytes take some thousands."""

MAX_SCANS = 100
"""Of a JPEG file. Encoders make ten for a picture; each costs the decoder a walk over all of its pixels."""

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_BARE = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))
"""Second bytes of what has no length behind it: stuffing, TEM and restarts."""


def size_to_hold(body: bytes) -> tuple[int, int] | None:
    """Width and height of what the decoder must hold whole, however small the result; None where this cannot tell.

    A GIF's first frame may be larger than its screen, and Pillow allocates both on opening. Of a WebP it allocates the
    canvas twice, in four bytes a pixel: 34 bytes of a file can ask for 2 GiB. A JPEG counts where the decoder needs
    several scans for a picture: then it holds all coefficients, whatever scale it is asked for.

    Raises:
        ApiError: INVALID_INPUT, too much stands in front of the picture.
    """
    if body.startswith((b"GIF87a", b"GIF89a")) and len(body) >= 13:
        return _Gif(body).size()
    if body.startswith(b"RIFF") and body[8:12] == b"WEBP":
        return _webp_canvas(body)
    if body.startswith(b"\xff\xd8\xff"):
        return _jpeg_in_scans(body)
    return None


class _Gif:
    """Reads as Pillow does, also where the file is malformed: what it would allocate is what counts."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 13 + (6 << (body[10] & 7) if body[10] & 0x80 else 0)
        self._steps = 0

    def size(self) -> tuple[int, int]:
        """Of the screen with the first frame in it."""
        width, height = unpack_from("<HH", self._body, 6)
        while (kind := self._read(1)) not in (b"", b";"):
            _count(self._steps)
            self._steps += 1
            if kind == b"!":
                self._skip_extension()
            elif kind == b",":
                frame = self._read(9)
                if len(frame) == 9:
                    x, y, wide, high = unpack_from("<HHHH", frame)
                    width, height = max(width, x + wide), max(height, y + high)
                break
        return width, height

    def _skip_extension(self) -> None:
        label = self._read(1)
        block = self._block()
        if label == b"\xfe":  # only of a comment an empty first block is the end
            while block:
                block = self._block()
            return
        if label == b"\xff" and block.startswith(b"NETSCAPE2.0"):
            self._block()
        while self._block():
            pass

    def _block(self) -> bytes:
        _count(self._steps)
        self._steps += 1
        length = self._read(1)
        return self._read(length[0]) if length else b""

    def _read(self, count: int) -> bytes:
        part = self._body[self._at : self._at + count]
        self._at += len(part)
        return part


def _webp_canvas(body: bytes) -> tuple[int, int] | None:
    """The canvas, which the first chunk tells, whatever its kind; libwebp refuses frames that are larger."""
    kind, start = body[12:16], body[20:30]
    if len(start) < 10:
        return None  # a file that ends here has no picture
    if kind == b"VP8X":
        return int.from_bytes(start[4:7], "little") + 1, int.from_bytes(start[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":  # the two highest bits of each side are about scaling
        width, height = unpack_from("<HH", start, 6)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg_in_scans(body: bytes) -> tuple[int, int] | None:
    """The size where the first scan does not bring the whole picture. The rule, and the reading, is libjpeg's."""
    at, steps = 2, 0
    components, size, progressive = 0, (0, 0), False
    while (at := body.find(b"\xff", at)) >= 0:
        _count(steps)
        steps += 1
        while body[at : at + 1] == b"\xff":
            at += 1
        marker, segment = body[at : at + 1], body[at + 1 : at + 9]
        at += 1
        if not marker or marker[0] in (_SOI, _EOI):
            return None
        if marker[0] in _BARE:
            continue
        if len(segment) < 3:
            return None
        if marker[0] == _SOS:
            return size if progressive or segment[2] < components else None
        if marker[0] in _FRAMES and len(segment) == 8:
            progressive = marker[0] in _PROGRESSIVE
            height, width, components = unpack_from(">HHB", segment, 3)
            size = (width, height)
        at += max(2, unpack_from(">H", segment)[0])
    return None


def scans_of(body: bytes) -> int:
    """Count the scans of a JPEG file, those of further pictures in it among them.

    Inside of a scan no marker has these bytes by chance; between scans, in a profile or a thumbnail, they may stand. So
    only a file that has many is walked through.
    """
    count = body.count(b"\xff\xda")
    return count if count <= MAX_SCANS else _walk_scans(body)


def _walk_scans(body: bytes) -> int:
    """Count from marker to marker, until more than :data:`MAX_SCANS` are found."""
    at, count = 2, 0
    while count <= MAX_SCANS and (found := _MARKER.search(body, at)):
        marker, at = found[1][0], found.end()
        if marker == _SOS:
            count += 1
        if marker not in (_SOI, _EOI) and at + 2 <= len(body):
            at += max(2, unpack_from(">H", body, at)[0])
    return count


_MARKER = re.compile(rb"\xff([^\x00\x01\xff\xd0-\xd7])")
"""What begins a segment, or ends the picture: not stuffing, TEM or a restart."""


def _count(steps: int) -> None:
    if steps >= MAX_STEPS:
        raise invalid_input(f"the picture file has more than {MAX_STEPS} blocks in front of the picture; save it anew")
