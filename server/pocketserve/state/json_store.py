"""A small JSON object in the state folder, shared with other processes of the same user."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pocketserve.state.file_lock import locked
from pocketserve.state.ownership import other_writer
from pocketserve.state.plain_files import make_private_folder, read_plain

T = TypeVar("T")


class JsonStore(Generic[T]):
    """Entries by key. Other processes may change the file, one at a time; it is read again then.

    A file that another user could have written counts as empty: what it says may let files in.

    Args:
        path: the file; its folder is made when the first entry is kept. Its mode is 0600.
        parse: makes an entry of a JSON value; None drops a damaged one.
        dump: makes a JSON value of an entry.
        max_entries: the oldest make room for more.
        max_bytes: a larger file is not read.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[Any], T | None],
        dump: Callable[[T], Any],
        max_entries: int,
        max_bytes: int = 8 << 20,
    ) -> None:
        self._path = path
        self._parse = parse
        self._dump = dump
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._read_stamp: tuple[int, int] | None = None
        self._entries: Mapping[str, T] = {}

    def entries(self) -> Mapping[str, T]:
        """Return all entries, oldest first. The mapping does not change afterwards."""
        with self._lock:
            self._refresh()
            return self._entries

    def change(self, update: Callable[[dict[str, T]], None]) -> None:
        """Apply a function to the entries and write them back.

        Raises:
            OSError: the file cannot be written. The change holds for this process all the same.
        """
        with self._lock, locked(self._path):
            self._refresh()
            entries = dict(self._entries)
            update(entries)
            while len(entries) > self._max_entries:
                del entries[next(iter(entries))]
            self._entries = entries
            self._write()

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except OSError:
            self._read_stamp = None
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._read_stamp:
            return
        if status.st_size <= self._max_bytes:
            self._entries = {} if other_writer(self._path) or other_writer(self._path.parent) else self._read()
            self._read_stamp = stamp

    def _read(self) -> dict[str, T]:
        try:
            document = json.loads(read_plain(self._path, self._max_bytes).decode("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        found = document.items() if isinstance(document, Mapping) else ()
        parsed = ((str(key), self._parse(value)) for key, value in found)
        return {key: entry for key, entry in parsed if entry is not None}

    def _write(self) -> None:
        """Replace the file whole."""
        import tempfile  # late: a start mostly reads

        make_private_folder(self._path.parent)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump({key: self._dump(entry) for key, entry in self._entries.items()}, file)
            os.replace(name, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        status = self._path.stat()
        self._read_stamp = (status.st_mtime_ns, status.st_ino)
