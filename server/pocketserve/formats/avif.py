"""Read the frame sizes of an AVIF file, before a decoder allocates memory.

libavif decodes frames of the size that the AV1 stream announces, whatever the file's
header says, and scales them afterwards. So the streams' sequence headers count.
Animations are rejected, because their frames are stored elsewhere.

Sources: ISO/IEC 14496-12 (boxes), ISO/IEC 23008-12 (items), AV1 specification, sections
5.3 and 5.5.
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


class ItemLayout(NamedTuple):
    """The bytes of the fields in the box ``iloc``, and where its items begin."""

    id_bytes: int
    has_method: bool
    base_bytes: int
    field_sizes: tuple[int, int, int]
    """Bytes of index, offset and length of an extent."""
    start: int

    @property
    def extent_bytes(self) -> int:
        """Return the size of an extent's fields."""
        return sum(self.field_sizes)


class ItemPlace(NamedTuple):
    """The head of an item in ``iloc``.

    Attributes:
        origin: the offset of its extents, in the file or in ``idat``.
        is_in_idat: whether the origin is relative to the box ``idat``.
        extent_count: the number of its extents.
        extents_at: the position of the extents' fields.
    """

    item: int
    origin: int
    is_in_idat: bool
    extent_count: int
    extents_at: int


class AvifError(Exception):
    """A file that must not be decoded; the message says why."""


class Extent(NamedTuple):
    """A piece of an item's data in the file."""

    start: int
    size: int


def is_avif(body: memoryview) -> bool:
    """Return whether a file's first box declares AVIF."""
    start = bytes(body[:MAX_BRANDS])
    if start[4:8] != b"ftyp":
        return False
    box_size = int.from_bytes(start[:4], "big")
    brands = start[8 : min(box_size, MAX_BRANDS)]
    names = [brands[at : at + 4] for at in range(0, len(brands), 4)]
    return b"avif" in names or b"avis" in names


def frame_sizes(body: memoryview) -> list[tuple[int, int]]:
    """Return the largest possible width and height of each item.

    Raises:
        AvifError: it is an animation, or unreadable.
    """
    try:
        return _Reader(body).frame_sizes()
    except (IndexError, ValueError):
        raise _unreadable() from None


