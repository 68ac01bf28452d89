"""The sizes of the frames in an AVIF file, read before a decoder allocates anything.

libavif decodes a frame of any size that its AV1 stream announces, whatever the file's own header says, and scales it
afterwards. So the streams' sequence headers count. Animations are refused: their frames lie elsewhere.

Sources: ISO/IEC 14496-12 (boxes), ISO/IEC 23008-12 (items), AV1 specification, sections 5.3 and 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_BOXES: Final = 4096
MAX_ITEMS: Final = 256  # a grid of 15x15 tiles with EXIF data; phones write fewer
MAX_EXTENTS: Final = 1024
MAX_OBUS: Final = 4096
SEQUENCE_HEADER: Final = 1
MAX_BRANDS: Final = 256  # bytes of the first box


class AvifError(Exception):
    """A file that must not be decoded; the text says why and what to send."""


class Extent(NamedTuple):
    """A piece of an item's data in the file."""

    start: int
    size: int


def is_avif(body: memoryview) -> bool:
    """Return whether a file's first box says that it is AVIF."""
    start = bytes(body[:MAX_BRANDS])
    if start[4:8] != b"ftyp":
        return False
    brands = start[8 : min(int.from_bytes(start[:4], "big"), MAX_BRANDS)]
    return any(
        brands[at : at + 4] in (b"avif", b"avis") for at in range(0, len(brands), 4)
    )


def frame_sizes(body: memoryview) -> list[tuple[int, int]]:
    """Return the largest width and height that each item of a file may be decoded to.

    Raises:
        AvifError: it is an animation or cannot be read.
    """
    try:
        return _Reader(body).frame_sizes()
    except (IndexError, ValueError):
        raise _unreadable() from None


class Bits:
    """Reads numbers of some bits."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def read(self, count: int) -> int:
        """Return the next bits as a number; ValueError where they are missing."""
        if count > self._left:
            raise ValueError("the data ends too early")
        self._left -= count
        return (self._value >> self._left) & ((1 << count) - 1)

    def skip_uvlc(self) -> None:
        """Skip a number of variable length."""
        zeros = 0
        while not self.read(1):
            zeros += 1
        self.read(min(zeros, 32))


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._boxes = 0

    def frame_sizes(self) -> list[tuple[int, int]]:
        top = list(self._children(0, len(self._body)))
        kinds = [kind for kind, _, _ in top]
        if b"moov" in kinds or bytes(self._body[8:12]) == b"avis":
            raise AvifError(
                "animated AVIF is not read; send one picture as AVIF, JPEG or PNG"
            )
        if kinds.count(b"meta") != 1:
            raise _unreadable()
        _, start, end = top[kinds.index(b"meta")]
        parts: dict[bytes, tuple[int, int]] = {}
        for kind, first, last in self._children(start + 4, end):
            if kind in parts and kind in (b"iinf", b"iloc", b"idat"):
                raise _unreadable()
            parts[kind] = (first, last)
        items = self._coded_items(*parts[b"iinf"]) if b"iinf" in parts else set()
        if b"iloc" not in parts or not items:
            raise _unreadable()
        places = self._places(*parts[b"iloc"], parts.get(b"idat", (0, 0)))
        sizes: list[tuple[int, int]] = []
        for item in items:
            data = b"".join(
                self._bytes(extent.start, extent.size)
                for extent in places.get(item, ())
            )
            sizes.extend(_stream_sizes(data))
        if not sizes:
            raise _unreadable()
        return sizes

    def _children(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield kind, first and last byte of the content of each box."""
        at = start
        while at + 8 <= end:
            self._boxes += 1
            if self._boxes > MAX_BOXES:
                raise _unreadable()
            size, kind, head = self._number(at, 4), self._bytes(at + 4, 4), 8
            if size == 1:
                size, head = self._number(at + 8, 8), 16
            elif size == 0:
                size = end - at
            if size < head or at + size > end:
                raise _unreadable()
            yield kind, at + head, at + size
            at += size

    def _coded_items(self, start: int, end: int) -> set[int]:
        """Return the ids of items that are AV1 streams."""
        count_bytes = 2 if self._body[start] == 0 else 4
        items = set()
        for kind, first, _ in self._children(start + 4 + count_bytes, end):
            version = self._body[first]
            if kind != b"infe" or version < 2:
                continue
            id_bytes = 2 if version == 2 else 4
            type_at = first + 4 + id_bytes + 2
            if self._bytes(type_at, 4) == b"av01":
                items.add(self._number(first + 4, id_bytes))
        if len(items) > MAX_ITEMS:
            raise _unreadable()
        return items

    def _places(
        self, start: int, end: int, idat: tuple[int, int]
    ) -> dict[int, list[Extent]]:
        """Return where the data of each item is."""
        version = self._body[start]
        sizes = self._number(start + 4, 2)
        offset_bytes, length_bytes, base_bytes = (
            sizes >> 12,
            sizes >> 8 & 15,
            sizes >> 4 & 15,
        )
        index_bytes = sizes & 15 if version in (1, 2) else 0
        field_sizes = (index_bytes, offset_bytes, length_bytes)
        id_bytes = 4 if version == 2 else 2
        at = start + 6
        count = self._number(at, id_bytes)
        at += id_bytes
        places: dict[int, list[Extent]] = {}
        extents = 0
        total = 0
        for _ in range(count):
            item = self._number(at, id_bytes)
            at += id_bytes
            method = 0
            if version in (1, 2):
                method = self._number(at, 2) & 15
                at += 2
            base = self._number(at + 2, base_bytes)
            at += 2 + base_bytes
            extent_count = self._number(at, 2)
            at += 2
            extents += extent_count
            if method > 1 or extents > MAX_EXTENTS or at > end or item in places:
                raise _unreadable()
            origin = base + (idat[0] if method == 1 else 0)
            places[item] = self._extents(at, extent_count, origin, field_sizes)
            at += extent_count * sum(field_sizes)
            total += sum(extent.size for extent in places[item])
            # Items may overlap: together they must not be larger than the file that they are joined from.
            if total > len(self._body):
                raise _unreadable()
        return places

    def _extents(
        self, at: int, count: int, origin: int, field_sizes: tuple[int, int, int]
    ) -> list[Extent]:
        """Return an item's pieces; ``field_sizes`` are the bytes of index, offset and length."""
        index_bytes, offset_bytes, length_bytes = field_sizes
        extents = []
        for _ in range(count):
            at += index_bytes
            first = origin + self._number(at, offset_bytes)
            size = self._number(at + offset_bytes, length_bytes)
            at += offset_bytes + length_bytes
            if size == 0 or first + size > len(self._body):
                raise _unreadable()
            extents.append(Extent(first, size))
        return extents

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._bytes(at, size), "big")

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self._body):
            raise ValueError("the file ends too early")
        return bytes(self._body[at : at + size])


