"""What is known of model files, by the SHA-256 of their content, kept in the state folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pocketserve.state.json_store import JsonStore
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
        memory: bytes that its trial might take, where that was too little; with much more it is tried again.
        seen: what its files looked like then, see :meth:`~pocketserve.quarantine.quarantine.Quarantine.known_reason`.
    """

    ok: bool
    reason: str = ""
    runtime: str = ""
    path: str = ""
    seen: str = ""
    memory: int = 0


class VerdictStore:
    """The verdicts; ``inspect --release`` in another process may take one back.

    Args:
        path: the file; its folder is made when the first verdict is kept.
    """

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, _parse, asdict, MAX_VERDICTS, MAX_STORE_BYTES)

    def get(self, key: str) -> Verdict | None:
        """The verdict on a content, if there is one."""
        return self._store.entries().get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict; the oldest ones make room. A folder that cannot be written costs trials, not the service."""

        def update(verdicts: dict[str, Verdict]) -> None:
            verdicts.pop(key, None)
            verdicts[key] = verdict

        with contextlib.suppress(OSError):
            self._store.change(update)

    def remove(self, key: str) -> bool:
        """Forget a verdict; whether there was one."""
        if key not in self._store.entries():
            return False

        def update(verdicts: dict[str, Verdict]) -> None:
            verdicts.pop(key, None)

        with contextlib.suppress(OSError):
            self._store.change(update)
        return True

    def refused(self) -> dict[str, Verdict]:
        """The verdicts that keep a file from being loaded, by key."""
        return {key: verdict for key, verdict in self._store.entries().items() if not verdict.ok}

    def refused_at(self, path: Path) -> list[Verdict]:
        """The verdicts that keep what lies, or lay, at a path from being loaded."""
        return [v for v in self._store.entries().values() if not v.ok and v.path == str(path)]


def _parse(entry: Any) -> Verdict | None:
    """One entry; a damaged one only costs another trial."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("ok"), bool):
        return None
    texts = {name: str(entry.get(name, "")) for name in ("reason", "runtime", "path", "seen")}
    memory = entry.get("memory")
    return Verdict(entry["ok"], **texts, memory=memory if type(memory) is int else 0)
