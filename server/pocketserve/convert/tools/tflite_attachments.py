"""The files, such as labels, that a TFLite model carries: a zip archive behind it, which other tools drop."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

from pocketserve.convert.converter import ConversionError

MAX_ATTACHED_BYTES = 64 * 2**20
"""Of all of them, unpacked: more are no labels."""


def copy_attached(source: Path, output: Path) -> None:
    """Append the files that a TFLite model carries to another one.

    Raises:
        ConversionError: they are too large or damaged.
    """
    if not is_zipfile(source):
        return
    try:
        with ZipFile(source) as old, ZipFile(output, "a") as new:
            if sum(member.file_size for member in old.infolist()) > MAX_ATTACHED_BYTES:
                raise ConversionError(f"the files that {source.name} carries take more than {MAX_ATTACHED_BYTES} bytes")
            for member in old.infolist():
                new.writestr(member.filename, old.read(member), member.compress_type)
    except (BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise ConversionError(f"the files that {source.name} carries cannot be read: {error}") from error
