"""Decides whether the server may load a version: by an earlier verdict on its content, else by a trial.

A trial costs one extra process per new file, once. It is never on the path of a request to a loaded model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pocketserve.engine.device.cores import available_memory
from pocketserve.quarantine.leftovers import sweep
from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.repository.files import Stamp, check_digest, hash_files, stamp, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files, sidecar_hashes
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.records import dataclass

if TYPE_CHECKING:
    from pocketserve.quarantine.process import TrialProcess
    from pocketserve.repository.snapshots import Snapshot

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MORE = 1.5
"""How many times the memory of a trial that took too much of it makes another one worth it."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What a trial may take.

    Attributes:
        timeout: seconds from its start to its answer.
        memory: resident bytes, framework included; 0 takes half of what is available, and 1 GiB at least.
    """

    timeout: float = 120.0
    memory: int = 0

    def memory_bytes(self) -> int:
        """The limit in bytes, now."""
        return self.memory or max(1 << 30, available_memory() // 2)


class Quarantine:
    """Keeps files that harm their loader away from the server.

    Args:
        state_dir: where verdicts are kept and trials have their working folder.
    """

    def __init__(self, state_dir: Path, limits: TrialLimits) -> None:
        self._state_dir = state_dir
        self._limits = limits
        self._store = VerdictStore(state_dir / "verdicts.json")
        self._digests: dict[object, tuple[Stamp, Any]] = {}
        # One trial at a time: each may take as much memory as a whole framework.
        self._trial = threading.Lock()
        self._process: TrialProcess | None = None
        sweep(state_dir)

    def check(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        source: ModelSource,
        deadline: float = math.inf,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Let a version pass, or say why not.

        Args:
            source: what is tried, and opened later.
            deadline: monotonic time by which a trial must have begun; one at a time runs.
            snapshot: the private copy that the source is in, so that what is tried, hashed and opened are the same.

        Raises:
            ModelLoadError: the content is not the expected one, or is in quarantine; the text says why.
            RuntimeMissingError: the framework is missing.
        """
        if snapshot is not None:
            self._digests[version.path] = snapshot.originals, snapshot.digest
        content = self.content(version) if snapshot is None else snapshot.digest
        check_digest(version, content)
        key = self.key(entry, version, content, source.sides)
        verdict = self._verdict(key) or self._try(key, entry, version, content, source, deadline)
        if not verdict.ok:
            raise ModelLoadError(_in_quarantine(entry, verdict))

    def known_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why a version is in quarantine, if that is known without reading its files; else None."""
        verdicts = self._store.refused_at(version.path)
        if not verdicts:
            return None
        try:
            seen = _seen(entry, version)
        except (ModelLoadError, OSError):
            return None  # loading it says why
        return next(
            (_in_quarantine(entry, verdict) for verdict in verdicts if verdict.seen == seen and self._stands(verdict)),
            None,
        )

    def release(self, entry: ModelEntry, version: VersionEntry) -> bool:
        """Forget the verdict on a version, so that it is tried again; whether there was one."""
        return self._store.remove(self.key(entry, version))

    def key(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        content: str | None = None,
        sides: Mapping[Path, str] | None = None,
    ) -> str:
        """Return what a verdict is about: the kind, the content, and all else that decides how it is loaded and asked.

        Args:
            content, sides: its SHA-256, and those of the files beside it, where they are known already.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        hashes = self.sides(entry, version) if sides is None else sides
        beside = "".join(f"{value}  {os.path.relpath(path, entry.folder)}\n" for path, value in hashes.items())
        decided = hashlib.sha256(f"{_options(version)}\n{_manifest(entry)}\n{beside}".encode(errors="surrogateescape"))
        return f"{version.format.name}:{content or self.content(version)}:{decided.hexdigest()}"

    def sides(self, entry: ModelEntry, version: VersionEntry) -> Mapping[Path, str]:
        """The SHA-256 of each file beside a version that a task may read, or the code of one import."""
        return self._known((entry.folder, version.path), sidecar_files(entry, version), sidecar_hashes)

    def content(self, version: VersionEntry) -> str:
        """The SHA-256 of the content. A file that has not changed is not hashed again.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        files = version_files(version)
        base = version.path if version.path.is_dir() else version.path.parent
        return self._known(version.path, files, lambda files: hash_files(files, base))

    def _known(self, name: object, files: list[Path], of: Callable[[Sequence[Path]], Found]) -> Found:
        """Hashes of files, taken again only where their stamp has changed."""
        now = stamp(files)
        known: tuple[Stamp, Found] | None = self._digests.get(name)
        if known is None or known[0] != now:
            known = self._digests[name] = (now, of(files))
        return known[1]

    def close(self) -> None:
        """End a trial that is under way."""
        process = self._process
        if process is not None:
            process.end()

    def _verdict(self, key: str) -> Verdict | None:
        """Return what is known of a content, unless its trial wanted memory of which there is much more by now."""
        known = self._store.get(key)
        return known if known is not None and self._stands(known) else None

    def _stands(self, verdict: Verdict) -> bool:
        return not verdict.memory or self._limits.memory_bytes() <= MORE * verdict.memory

    def _run(self, entry: ModelEntry, version: VersionEntry, source: ModelSource) -> Verdict:
        from pocketserve.quarantine.process import TrialProcess  # late: known files need no process

        timeout, memory = self._limits.timeout, self._limits.memory_bytes()
        with TrialProcess(entry, version, source, self._state_dir, timeout, memory) as process:
            self._process = process
            try:
                return process.judge()
            finally:
                self._process = None

    def _try(
        self,
        key: str,
        entry: ModelEntry,
        version: VersionEntry,
        content: str,
        source: ModelSource,
        deadline: float,
    ) -> Verdict:
        if not self._trial.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise ApiError(ErrorCode.DEADLINE_EXCEEDED, "the request's timeout passed while another file was tried")
        try:
            known = self._verdict(key)
            if known is not None:
                return known
            started = time.monotonic()
            verdict = self._run(entry, version, source)
            log.info("tried %s in %.2f s: %s", version.path.name, time.monotonic() - started, verdict.reason or "good")
            if self.key(entry, version, content) != key:
                raise ModelLoadError("its files changed while they were tried; load the model again")
            if not verdict.ok:
                verdict = dataclasses.replace(verdict, path=str(version.path), seen=_seen(entry, version))
            self._store.put(key, verdict)
        finally:
            self._trial.release()
        return verdict


def _options(version: VersionEntry) -> str:
    """A delegate, which is native code, must not profit from a trial without it."""
    options = json.dumps(dict(version.options), sort_keys=True, default=str)
    delegate = version.options.get("delegate")
    return options + (str(stamp([version.path.parent / delegate])) if isinstance(delegate, str) else "")


def _manifest(entry: ModelEntry) -> str:
    """Return what a manifest says, but for what only people read and what it says of other versions."""
    return repr(entry.manifest._replace(description="", license="", versions={}, default_version=None))


def _seen(entry: ModelEntry, version: VersionEntry) -> str:
    """Return what changes with the files of a version, told without reading them: after a restart, listings go by
    it.
    """
    files = stamp([*version_files(version), *sidecar_files(entry, version)])
    told = f"{version.format.name}\n{files}\n{_options(version)}\n{_manifest(entry)}"
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()


def _in_quarantine(entry: ModelEntry, verdict: Verdict) -> str:
    return f"in quarantine: {verdict.reason}; `pocketserve inspect --release {entry.name}` tries it again"
