"""Reads the files, such as labels, that a ``.tflite`` file carries: members of a zip archive appended to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError

MAX_PROPERTIES_BYTES = 4 * 2**20


def read_associated_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Return files out of the archive at the model's end, unpacked not more bytes together than the limit."""
    from pocketserve.formats.zip_archives import BadZipError, members, read_member  # late: few files carry others

    contents: list[bytes] = []
    name = names[0]
    try:
        entries = {member.name: member for member in members(path, appended=True) if member.name in names}
        for name in names:
            if name not in entries:
                raise DamagedFileError(f"{path.name} has no file {name!r} in it")
            if entries[name].size > limit:
                raise DamagedFileError(f"{name} in {path.name} has {entries[name].size} bytes, more than {limit}")
            contents.append(read_member(path, entries[name], limit))
            limit -= len(contents[-1])
    except (BadZipError, OSError) as error:
        raise DamagedFileError(f"{name!r} cannot be read from {path.name}: {error}") from error
    return contents


def read_properties(path: Path) -> dict[str, str]:
    """Return the ``metadata.json`` that Ultralytics puts into the archive, as texts; empty where there is none.

    The values are in Python's notation, as in its ONNX files.
    """
    try:
        content = json.loads(read_associated_files(path, ["metadata.json"], MAX_PROPERTIES_BYTES)[0])
    except (DamagedFileError, ValueError, RecursionError):
        return {}
    return {name: str(value) for name, value in content.items()} if isinstance(content, dict) else {}
