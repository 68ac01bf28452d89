"""Small JSON files that are replaced as a whole."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pocketserve.state.folder_lock import PARTIAL_SUFFIX, locked
from pocketserve.state.permissions import other_writer
from pocketserve_wire.files.plain_file import read_plain

MAX_ENTRIES: Final = 4096
MAX_BYTES: Final = 8 << 20

T = TypeVar("T", bound=NamedTuple)


class JsonStore(Generic[T]):
    """Entries by key in a file shared with other processes.

    A file that another user could have written counts as empty, because its entries may
    decide which models are loaded.

    Args:
        parse: converts a JSON value to an entry; raises TypeError, KeyError or
            ValueError for damaged values, which are dropped.
    """

    def __init__(self, path: Path, parse: Callable[[Any], T]) -> None:
        self._path = path
        self._parse = parse
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._entries: Mapping[str, T] = {}

    def entries(self) -> Mapping[str, T]:
        """Return an immutable snapshot of all entries, oldest first."""
        with self._lock:
            self._refresh()
            return self._entries

    def change(self, added: Mapping[str, T], removed: Collection[str] = ()) -> None:
        """Add and remove entries; beyond ``MAX_ENTRIES`` drop the oldest.

        If the file cannot be written, OSError is raised, but the change is still
        effective in this process.
        """
        with self._lock, locked(self._path.parent):
            self._refresh()
            entries = {}
            for key, entry in self._entries.items():
                if key not in removed and key not in added:
                    entries[key] = entry
            entries.update(added)
            self._entries = dict(list(entries.items())[-MAX_ENTRIES:])
            document = {key: entry._asdict() for key, entry in self._entries.items()}
            replace_json(self._path, document)
            self._stamp = file_stamp(self._path)

    def _refresh(self) -> None:
        stamp = file_stamp(self._path)
        if stamp not in (None, self._stamp):
            self._entries = self._read()
        self._stamp = stamp

    def _read(self) -> dict[str, T]:
        if other_writer(self._path) or other_writer(self._path.parent):
            return {}
        entries: dict[str, T] = {}
        with suppress(OSError, ValueError, RecursionError):
            document = json.loads(read_plain(self._path, MAX_BYTES))
            if not isinstance(document, dict):
                return {}
            for key, value in document.items():
                with suppress(TypeError, KeyError, ValueError):
                    entries[key] = self._parse(value)
        return entries


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with a file, or None.

    It changes if the file is replaced, written, or gets another mode.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def replace_json(path: Path, document: Any) -> None:
    """Replace a whole private JSON file, or raise OSError."""
    replace_file(path, json.dumps(document).encode())


def replace_file(
    path: Path, content: bytes, mode: int = 0o600, *, durable: bool = False
) -> None:
    """Replace a whole file; on OSError nothing is left behind.

    Other users may be able to write to its folder, so the temporary name is random.

    Args:
        durable: write the content to disk before returning, so that a power cut leaves
            the old file or the new one.
    """
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}{PARTIAL_SUFFIX}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(descriptor)
            if mode != 0o600:
                os.fchmod(descriptor, mode)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
