"""Keeps verdicts on model files in the state folder, by the SHA-256 of their content."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.repository.files import HASH_VERSION
from pocketserve.state.json_store import JsonStore


class Verdict(NamedTuple):
    """The result of a trial."""

    ok: bool  # whether the server may load the file
    reason: str = ""  # why not, in words; for a good file, what the trial could not do
    runtime: str = ""  # the framework that was tried, with its version
    path: str = ""  # where a rejected file lay
    seen: str = ""  # the stamp of its files
    memory: int = 0  # bytes that its trial might take, where that was too little; with much more it is tried again
    version: int = HASH_VERSION  # of the hash in its key


class VerdictStore:
    """The verdicts in a file; ``inspect --release`` in another process may take one back."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, _parse)

    def get(self, key: str) -> Verdict | None:
        """Return the verdict on a content."""
        return self._store.entries().get(key)

    def save(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict. A folder that cannot be written costs trials, not the service."""
        with contextlib.suppress(OSError):
            self._store.change({key: verdict})

    def remove(self, key: str) -> bool:
        """Forget a verdict; return whether there was one."""
        if self.get(key) is None:
            return False
        with contextlib.suppress(OSError):
            self._store.change({}, [key])
        return True

    def rejections(self, path: Path | None = None) -> dict[str, Verdict]:
        """Return the verdicts that keep a file, or what lies or lay at a path, from being loaded, by key."""
        place = None if path is None else str(path)
        verdicts = self._store.entries().items()
        return {
            key: verdict
            for key, verdict in verdicts
            if not verdict.ok and place in (None, verdict.path)
        }


def _parse(value: Any) -> Verdict:
    ok, memory = value["ok"], value.get("memory", 0)
    if (
        type(ok) is not bool
        or type(memory) is not int
        or value.get("version") != HASH_VERSION
    ):
        raise ValueError("a damaged verdict, or an old one")
    texts = {
        name: str(value.get(name, "")) for name in ("reason", "runtime", "path", "seen")
    }
    return Verdict(
        ok, texts["reason"], texts["runtime"], texts["path"], texts["seen"], memory
    )
