"""Read zip archives within limits, and recognize PyTorch's.

TorchScript, its mobile form, exported programs, compiled packages and plain weights are
all zips, often with the same suffix. The directory is read incrementally: ``zipfile``
would create an object for every entry that a hostile file claims. Only names count,
nothing is unpickled. Layout: APPNOTE.TXT of PKWARE, sections 4.3.12 to 4.3.16.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

# A model has one entry for each weight tensor: ten thousand at most in practice.
MAX_ENTRIES = 200_000
MAX_DIRECTORY_BYTES = 64 * 1024 * 1024

_END = b"PK\5\6"
_END64 = b"PK\6\6"
_LOCATOR64 = b"PK\6\7"
_ENTRY = b"PK\1\2"
_LOCAL = b"PK\3\4"
_END_SIZE, _ENTRY_SIZE, _LOCAL_SIZE = 22, 46, 30
_MAX_COMMENT = 0xFFFF
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_PIECE = 1 << 20


class BadZipError(ValueError):
    """The file is not a zip, or is damaged, or exceeds a limit."""


class Member(NamedTuple):
    """An entry of the directory."""

    name: str
    """Without the top folder of PyTorch's archives; complete in appended archives."""
    method: int
    packed: int
    size: int
    offset: int
    flags: int = 0
    crc: int | None = None
    """Of the content; None in PyTorch's archives, which may lack it."""
    mode: int = 0
    """Unix mode; 0 if the archive was made on another system."""


@dataclass(frozen=True)
class Directory:
    """The position of an archive's directory.

    Attributes:
        count: the number of its entries.
        size: in bytes.
        start: as the file states it; it doesn't count data before the archive.
        end: the position after it.
    """

    count: int
    size: int
    start: int
    end: int


def kind_of_zip(path: Path) -> str | None:
    """Return a PyTorch zip's kind, see ``_KINDS``; None for all other files."""
    try:
        markers = {_marker(member.name) for member in members(path)}
    except (BadZipError, OSError):
        return None
    for required, kind in _KINDS:
        if required <= markers:
            return kind
    return None


def members(path: Path, *, appended: bool = False) -> Iterator[Member]:
    """Yield an archive's entries.

    Args:
        appended: the archive may follow other data, which shifts its offsets.
    """
    with path.open("rb") as file:
        directory = _directory(file)
        left = directory.size
        if directory.count > MAX_ENTRIES or left > MAX_DIRECTORY_BYTES:
            raise BadZipError(
                f"its directory claims {directory.count} entries in {left} bytes"
            )
        shift = 0
        if appended:
            shift = max(0, directory.end - directory.size - directory.start)
        file.seek(directory.start + shift)
        for _ in range(directory.count):
            member, used = _entry(file, left)
            left -= used
            if appended:
                yield member._replace(offset=member.offset + shift)
            else:
                name = member.name.partition("/")[2] or member.name
                yield member._replace(name=name, crc=None)


def check_overlaps(entries: Iterable[Member]) -> None:
    """Raise BadZipError if members overlap."""
    end = 0
    for member in sorted(entries, key=lambda member: member.offset):
        if member.offset < end:
            raise BadZipError(f"{member.name[:80]!r} overlaps another file of it")
        end = member.offset + _LOCAL_SIZE + member.packed


def read_member(path: Path, member: Member, maximum: int) -> bytes:
    """Return a member's content; BadZipError if too long or damaged."""
    if member.size > maximum or member.packed > maximum + 1024:
        raise BadZipError(f"{member.name[:80]!r} is larger than {maximum} bytes")
    return b"".join(member_pieces(path, member))


def member_pieces(path: Path, member: Member) -> Iterator[bytes]:
    """Yield a member's content, or raise BadZipError."""
    name = repr(member.name[:80])
    if member.method not in (_STORED, _DEFLATED) or member.flags & _ENCRYPTED:
        raise BadZipError(f"{name} is encrypted, or packed by method {member.method}")
    import zlib  # late, because most models are not archives

    size = 0
    crc = 0
    with path.open("rb") as file:
        _seek_content(file, member)
        try:
            for piece in _unpacked(file, member):
                size += len(piece)
                crc = zlib.crc32(piece, crc)
                if size > member.size:
                    break
                yield piece
        except zlib.error as error:
            raise BadZipError(f"{name} is damaged") from error
    if size != member.size or (member.crc is not None and crc != member.crc):
        raise BadZipError(f"{name} is damaged")


def _seek_content(file: BinaryIO, member: Member) -> None:
    """Move behind the header in front of a member's content."""
    file.seek(member.offset)
    head = _exactly(file, _LOCAL_SIZE)
    if head[:4] != _LOCAL:
        raise BadZipError(f"{member.name[:80]!r} is not where the directory says")
    name_size, extra_size = struct.unpack_from("<HH", head, 26)
    file.seek(name_size + extra_size, os.SEEK_CUR)


