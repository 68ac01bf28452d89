"""Store verdicts on model files by the hash of their content."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.repository.files import HASH_VERSION
from pocketserve.state.json_store import JsonStore


class Verdict(NamedTuple):
    """The result of a trial."""

    ok: bool
    """Whether the server may load the file."""
    reason: str = ""
    """Why not; for a good file, a limitation of the trial."""
    runtime: str = ""
    """The framework and its version."""
    path: str = ""
    """The path of a rejected file."""
    seen: str = ""
    """The stamp of its files."""
    memory: int = 0
    """The memory limit that the trial exceeded; it is repeated with much more."""
    version: int = HASH_VERSION
    """Version of the hash in its key."""


class VerdictStore:
    """The stored verdicts, which ``inspect --release`` may remove."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, _parse)

    def get(self, key: str) -> Verdict | None:
        """Return the verdict for a key, or None."""
        return self._store.entries().get(key)

    def save(self, key: str, verdict: Verdict) -> None:
        """Store a verdict; without it the trial is repeated later."""
        with contextlib.suppress(OSError):
            self._store.change({key: verdict})

    def remove(self, key: str) -> bool:
        """Remove a verdict; return whether there was one."""
        if self.get(key) is None:
            return False
        with contextlib.suppress(OSError):
            self._store.change({}, [key])
        return True

    def rejections(self, path: Path | None = None) -> dict[str, Verdict]:
        """Return the rejecting verdicts by key, optionally of one path."""
        rejections = {}
        for key, verdict in self._store.entries().items():
            if not verdict.ok and (path is None or verdict.path == str(path)):
                rejections[key] = verdict
        return rejections


def _parse(value: Any) -> Verdict:
    ok, memory = value["ok"], value.get("memory", 0)
    if type(ok) is not bool or type(memory) is not int:
        raise ValueError("a damaged verdict")
    if value.get("version") != HASH_VERSION:
        raise ValueError("an old verdict")
    return Verdict(
        ok,
        reason=str(value.get("reason", "")),
        runtime=str(value.get("runtime", "")),
        path=str(value.get("path", "")),
        seen=str(value.get("seen", "")),
        memory=memory,
    )
