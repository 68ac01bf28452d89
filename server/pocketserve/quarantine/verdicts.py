"""What is known of model files, by the SHA-256 of their content, kept in the state folder."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pocketserve.file_lock import locked
from pocketserve_wire.records import dataclass

MAX_VERDICTS = 4096
MAX_STORE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial ended.

    Attributes:
        ok: whether the server may load the file.
        reason: why not, in words; for a good file, what the trial could not do.
        runtime: the framework that was tried, with its version.
        path: where a file lay that was refused.
        seen: what its files looked like then, see :meth:`~pocketserve.quarantine.quarantine.Quarantine.known_reason`.
    """

    ok: bool
    reason: str = ""
    runtime: str = ""
    path: str = ""
    seen: str = ""


class VerdictStore:
    """A small JSON file. Other processes may change it (``inspect --release``), one at a time; it is read again then.

    Args:
        path: the file; its folder is made when the first verdict is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read_stamp: tuple[int, int] | None = None
        self._verdicts: dict[str, Verdict] = {}

    def get(self, key: str) -> Verdict | None:
        """The verdict on a content, if there is one."""
        with self._lock:
            self._refresh()
            return self._verdicts.get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict; the oldest ones make room."""
        with self._lock, locked(self._path):
            self._refresh()
            self._verdicts.pop(key, None)
            self._verdicts[key] = verdict
            while len(self._verdicts) > MAX_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            self._write()

    def remove(self, key: str) -> bool:
        """Forget a verdict; whether there was one."""
        with self._lock, locked(self._path):
            self._refresh()
            if self._verdicts.pop(key, None) is None:
                return False
            self._write()
            return True

    def refused(self) -> dict[str, Verdict]:
        """The verdicts that keep a file from being loaded, by key."""
        with self._lock:
            self._refresh()
            return {key: verdict for key, verdict in self._verdicts.items() if not verdict.ok}

    def refused_at(self, path: Path) -> list[Verdict]:
        """The verdicts that keep what lies, or lay, at a path from being loaded."""
        with self._lock:
            self._refresh()
            return [v for v in self._verdicts.values() if not v.ok and v.path == str(path)]

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except OSError:
            self._read_stamp = None
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._read_stamp and status.st_size <= MAX_STORE_BYTES:
            self._verdicts = _parse(self._path)
            self._read_stamp = stamp

    def _write(self) -> None:
        """Replace the file whole. A state folder that cannot be written costs trials, not the service."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            import tempfile  # late: a start mostly reads

            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump({key: asdict(verdict) for key, verdict in self._verdicts.items()}, file)
            os.replace(file.name, self._path)
            status = self._path.stat()
            self._read_stamp = (status.st_mtime_ns, status.st_ino)


def _parse(path: Path) -> dict[str, Verdict]:
    """The file's content; damaged entries are dropped, which only costs another trial."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = document.items() if isinstance(document, Mapping) else ()
    return {
        str(key): Verdict(entry["ok"], *(str(entry.get(name, "")) for name in ("reason", "runtime", "path", "seen")))
        for key, entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("ok"), bool)
    }