def _unpacked(file: BinaryIO, member: Member) -> Iterator[bytes]:
    """Yield the unpacked data in bounded pieces."""
    import zlib

    unpack = None
    if member.method == _DEFLATED:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    for start in range(0, member.packed, _PIECE):
        packed = _exactly(file, min(_PIECE, member.packed - start))
        if unpack is None:
            yield packed
            continue
        piece = unpack.decompress(packed, _PIECE)
        while piece:
            yield piece
            piece = unpack.decompress(unpack.unconsumed_tail, _PIECE)


_FOLDERS = ("data/aotinductor/", "code/", "data/")
_FILES = frozenset(
    {
        "bytecode.pkl",
        "constants.pkl",
        "data.pkl",
        "archive_format",
        "serialized_exported_program.json",
    }
)

_KINDS = (
    # Compiled packages come first, because opening such a file would run native code.
    ({"data/aotinductor/"}, "aoti"),
    ({"models/", "archive_format"}, "pt2"),
    ({"serialized_exported_program.json"}, "pt2"),
    ({"bytecode.pkl"}, "ptl"),
    ({"code/", "constants.pkl"}, "torchscript"),
    ({"data.pkl"}, "state_dict"),
)
"""Markers of each kind; the first matching row counts."""


def _marker(name: str) -> str:
    """Return the part of a member's name that identifies the kind, or ""."""
    if name.startswith("models/") and name.endswith(".json"):
        return "models/"
    for folder in _FOLDERS:
        if name.startswith(folder):
            return folder
    if name in _FILES:
        return name
    return ""


def _directory(file: BinaryIO) -> Directory:
    """Find the directory, whose position is at the end of the file."""
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - _END_SIZE - _MAX_COMMENT)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_SIZE:
        raise BadZipError("it is not a zip archive, or is truncated")
    count, length, start = struct.unpack_from("<HII", tail, at + 10)
    directory = Directory(count, length, start, end=begin + at)
    if count == 0xFFFF or 0xFFFFFFFF in (length, start):
        directory = _directory64(file, directory.end)
    if directory.start + directory.size > size:
        raise BadZipError("its directory lies outside the file")
    return directory


def _directory64(file: BinaryIO, end: int) -> Directory:
    """Find the directory of a ZIP64 archive by the record in front of ``end``."""
    file.seek(max(0, end - 20))
    locator = _exactly(file, 20)
    (position,) = struct.unpack_from("<Q", locator, 8)
    if locator[:4] != _LOCATOR64 or position > end:
        raise BadZipError("its large directory is missing")
    file.seek(position)
    record = _exactly(file, 56)
    if record[:4] != _END64:
        raise BadZipError("its large directory is damaged")
    count, length, start = struct.unpack_from("<QQQ", record, 32)
    return Directory(count, length, start, end=position)


def _entry(file: BinaryIO, left: int) -> tuple[Member, int]:
    """Read an entry of the directory; return it with its size in bytes.

    Args:
        left: the bytes up to the directory's end.
    """
    head = _exactly(file, _ENTRY_SIZE)
    (
        flags,
        method,
        crc,
        packed,
        size,
        name_bytes,
        extra_bytes,
        comment_bytes,
        mode,
        offset,
    ) = struct.unpack("<8xHH4xIIIHHH6xHI", head)
    used = _ENTRY_SIZE + name_bytes + extra_bytes + comment_bytes
    if head[:4] != _ENTRY or used > left:
        raise BadZipError("its directory is damaged")
    name = _exactly(file, name_bytes).decode("utf-8", errors="replace")
    extra = _exactly(file, extra_bytes)
    file.seek(comment_bytes, os.SEEK_CUR)
    packed, size, offset = _wide(extra, packed, size, offset)
    member = Member(
        name=name,
        method=method,
        packed=packed,
        size=size,
        offset=offset,
        flags=flags,
        crc=crc,
        mode=mode,
    )
    return member, used


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Return a ZIP64 entry's values.

    The extra field contains, in this order, those that are all ones in the entry.
    """
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            present = min(length, len(extra) - at - 4)
            numbers = struct.unpack_from(f"<{present // 8}Q", extra, at + 4)
            wide = iter(numbers)
            size = _replace_ones(size, wide)
            packed = _replace_ones(packed, wide)
            offset = _replace_ones(offset, wide)
        at += 4 + length
    return packed, size, offset


def _replace_ones(value: int, wide: Iterator[int]) -> int:
    if value == 0xFFFFFFFF:
        return next(wide, value)
    return value


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise BadZipError("it is truncated")
    return data