def _stream_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the size in each sequence header of an AV1 stream."""
    at = 0
    for _ in range(MAX_OBUS):
        if at >= len(data):
            return
        header = data[at]
        at += 2 if header & 4 else 1  # with an extension
        size = len(data) - at
        if header & 2:
            size, at = _leb128(data, at)
        if at + size > len(data):
            raise _unreadable()
        if header >> 3 & 15 == SEQUENCE_HEADER:
            yield _sequence_size(Bits(data[at : at + min(size, 256)]))
        at += size
    raise _unreadable()


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value |= (byte & 127) << (7 * index)
        if not byte & 128:
            return value, at + index + 1
    raise ValueError("a length has too many bytes")


def _sequence_size(bits: Bits) -> tuple[int, int]:
    """Return the largest width and height of a stream's frames."""
    bits.read(3 + 1)  # profile, still picture
    is_reduced = bits.read(1)
    if is_reduced:
        bits.read(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    width, height = bits.read(width_bits) + 1, bits.read(height_bits) + 1
    if is_reduced:
        return width, height
    # A frame's own header may name any size of so many bits.
    return 1 << width_bits, 1 << height_bits


def _skip_operating_points(bits: Bits) -> None:
    delay_bits = 0
    if bits.read(1):  # timing
        bits.read(64)
        if bits.read(1):
            bits.skip_uvlc()
        if bits.read(1):  # decoder model
            delay_bits = bits.read(5) + 1
            bits.read(32 + 5 + 5)
    has_display_delay = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if has_display_delay and bits.read(1):
            bits.read(4)


def _unreadable() -> AvifError:
    return AvifError(
        "the AVIF picture is damaged or of a kind that is not read here; send a JPEG or PNG"
    )
