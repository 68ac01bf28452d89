"""What a server that was killed leaves in the state folder: working folders of trials, and half-written files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pocketserve.state.file_lock import locked

PREFIX: Final = "trial-"
_HALF_WRITTEN: Final = "tmp"
"""How ``tempfile`` calls what the stores of the state folder write before they replace a file."""

_NAME_CHARS: Final = len(_HALF_WRITTEN) + 8


def spare_folder() -> Path:
    """Make, and return, the folder of our own for trials while the state folder cannot be written.

    Raises:
        OSError: there is none, or it is not ours alone.
    """
    import tempfile  # late: few starts need it

    folder = Path(tempfile.gettempdir(), f"pocketserve-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "somebody else's folder is in the way", str(folder))
    return folder


def sweep(state_dir: Path) -> None:
    """Remove what belongs to nobody any more, and is ours. What a living server works with is left alone."""
    if not state_dir.is_dir():
        return
    with locked(state_dir / "any") as alone:  # nobody makes a trial's folder or replaces a file meanwhile
        if not alone:
            return
        with contextlib.suppress(OSError), os.scandir(state_dir) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError):
                    _sweep_one(entry)


def _sweep_one(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.geteuid():
        return
    half_written = entry.name.startswith(_HALF_WRITTEN) and len(entry.name) == _NAME_CHARS
    if stat.S_ISREG(status.st_mode) and half_written:
        os.unlink(entry.path)
    elif stat.S_ISDIR(status.st_mode) and entry.name.startswith(PREFIX):
        with _held(Path(entry.path)):
            remove(entry.path)


def remove(folder: str) -> None:
    """Remove a folder that a trial wrote to, however deep what lies in it: folders in folders are lifted out of it.

    What else removes trees calls itself for each level, and would end the server, at each of its starts.
    """
    with contextlib.suppress(OSError):
        while inside := [*os.scandir(folder)]:
            for entry in inside:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in [*os.scandir(entry.path)]:
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)  # what may not be written to cannot be moved
                    os.rename(inner.path, os.path.join(folder, os.urandom(8).hex()))
                os.rmdir(entry.path)
        os.rmdir(folder)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which the kernel gives up with its owner.

    Raises:
        OSError: its owner lives.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def working_folder(state_dir: Path) -> Iterator[str]:
    """A folder for one trial, which no other server sweeps as long as this one lives.

    Raises:
        OSError: it cannot be made.
    """
    import tempfile  # late: known files need no trial

    with contextlib.ExitStack() as stack:
        with locked(state_dir / "any"):
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=state_dir)
            stack.callback(remove, folder)
            with contextlib.suppress(OSError):  # a file system without locks
                stack.enter_context(_held(Path(folder)))
        yield folder