class Bits:
    """Reads numbers of a few bits."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def read(self, count: int) -> int:
        """Return the next bits as a number; ValueError if there are too few."""
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
        """Return width and height of each sequence header."""
        parts = self._meta_parts()
        items: set[int] = set()
        if b"iinf" in parts:
            items = self._coded_items(*parts[b"iinf"])
        if b"iloc" not in parts or not items:
            raise _unreadable()
        idat, _ = parts.get(b"idat", (0, 0))
        start, end = parts[b"iloc"]
        places = self._places(start, end, idat)
        sizes: list[tuple[int, int]] = []
        for item in items:
            stream = self._join(places.get(item, []))
            sizes.extend(_stream_sizes(stream))
        if not sizes:
            raise _unreadable()
        return sizes

    def _join(self, extents: list[Extent]) -> bytes:
        return b"".join(self._bytes(start, size) for start, size in extents)

    def _meta_parts(self) -> dict[bytes, tuple[int, int]]:
        """Return the ranges of the boxes in ``meta``."""
        start, end = self._meta_range()
        parts: dict[bytes, tuple[int, int]] = {}
        for kind, first, last in self._children(start + 4, end):
            if kind in parts and kind in (b"iinf", b"iloc", b"idat"):
                raise _unreadable()
            parts[kind] = (first, last)
        return parts

    def _meta_range(self) -> tuple[int, int]:
        """Return the range of the content of ``meta``, the only one of its kind."""
        ranges = []
        is_animated = bytes(self._body[8:12]) == b"avis"
        for kind, start, end in self._children(0, len(self._body)):
            if kind == b"moov":
                is_animated = True
            if kind == b"meta":
                ranges.append((start, end))
        if is_animated:
            raise AvifError(
                "animated AVIF is not supported; send one picture as AVIF, JPEG or PNG"
            )
        if len(ranges) != 1:
            raise _unreadable()
        return ranges[0]

    def _children(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield kind, first and last content byte of each box."""
        at = start
        while at + 8 <= end:
            self._boxes += 1
            if self._boxes > MAX_BOXES:
                raise _unreadable()
            kind = self._bytes(at + 4, 4)
            start_of_content, end_of_box = self._box(at, end)
            yield kind, start_of_content, end_of_box
            at = end_of_box

    def _box(self, at: int, end: int) -> tuple[int, int]:
        """Return where the content of a box begins, and where the box ends."""
        size = self._number(at, 4)
        head = 8
        if size == 1:
            size = self._number(at + 8, 8)
            head = 16
        elif size == 0:
            size = end - at
        if size < head or at + size > end:
            raise _unreadable()
        return at + head, at + size

    def _coded_items(self, start: int, end: int) -> set[int]:
        """Return the ids of items that are AV1 streams."""
        count_bytes = 4
        if self._body[start] == 0:
            count_bytes = 2
        items: set[int] = set()
        for kind, first, _ in self._children(start + 4 + count_bytes, end):
            if kind == b"infe" and self._body[first] >= 2:
                items.update(self._coded_item(first))
        if len(items) > MAX_ITEMS:
            raise _unreadable()
        return items

    def _coded_item(self, first: int) -> Iterator[int]:
        """Yield an item's id if it is an AV1 stream."""
        id_bytes = 4
        if self._body[first] == 2:
            id_bytes = 2
        type_at = first + 4 + id_bytes + 2
        if self._bytes(type_at, 4) == b"av01":
            yield self._number(first + 4, id_bytes)

    def _places(self, start: int, end: int, idat: int) -> dict[int, list[Extent]]:
        """Return the extents of each item's data.

        Args:
            idat: where the content of the box ``idat`` begins.
        """
        layout = self._item_layout(start)
        count = self._number(layout.start, layout.id_bytes)
        at = layout.start + layout.id_bytes
        places: dict[int, list[Extent]] = {}
        extents = 0
        total = 0
        for _ in range(count):
            place = self._item_place(at, layout)
            extents += place.extent_count
            if extents > MAX_EXTENTS or place.extents_at > end or place.item in places:
                raise _unreadable()
            item_extents = self._extents(place, layout, idat)
            places[place.item] = item_extents
            at = place.extents_at + place.extent_count * layout.extent_bytes
            total += sum(extent.size for extent in item_extents)
            # Items may overlap, but joined they must not be larger than the file.
            if total > len(self._body):
                raise _unreadable()
        return places

    def _item_layout(self, start: int) -> ItemLayout:
        """Read the sizes of the fields of items."""
        version = self._body[start]
        sizes = self._number(start + 4, 2)
        has_method = version in (1, 2)
        index_bytes = 0
        if has_method:
            index_bytes = sizes & 15
        id_bytes = 2
        if version == 2:
            id_bytes = 4
        offset_bytes = sizes >> 12
        length_bytes = sizes >> 8 & 15
        return ItemLayout(
            id_bytes=id_bytes,
            has_method=has_method,
            base_bytes=sizes >> 4 & 15,
            field_sizes=(index_bytes, offset_bytes, length_bytes),
            start=start + 6,
        )

    def _item_place(self, at: int, layout: ItemLayout) -> ItemPlace:
        """Read an item up to its extents."""
        item = self._number(at, layout.id_bytes)
        at += layout.id_bytes
        method = 0
        if layout.has_method:
            method = self._number(at, 2) & 15
            at += 2
        if method > 1:
            raise _unreadable()
        at += 2
        origin = self._number(at, layout.base_bytes)
        at += layout.base_bytes
        count = self._number(at, 2)
        return ItemPlace(
            item=item,
            origin=origin,
            is_in_idat=method == 1,
            extent_count=count,
            extents_at=at + 2,
        )

    def _extents(self, place: ItemPlace, layout: ItemLayout, idat: int) -> list[Extent]:
        """Return an item's extents."""
        index_bytes, offset_bytes, length_bytes = layout.field_sizes
        origin = place.origin
        if place.is_in_idat:
            origin += idat
        at = place.extents_at
        extents = []
        for _ in range(place.extent_count):
            at += index_bytes
            first = origin + self._number(at, offset_bytes)
            at += offset_bytes
            size = self._number(at, length_bytes)
            at += length_bytes
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
        kind = data[at] >> 3 & 15
        at, size = _unit(data, at)
        if kind == SEQUENCE_HEADER:
            end = at + min(size, 256)
            yield _sequence_size(Bits(data[at:end]))
        at += size
    raise _unreadable()


def _unit(data: bytes, at: int) -> tuple[int, int]:
    """Return the position and size of a unit's content."""
    header = data[at]
    has_extension = header & 4
    has_size = header & 2
    at += 1
    if has_extension:
        at += 1
    size = len(data) - at
    if has_size:
        size, at = _leb128(data, at)
    if at + size > len(data):
        raise _unreadable()
    return at, size


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        low_bits = byte & 127
        value |= low_bits << (7 * index)
        is_last = not byte & 128
        if is_last:
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
    width_bits = bits.read(4) + 1
    height_bits = bits.read(4) + 1
    width = bits.read(width_bits) + 1
    height = bits.read(height_bits) + 1
    if is_reduced:
        return width, height
    # A frame's own header may announce any size of this many bits.
    return 1 << width_bits, 1 << height_bits


def _skip_operating_points(bits: Bits) -> None:
    """Skip the timing of a stream and its operating points."""
    delay_bits = _skip_timing(bits)
    has_display_delay = bits.read(1)
    count = bits.read(5) + 1
    for _ in range(count):
        bits.read(12)
        level = bits.read(5)
        if level > 7:
            bits.read(1)
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if has_display_delay and bits.read(1):
            bits.read(4)


def _skip_timing(bits: Bits) -> int:
    """Skip the timing; return the size of decoder delays, 0 without any."""
    has_timing = bits.read(1)
    if not has_timing:
        return 0
    bits.read(64)
    has_equal_intervals = bits.read(1)
    if has_equal_intervals:
        bits.skip_uvlc()
    has_decoder_model = bits.read(1)
    if not has_decoder_model:
        return 0
    delay_bits = bits.read(5) + 1
    bits.read(32 + 5 + 5)
    return delay_bits


def _unreadable() -> AvifError:
    return AvifError(
        "the AVIF picture is damaged or of an unsupported kind; send a JPEG or PNG"
    )
