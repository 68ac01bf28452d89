"""Read the metadata of ``.tflite`` files.

It is a FlatBuffer inside the model's, in the entry ``TFLITE_METADATA``. Its associated
files, such as labels, are members of a zip archive appended to the model.

Field numbers are those of ``schema.fbs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.flatbuffers import FlatBuffer, FlatTable
from pocketserve.runtimes import metadata

MAX_METADATA_BYTES = 1 << 20
"""Limit of the metadata without its files; real ones have some kilobytes."""

MAX_PROPERTIES_BYTES = 4 * 2**20


def read_metadata(path: Path) -> metadata.ModelMetadata | None:
    """Return a model file's metadata; without any, how its graph rescales pixels."""
    content = read_metadata_bytes(path)
    if content is None:
        return _read_rescaling(path)
    # late: many models have no metadata
    from pocketserve.runtimes.tflite.metadata_parser import parse_metadata

    return parse_metadata(content)


def _read_rescaling(path: Path) -> metadata.ModelMetadata | None:
    from pocketserve.runtimes.rescaling import pixels_unchanged
    from pocketserve.runtimes.tflite.rescaling import takes_unscaled_pixels

    with mapped(path) as data:
        if takes_unscaled_pixels(FlatBuffer(data, b"TFL3").root()):
            return pixels_unchanged()
    return None


def read_metadata_bytes(path: Path) -> bytes | None:
    """Return a model file's serialized metadata, or None."""
    with mapped(path) as data:
        return _find_metadata(FlatBuffer(data, b"TFL3"))


def read_associated_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Return files of the appended archive, up to a total unpacked size."""
    # late: few models have associated files
    from pocketserve.formats.zip_archives import BadZipError, members, read_member

    contents: list[bytes] = []
    name = names[0]
    try:
        entries = {}
        for member in members(path, appended=True):
            if member.name in names:
                entries[member.name] = member
        for name in names:
            entry = entries.get(name)
            if entry is None:
                raise DamagedFileError(f"{path.name} has no file {name!r} in it")
            if entry.size > limit:
                raise DamagedFileError(
                    f"{name} in {path.name} has {entry.size} bytes, more than {limit}"
                )
            content = read_member(path, entry, limit)
            contents.append(content)
            limit -= len(content)
    except (BadZipError, OSError) as error:
        raise DamagedFileError(
            f"{name!r} cannot be read from {path.name}: {error}"
        ) from error
    return contents


PROPERTY_FILES = ("metadata.json", "temp_meta.txt", "meta.txt")
"""Names used by Ultralytics; the last two by older versions and YOLOv5."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the metadata that Ultralytics adds to the archive; may be empty.

    The values are in Python's notation, as in its ONNX files.
    """
    for name in PROPERTY_FILES:
        try:
            (content,) = read_associated_files(path, [name], MAX_PROPERTIES_BYTES)
        except DamagedFileError:
            continue
        return metadata.parse_properties(content)
    return {}


def _find_metadata(model: FlatBuffer) -> bytes | None:
    """Return the content of the entry TFLITE_METADATA, or None.

    Model: 4 buffers, 6 metadata; Metadata: 0 name, 1 buffer. Buffer: 0 data; or, in
    models too large for a FlatBuffer, 1 offset, 2 size.
    """
    root = model.root()
    number = _metadata_buffer(root)
    if number is None:
        return None
    buffer = root.element(4, number)
    if buffer is None:
        raise DamagedFileError(
            f"the description is in buffer {number}, which is not there"
        )
    offset = buffer.integer(1, "Q")
    size = buffer.integer(2, "Q")
    if offset <= 1:
        return buffer.blob(0, MAX_METADATA_BYTES)
    if size > MAX_METADATA_BYTES:
        raise DamagedFileError(f"the description has {size} bytes")
    return model.slice(offset, size)


def _metadata_buffer(root: FlatTable) -> int | None:
    """Return the number of the buffer with the description, or None."""
    entries = root.tables(6, lambda entry: (entry.text(0), entry.integer(1, "I")))
    for name, number in entries:
        if name == "TFLITE_METADATA":
            return number
    return None
