"""Reads the files, such as labels, that a ``.tflite`` file carries: members of a zip archive appended to the model.

They come from strangers; what is read is bounded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from pocketserve.formats import DamagedFileError

MAX_FILE_BYTES = 8 << 20
"""Default limit of an associated file. A vocabulary of 250,000 words is about 3 MB."""

_ARCHIVE_END_BYTES = 22 + 0xFFFF
"""The record at an archive's end, and the longest comment behind it."""

MAX_PROPERTIES_BYTES = 4 * 2**20

MAX_DIRECTORY_BYTES = 1 << 20
"""Size of the archive's directory: thousands of files."""


def read_associated_file(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """A file out of the archive at the model's end; see :func:`read_associated_files`."""
    return read_associated_files(path, [name], limit)[0]


def read_associated_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Files out of the archive at the model's end, which is opened once.

    Args:
        limit: most bytes that they may have together once unpacked.

    Raises:
        DamagedFileError: no such file, a damaged archive, or more bytes than the limit.
    """
    name = names[0]
    try:
        if not _has_archive(path):
            raise DamagedFileError(f"{name!r} cannot be read from {path.name}: the file holds no archive")
        import zipfile  # late: few files carry others

        found, left = [], limit
        with path.open("rb") as file, zipfile.ZipFile(_Capped(file)) as archive:
            for name in names:
                info = archive.getinfo(name)
                if info.file_size > left:
                    raise DamagedFileError(f"{name} in {path.name} has {info.file_size} bytes, more than {left}")
                with archive.open(info) as member:
                    found.append(member.read(left))
                left -= len(found[-1])
        return found
    except DamagedFileError:
        raise
    except KeyError as error:
        raise DamagedFileError(f"{path.name} has no file {name!r} in it") from error
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives
        raise DamagedFileError(f"{name!r} cannot be read from {path.name}: {error}") from error


def _has_archive(path: Path) -> bool:
    """Return whether the mark of an archive's end lies where it can."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - _ARCHIVE_END_BYTES))
        return b"PK\5\6" in file.read(_ARCHIVE_END_BYTES)


class _Capped(io.RawIOBase):
    """A file that refuses to give much at once: zipfile reads the directory in one piece, of any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        wanted = MAX_DIRECTORY_BYTES + 1 if size is None or size < 0 else size
        if wanted > MAX_DIRECTORY_BYTES + 1:
            raise DamagedFileError(f"the archive's directory has more than {MAX_DIRECTORY_BYTES} bytes")
        return self._file.read(wanted)


def read_properties(path: Path) -> dict[str, str]:
    """Return the ``metadata.json`` that Ultralytics puts into the archive, as texts; empty where there is none.

    The values are in Python's notation, as in its ONNX files.
    """
    try:
        content = json.loads(read_associated_file(path, "metadata.json", MAX_PROPERTIES_BYTES))
    except (DamagedFileError, ValueError, RecursionError):
        return {}
    return {name: str(value) for name, value in content.items()} if isinstance(content, dict) else {}
