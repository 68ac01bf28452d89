"""Private copies of model files: what was hashed is what is tried and served, whatever becomes of the files.

Frameworks map weights. A mapped file that is written to in place (``cp``, ``curl -o``, ``rsync --inplace``) gives other
numbers, and one that becomes shorter ends the process (SIGBUS). So the owner's file is copied and hashed in one go, and
the copy is opened. A copy on disk costs no memory: its weights are mapped, as the original's would be.
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
ATTEMPTS = 3  # copies that are made of files which somebody writes to meanwhile

CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409
"""ioctl of linux/fs.h: the copy shares the file's blocks until one of both is written to (Btrfs, XFS)."""


class Snapshot:
    """A version's files as they were at one moment, in a folder of their own. It goes when nothing refers to it.

    Attributes:
        path: the version's file or folder under its own name; a file lies in a folder that is called as its own was.
        digest, size: of the content, as :func:`~pocketserve.repository.files.content_digest` has it, and in bytes.
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
        """Raise ModelLoadError if somebody wrote into the state folder."""
        if stamp(self._copies) != self._stamp:
            raise ModelLoadError(
                "its private copy in the state folder was changed; load the model again"
            )

    def close(self) -> None:
        """Remove the copy. What is mapped of it stays until it is unmapped."""
        self._remove()


class SnapshotStore:
    """Makes snapshots in the state folder; without one, or without room in it, in that for temporary files."""

    def __init__(self, state_dir: Path | None = None) -> None:
        self._folder = None if state_dir is None else state_dir / FOLDER
        self._swept = False

    def take(self, version: VersionEntry, folder: Path) -> Snapshot:
        """Copy a version's files; no link may leave the model's folder.

        Raises:
            ModelLoadError: a file cannot be read, or lies elsewhere.
            ApiError: MODEL_NOT_READY, there is no room for the copy, or the files are being written.
        """
        for _ in range(ATTEMPTS):
            files = version_files(version)
            originals = stamp(files)
            size = sum(entry[1] for entry in originals)
            snapshot = self._copy(
                version, {path: _contained(path, folder) for path in files}, size
            )
            if stamp(version_files(version)) == originals:
                return snapshot
            snapshot.close()
        text = f"the files of {version.path.name} are being written; ask again once they are there"
        raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1)

    def _copy(
        self, version: VersionEntry, files: Mapping[Path, Path], size: int
    ) -> Snapshot:
        """Copy files, by what each is once links are followed, to the first folder that has room for them."""
        reasons = []
        for make in (
            (_make_temporary,)
            if self._folder is None
            else (self._make_in_state, _make_temporary)
        ):
            try:
                with contextlib.ExitStack() as stack:
                    folder = make()
                    stack.callback(folder.remove)
                    path, copies, digest = _fill(folder.path, version, files, size)
                    return Snapshot(stack.pop_all().close, path, copies, digest, size)
            except OSError as error:
                reasons.append(error.strerror or str(error))
        room = _temporary_folder() if self._folder is None else self._folder.parent
        text = f"there is no place for a private copy of {version.path.name} ({size} bytes): {reasons[0]}"
        text += f"; make room in {room}, which the server writes to"
        raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1)

    def _make_in_state(self) -> WorkFolder:
        assert self._folder is not None
        if not self._swept:
            self._swept = True
            sweep(self._folder)
        with locked(self._folder):
            return WorkFolder(self._folder)


def with_own_paths(text: str, version: VersionEntry) -> str:
    """Return a framework's words with the paths of the owner's files in place of those of the private copy."""
    return re.sub(
        rf"/\S*?/({FOLDER}/|{_PREFIX})[0-9a-f]{{16}}(?=/)",
        lambda _: str(base_of(version).parent),
        text,
    )


def _make_temporary() -> WorkFolder:
    return WorkFolder(_temporary_folder(), _PREFIX)


def _temporary_folder() -> Path:
    import tempfile  # late: it is hardly ever needed, and a cold start would wait for it

    return Path(tempfile.gettempdir())


def _fill(
    folder: Path, version: VersionEntry, files: Mapping[Path, Path], size: int
) -> tuple[Path, list[Path], str]:
    """Copy the files; return the version's path in the folder, all copies, and the digest of the content."""
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    base = base_of(version)
    target = folder / base.name
    names = [path.relative_to(base) for path in files]
    hashes = [
        (_copy(real, target / name), name)
        for real, name in zip(files.values(), names, strict=True)
    ]
    path = target if version.path == base else target / version.path.name
    return path, [target / name for name in names], combine_hashes(hashes)


def _contained(path: Path, folder: Path) -> Path:
    # Once, since links may change. Unlike resolve, it takes a link that leads to itself.
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
        digest = hashlib.sha256()
        with open(
            os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400),
            "r+b",
        ) as copy:
            try:
                fcntl.ioctl(copy, _FICLONE, source.fileno())
            except OSError:  # another file system, or one that cannot
                pass
            else:
                return hashlib.file_digest(copy, "sha256").hexdigest()
            left = os.fstat(
                source.fileno()
            ).st_size  # what grows meanwhile might have no end
            while left > 0:
                try:
                    chunk = os.read(source.fileno(), min(left, CHUNK_BYTES))
                except OSError as error:
                    raise read_error(
                        OSError(error.errno, error.strerror, str(original))
                    ) from None
                if not chunk:
                    break
                digest.update(chunk)
                left -= len(chunk)
                copy.write(chunk)
    return digest.hexdigest()
