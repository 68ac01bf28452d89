"""The file in the state folder that keeps what ``bench --tune`` found. It only counts where it was measured.

An entry belongs to a version's path, and holds for one content of the file, one device and one version of the
framework. Anything else is passed over with a warning: a wrong number of threads is worse than the default.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pocketserve.engine.cores import top_speed_khz
from pocketserve.engine.tuned import NOT_TUNED, Tuned
from pocketserve.file_lock import locked
from pocketserve.plain_files import make_private_folder
from pocketserve.repository.scan import VersionEntry

log = logging.getLogger(__name__)

MAX_ENTRIES = 1024
MAX_STORE_BYTES = 1 << 20
MAX_TEXT = 300
LIMITS = {"threads": 256, "max_batch": 1024}
AGAIN = "`pocketserve bench NAME --tune` measures again, `--reset` forgets it"


class TuningStore:
    """A small JSON file, read when it exists and has changed. Processes change it one at a time.

    Args:
        path: the file; its folder is made when the first entry is kept.
        device: what the device looks like; a test may inject its own.
    """

    def __init__(self, path: Path, device: Callable[[], str] | None = None) -> None:
        self.path = path
        self._device = device or device_look
        self._lock = threading.Lock()
        self._read_stamp: tuple[int, int] | None = None
        self._entries: dict[str, Any] = {}
        self._damaged = False

    def find(self, version: VersionEntry, content: Callable[[], str]) -> Tuned:
        """What is kept of a version, if it holds here and now.

        Args:
            content: gives the SHA-256 of the version's files; only called where something is kept.
        """
        with self._lock:
            self._refresh()
            entry = self._entries.get(_key(version)) if self._entries else None
        if entry is None:
            return NOT_TUNED
        tuned = _parse(entry)
        if tuned is None:
            _ignored(version, "the entry is damaged")
        elif entry.get("content") != _content_key(version, content()):
            _ignored(version, "the model's files or options have changed")
        elif entry.get("device") != self._device():
            _ignored(version, "it was measured on another device")
        else:
            return tuned
        return NOT_TUNED

    def put(self, version: VersionEntry, content: str, tuned: Tuned) -> None:
        """Keep what was found; the oldest entries make room.

        Args:
            content: the SHA-256 of the version's files.

        Raises:
            OSError: the file cannot be written.
        """
        entry = {
            "content": _content_key(version, content),
            "device": self._device(),
            "runtime": tuned.runtime[:MAX_TEXT],
            "threads": tuned.threads,
            "max_batch": tuned.max_batch,
            "forced": tuned.forced,
            "said": tuned.said[:MAX_TEXT],
        }
        with self._lock, locked(self.path):
            self._refresh()
            self._entries.pop(_key(version), None)
            self._entries[_key(version)] = entry
            while len(self._entries) > MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            self._write()

    def remove(self, version: VersionEntry) -> bool:
        """Forget what is kept of a version; whether there was anything. A file that cannot be read is forgotten whole.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock, locked(self.path):
            self._refresh()
            if self._entries.pop(_key(version), None) is None and not self._damaged:
                return False
            self._write()
            return True

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
        except OSError:
            self._read_stamp, self._entries, self._damaged = None, {}, False
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._read_stamp:
            self._read_stamp = stamp
            found = _read(self.path, status.st_size)
            self._entries, self._damaged = found or {}, found is None

    def _write(self) -> None:
        """Replace the file whole."""
        make_private_folder(self.path.parent)
        name = None
        try:
            import tempfile  # late: a server reads

            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
                name = file.name
                json.dump(self._entries, file)
            os.replace(name, self.path)
        except OSError:
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            raise
        status = self.path.stat()
        self._read_stamp, self._damaged = (status.st_mtime_ns, status.st_ino), False


@functools.cache
def device_look() -> str:
    """What tells this device from another: its processor's kind and the top speeds of all its cores.

    All cores count, not those that the process may use now: Android changes these from minute to minute.
    """
    import platform  # late: a server without tuned models needs none of it

    count = os.cpu_count() or 1
    speeds = sorted((top_speed_khz(core) or 0 for core in range(count)), reverse=True)
    look = f"{platform.machine()} {count} {speeds}"
    return look if len(look) <= MAX_TEXT else hashlib.sha256(look.encode()).hexdigest()


def _key(version: VersionEntry) -> str:
    return f"{os.path.realpath(version.path)}#{version.name}"


def _content_key(version: VersionEntry, content: str) -> str:
    """Options count: another delegate is another speed."""
    options = json.dumps(dict(version.options), sort_keys=True, default=str)
    return f"{version.kind.name}:{content}:{hashlib.sha256(options.encode()).hexdigest()}"


def _read(path: Path, size: int) -> dict[str, Any] | None:
    """The file's entries; None if it cannot be read as such."""
    try:
        if size > MAX_STORE_BYTES:
            raise ValueError(f"it has more than {MAX_STORE_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or len(document) > MAX_ENTRIES:
            raise ValueError(f"it is no object of at most {MAX_ENTRIES} entries")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:MAX_TEXT]
        log.warning("%s cannot be read and is ignored (%s); %s", path, reason, AGAIN)
        return None
    return document


def _parse(entry: Any) -> Tuned | None:
    """An entry's settings; None if anything is not as it was written."""
    if not isinstance(entry, Mapping):
        return None
    numbers = {key: entry.get(key) for key in LIMITS}
    if any(value is not None and not _within(value, LIMITS[key]) for key, value in numbers.items()):
        return None
    runtime, said, forced = entry.get("runtime"), entry.get("said"), entry.get("forced")
    if not isinstance(runtime, str) or not isinstance(said, str) or not isinstance(forced, bool):
        return None
    return Tuned(numbers["threads"], numbers["max_batch"], forced, runtime[:MAX_TEXT], said[:MAX_TEXT])


def _within(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _ignored(version: VersionEntry, why: str) -> None:
    log.warning("what was tuned for %s, version %r, is ignored: %s; %s", version.path.name, version.name, why, AGAIN)
