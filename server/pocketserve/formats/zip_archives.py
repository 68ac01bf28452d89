"""Tells PyTorch's zip archives apart by their members' names, and reads small members within bounds.

TorchScript, its mobile form, exported programs, compiled packages and plain weights all are zips, often under the
same ending. The directory is read here in steps: ``zipfile`` would make an object of every entry that a hostile file
claims. Only names decide, nothing is unpickled. Layout: APPNOTE.TXT of PKWARE, sections 4.3.12 to 4.3.16.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pocketserve_wire.records import dataclass

MAX_ENTRIES = 200_000
"""A model has one entry per weight tensor: the largest have some ten thousand."""

MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
"""The same bound in bytes: over 300 for each entry."""

_END, _END64, _LOCATOR64, _ENTRY, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
_END_SIZE, _ENTRY_SIZE, _LOCAL_SIZE = 22, 46, 30
_MAX_COMMENT = 0xFFFF
_STORED, _DEFLATED = 0, 8


class BadZipError(ValueError):
    """Not a zip, a damaged one, or one beyond the bounds."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the directory; ``name`` is without the archive's own top folder."""

    name: str
    method: int
    packed: int
    size: int
    offset: int


def kind_of_zip(path: Path) -> str | None:
    """Return what a PyTorch zip is.

    Returns:
        ``torchscript``, ``ptl``, ``pt2``, ``aoti`` (compiled native code), ``state_dict`` (weights only), or None for
        anything else, damaged files among it.
    """
    try:
        return _decide({_marker(member.name) for member in members(path)})
    except (BadZipError, OSError):
        return None


def members(path: Path) -> Iterator[Member]:
    """The directory's entries, read in steps.

    Raises:
        BadZipError: no zip, damaged, or beyond the bounds.
    """
    with path.open("rb") as file:
        count, size, start = _directory(file)
        if count > MAX_ENTRIES or size > MAX_DIRECTORY_BYTES:
            raise BadZipError(f"its directory claims {count} entries in {size} bytes")
        file.seek(start)
        left = size
        for _ in range(count):
            member, used = _entry(file, left)
            left -= used
            yield member


def read_member(path: Path, member: Member, maximum: int) -> bytes:
    """A member's content, if it is no longer than ``maximum`` bytes.

    Raises:
        BadZipError: it is longer, damaged, or packed in an unknown way.
    """
    if member.size > maximum or member.packed > maximum + 1024:
        raise BadZipError(f"{member.name[:80]!r} is larger than {maximum} bytes")
    with path.open("rb") as file:
        file.seek(member.offset)
        head = _exactly(file, _LOCAL_SIZE)
        if head[:4] != _LOCAL:
            raise BadZipError(f"{member.name[:80]!r} is not where the directory says")
        file.seek(sum(struct.unpack_from("<HH", head, 26)), os.SEEK_CUR)
        packed = _exactly(file, member.packed)
    return _unpacked(member, packed, maximum)


def _unpacked(member: Member, packed: bytes, maximum: int) -> bytes:
    if member.method == _STORED:
        return packed
    if member.method != _DEFLATED:
        raise BadZipError(f"{member.name[:80]!r} is packed by method {member.method}")
    import zlib  # late: most models are no archives

    try:
        # A few bytes may claim gigabytes; zlib stops at the bound.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, maximum)
    except zlib.error as error:
        raise BadZipError(f"{member.name[:80]!r} is damaged") from error


def _marker(name: str) -> str:
    """The part of a member's name that tells the kind, or an empty text; so that the set of them stays small."""
    for folder in ("data/aotinductor/", "code/", "data/"):
        if name.startswith(folder):
            return folder
    if name.startswith("models/") and name.endswith(".json"):
        return "models/"
    return name if name in _FILES else ""


_FILES = frozenset({"bytecode.pkl", "constants.pkl", "data.pkl", "archive_format", "serialized_exported_program.json"})


def _decide(markers: set[str]) -> str | None:
    # Compiled packages come first: whatever else such a file holds, opening it would run native code.
    if "data/aotinductor/" in markers:
        return "aoti"
    if {"models/", "archive_format"} <= markers or "serialized_exported_program.json" in markers:
        return "pt2"
    if "bytecode.pkl" in markers:
        return "ptl"
    if {"code/", "constants.pkl"} <= markers:
        return "torchscript"
    return "state_dict" if "data.pkl" in markers else None


def _directory(file: BinaryIO) -> tuple[int, int, int]:
    """Count of entries, bytes and start of the directory, from the record at the file's end."""
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - _END_SIZE - _MAX_COMMENT)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_SIZE:
        raise BadZipError("it is no zip archive, or is cut short")
    count, length, start = struct.unpack_from("<HII", tail, at + 10)
    if count == 0xFFFF or 0xFFFFFFFF in (length, start):
        count, length, start = _directory64(file, begin + at)
    if start + length > size:
        raise BadZipError("its directory lies outside the file")
    return count, length, start


def _directory64(file: BinaryIO, end: int) -> tuple[int, int, int]:
    if end < 20:
        raise BadZipError("its large directory is missing")
    file.seek(end - 20)
    locator = _exactly(file, 20)
    if locator[:4] != _LOCATOR64:
        raise BadZipError("its large directory is missing")
    (position,) = struct.unpack_from("<Q", locator, 8)
    if position > end:
        raise BadZipError("its large directory lies outside the file")
    file.seek(position)
    record = _exactly(file, 56)
    if record[:4] != _END64:
        raise BadZipError("its large directory is damaged")
    count, length, start = struct.unpack_from("<QQQ", record, 32)
    return count, length, start


def _entry(file: BinaryIO, left: int) -> tuple[Member, int]:
    head = _exactly(file, _ENTRY_SIZE)
    method, packed, size = *struct.unpack_from("<H", head, 10), *struct.unpack_from("<II", head, 20)
    names, extras, comment = struct.unpack_from("<HHH", head, 28)
    (offset,) = struct.unpack_from("<I", head, 42)
    used = _ENTRY_SIZE + names + extras + comment
    if head[:4] != _ENTRY or used > left:
        raise BadZipError("its directory is damaged")
    name = _exactly(file, names).decode("utf-8", errors="replace")
    extra = _exactly(file, extras)
    file.seek(comment, os.SEEK_CUR)
    packed, size, offset = _wide(extra, packed, size, offset)
    # Every archive of PyTorch's has one top folder of any name.
    return Member(name.partition("/")[2] or name, method, packed, size, offset), used


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Values of a ZIP64 entry: the extra field holds, in this order, those that are all ones in the entry."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{min(length, len(extra) - at - 4) // 8}Q", extra, at + 4))
            size, packed, offset = (
                next(wide, value) if value == 0xFFFFFFFF else value for value in (size, packed, offset)
            )
        at += 4 + length
    return packed, size, offset


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise BadZipError("it is cut short")
    return data
