"""Faults of a version's file that show without opening it as a model, for listings.

A file may be mended at any time, and then serves: so a scan does not keep them.
"""

from __future__ import annotations

import errno
import os

from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.model_files import failed_download
from pocketserve_wire.files.plain_file import open_plain

_ZIP = (0, b"PK")


def file_fault(version: VersionEntry) -> str | None:
    """Return why a version's file, or the one that marks its folder, cannot be served; None where nothing shows.

    Only its status and its first bytes are read.
    """
    path, kind = version.path, version.format
    if kind.marker is not None and path.is_dir():
        path = path / kind.marker
    if path.name == kind.marker and path.is_symlink():
        return f"{path.name} is a link: copy the file itself into the folder"
    if (words := failed_download(path)) is not None:
        return words
    try:
        if not os.path.isfile(path):  # false for a link that leads to itself; a device is not even opened
            raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere, or no regular file")
        with open_plain(path) as file:
            head = file.read(8)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror}): put a file there that this user may read"
    if not head:
        return f"{path.name} is empty: copy or download it again"
    marks = (*kind.magic, _ZIP) if kind.zipped else kind.magic
    if marks and not any(head[at:].startswith(mark) for at, mark in marks):
        return f"{path.name} is no {kind.name} file: copy or export it again, or rename it after what it is"
    return None
