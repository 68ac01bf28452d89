"""Private copies of model files, which nobody changes.

Frameworks map weights. If a mapped file is overwritten in place (``cp``, ``curl -o``,
``rsync --inplace``), the model computes garbage; if it is truncated, the process ends
(SIGBUS). So the owner's file is copied and hashed in one pass, and the copy is opened.
A copy on disk uses no extra memory, because its weights are mapped, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pocketserve.repository.files import (
    base_of,
    combine_hashes,
    read_error,
    stamp,
    version_files,
)
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.state.folder_lock import WorkFolder, locked, sweep
from pocketserve.state.permissions import make_private_folder
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.files.plain_file import open_plain

_PREFIX = "pocketserve-snapshot-"
FOLDER = "snapshots"
ATTEMPTS = 3  # copies of files that change meanwhile

CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409
"""ioctl of linux/fs.h: the copy shares the file's blocks (Btrfs, XFS)."""


class Snapshot:
    """A private copy of a version's files.

    Attributes:
        path: the version's file or folder under its own name; a file is in a folder
            with its original folder's name.
        digest: see :func:`~pocketserve.repository.files.content_digest`.
        size: in bytes.
    """

    def __init__(
        self,
        remove: Callable[[], None],
        path: Path,
        copies: Sequence[Path],
        digest: str,
        size: int,
    ) -> None:
        self.path = path
        self.digest = digest
        self.size = size
        self._copies = copies
        self._stamp = stamp(copies)
        self._remove = weakref.finalize(self, remove)  # at the end of the process, too

    def check(self) -> None:
        """Raise ModelLoadError if the copy was modified."""
        if stamp(self._copies) != self._stamp:
            raise ModelLoadError(
                "its private copy in the state folder was changed; load the model again"
            )

    def close(self) -> None:
        """Remove the copy; mapped files stay usable."""
        self._remove()


class SnapshotStore:
    """Creates snapshots in the state folder, or temporary ones."""

    def __init__(self, state_dir: Path | None = None) -> None:
        self._folder = None if state_dir is None else state_dir / FOLDER
        self._swept = False

    def take(self, version: VersionEntry, folder: Path) -> Snapshot:
        """Copy a version's files into a snapshot.

        Raises:
            ModelLoadError: a file is unreadable, or outside the folder.
            ApiError: MODEL_NOT_READY, there is no space for the copy, or the files are
                being written.
        """
        for _ in range(ATTEMPTS):
            files = version_files(version)
            originals = stamp(files)
            size = sum(entry[1] for entry in originals)
            contained = {path: _contained(path, folder) for path in files}
            snapshot = self._copy(version, contained, size)
            if stamp(version_files(version)) == originals:
                return snapshot
            snapshot.close()
        raise ApiError(
            ErrorCode.MODEL_NOT_READY,
            f"the files of {version.path.name} are being written; try again when they "
            "are complete",
            retry_after_s=1,
        )

    def _copy(
        self, version: VersionEntry, files: Mapping[Path, Path], size: int
    ) -> Snapshot:
        """Copy files to the first folder with enough space.

        Args:
            files: real path by path.
        """
        makers = [_make_temporary]
        if self._folder is not None:
            makers.insert(0, self._make_in_state)
        reasons = []
        for make in makers:
            try:
                with contextlib.ExitStack() as stack:
                    folder = make()
                    stack.callback(folder.remove)
                    path, copies, digest = _fill(folder.path, version, files, size)
                    return Snapshot(stack.pop_all().close, path, copies, digest, size)
            except OSError as error:
                reasons.append(error.strerror or str(error))
        room = _temporary_folder() if self._folder is None else self._folder.parent
        raise ApiError(
            ErrorCode.MODEL_NOT_READY,
            f"there is no space for a private copy of {version.path.name} "
            f"({size} bytes): {reasons[0]}; make room in {room}, which the server "
            "writes to",
            retry_after_s=1,
        )

    def _make_in_state(self) -> WorkFolder:
        assert self._folder is not None
        if not self._swept:
            self._swept = True
            sweep(self._folder)
        with locked(self._folder):
            return WorkFolder(self._folder)


def with_own_paths(text: str, version: VersionEntry) -> str:
    """Replace the private copy's paths in a message."""
    return re.sub(
        rf"/\S*?/({FOLDER}/|{_PREFIX})[0-9a-f]{{16}}(?=/)",
        lambda _: str(base_of(version).parent),
        text,
    )


def _make_temporary() -> WorkFolder:
    return WorkFolder(_temporary_folder(), _PREFIX)


def _temporary_folder() -> Path:
    import tempfile  # late, because it is rarely needed and slows a cold start

    return Path(tempfile.gettempdir())


def _fill(
    folder: Path, version: VersionEntry, files: Mapping[Path, Path], size: int
) -> tuple[Path, list[Path], str]:
    """Copy files; return version path, copies and digest."""
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    base = base_of(version)
    target = folder / base.name
    copies = []
    hashes = []
    for path, real in files.items():
        name = path.relative_to(base)
        copy = target / name
        digest = _copy(real, copy)
        copies.append(copy)
        hashes.append((digest, name))
    path = target
    if version.path != base:
        path = target / version.path.name
    return path, copies, combine_hashes(hashes)


def _contained(path: Path, folder: Path) -> Path:
    # Resolved once, since links may change. Unlike resolve(), it accepts link cycles.
    resolved = Path(os.path.realpath(path))
    if not resolved.is_relative_to(os.path.realpath(folder)):
        raise ModelLoadError(
            f"{path.name} is a link that leaves its folder; copy the file into it"
        )
    return resolved


def _copy(original: Path, target: Path) -> str:
    """Copy one file and return its SHA-256."""
    try:
        source = open_plain(original)
    except OSError as error:
        raise read_error(error) from None
    with source:
        make_private_folder(target.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(target, flags, 0o400), "r+b") as copy:
            try:
                fcntl.ioctl(copy, _FICLONE, source.fileno())
            except OSError:  # the file system does not support it
                return _copy_content(source, copy, original)
            return hashlib.file_digest(copy, "sha256").hexdigest()


def _copy_content(source: BinaryIO, copy: BinaryIO, original: Path) -> str:
    """Copy a file's bytes, and return their SHA-256."""
    digest = hashlib.sha256()
    left = os.fstat(source.fileno()).st_size  # a growing file might never end
    while left > 0:
        try:
            chunk = os.read(source.fileno(), min(left, CHUNK_BYTES))
        except OSError as error:
            error.filename = str(original)
            raise read_error(error) from None
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
        copy.write(chunk)
    return digest.hexdigest()
