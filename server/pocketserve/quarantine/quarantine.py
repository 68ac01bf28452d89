"""Decide by verdict or trial whether the server may load a version.

A trial costs one extra process for each new file, once. Requests to a loaded model
never wait for one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.engine.device.cores import available_memory
from pocketserve.quarantine import TRIAL_PREFIX
from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.repository.files import (
    check_digest,
    content_digest,
    describe_hashes,
    stamp,
    version_files,
)
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files, sidecar_hash
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.state.folder_lock import sweep
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.child.process import Child


log = logging.getLogger(__name__)

RETRY_FACTOR = 1.5  # a trial that ran out of memory is repeated with this much more


class TrialLimits(NamedTuple):
    """Limits of one trial.

    Attributes:
        timeout: seconds.
        memory: resident bytes; 0 means half of the available memory, at least 1 GiB.
    """

    timeout: float = 120.0
    memory: int = 0

    def memory_bytes(self) -> int:
        """Return the current limit in bytes."""
        return self.memory or max(1 << 30, available_memory() // 2)


class Quarantine:
    """Keeps harmful files away from the server, by stored verdicts."""

    def __init__(self, state_dir: Path, limits: TrialLimits) -> None:
        self._state_dir = state_dir
        self._limits = limits
        self._store = VerdictStore(state_dir / "verdicts.json")
        # One trial at a time: each may take as much memory as a whole framework.
        self._trial = threading.Lock()
        self._process: Child | None = None
        sweep(state_dir, TRIAL_PREFIX)

    def check(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        source: ModelSource,
        deadline: float = math.inf,
        content: str = "",
    ) -> None:
        """Reject a quarantined version; try an unknown one.

        Args:
            deadline: monotonic time by which the trial must start; one runs at a time.
            content: SHA-256 of the private copy that the source refers to.

        Raises:
            ModelLoadError: the content has another hash than the manifest states, or is
                in quarantine.
        """
        content = content or content_digest(version)
        check_digest(version, content)
        key = self.key(entry, version, content, source.sides)
        verdict = self._verdict(key)
        if verdict is None:
            verdict = self._try(key, entry, version, content, source, deadline)
        if not verdict.ok:
            raise ModelLoadError(_in_quarantine(entry, verdict))

    def known_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why a version is in quarantine, or None."""
        with suppress(ModelLoadError, OSError):  # loading will report the error
            for verdict in self._store.rejections(version.path).values():
                if verdict.seen == _stamp(entry, version) and self._is_valid(verdict):
                    return _in_quarantine(entry, verdict)
        return None

    def release(self, entry: ModelEntry, version: VersionEntry) -> bool:
        """Remove the verdict on a version; return whether there was one."""
        return self._store.remove(self.key(entry, version))

    def key(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        content: str = "",
        sides: Mapping[Path, str] | None = None,
    ) -> str:
        """Return a verdict's key for a version.
        that affect how it is loaded and run."""
        hashes = self.sides(entry, version) if sides is None else sides
        names = []
        for path, value in hashes.items():
            names.append((value, os.path.relpath(path, entry.folder)))
        beside = describe_hashes(names).decode(errors="surrogateescape")
        content = content or content_digest(version)
        return f"{version.format.name}:{content}:{_hash(entry, version, beside)}"

    def sides(self, entry: ModelEntry, version: VersionEntry) -> Mapping[Path, str]:
        """Return the SHA-256 of each sidecar file of a version."""
        return {path: sidecar_hash(path) for path in sidecar_files(entry, version)}

    def close(self) -> None:
        """End the running trial."""
        process = self._process
        if process is not None:
            process.kill()

    def _started(self, process: Child) -> None:
        self._process = process

    def _verdict(self, key: str) -> Verdict | None:
        verdict = self._store.get(key)
        if verdict is None or not self._is_valid(verdict):
            return None
        return verdict

    def _is_valid(self, verdict: Verdict) -> bool:
        """Return whether a verdict is still valid, given today's memory."""
        if not verdict.memory:
            return True
        return self._limits.memory_bytes() <= RETRY_FACTOR * verdict.memory

    def _try(
        self,
        key: str,
        entry: ModelEntry,
        version: VersionEntry,
        content: str,
        source: ModelSource,
        deadline: float,
    ) -> Verdict:
        self._lock_trial(deadline)
        try:
            earlier = self._verdict(key)
            if earlier is not None:
                return earlier
            verdict = self._run_trial(entry, version, source)
            if self.key(entry, version, content) != key:
                raise ModelLoadError(
                    "its files changed while they were tried; load the model again"
                )
            if not verdict.ok:
                verdict = verdict._replace(
                    path=str(version.path), seen=_stamp(entry, version)
                )
            self._store.save(key, verdict)
            return verdict
        finally:
            self._trial.release()

    def _lock_trial(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        if not self._trial.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                "the request's timeout passed while another file was tried",
            )

    def _run_trial(
        self, entry: ModelEntry, version: VersionEntry, source: ModelSource
    ) -> Verdict:
        # Imported late, because known files need no process.
        from pocketserve.quarantine.process import run_trial

        started = time.monotonic()
        limits = self._limits.timeout, self._limits.memory_bytes()
        try:
            verdict = run_trial(
                entry, version, source, self._state_dir, *limits, self._started
            )
        finally:
            self._process = None
        log.info(
            "tried %s in %.2f s: %s",
            version.path.name,
            time.monotonic() - started,
            verdict.reason or "good",
        )
        return verdict


def _stamp(entry: ModelEntry, version: VersionEntry) -> str:
    """Return a value that changes with a version's files.

    Listings use it after a restart.
    """
    files = stamp([*version_files(version), *sidecar_files(entry, version)])
    return _hash(entry, version, f"{version.format.name}\n{files}")


def _hash(entry: ModelEntry, version: VersionEntry, files: str) -> str:
    """Hash files, options and the relevant part of the manifest."""
    options = json.dumps(dict(version.options), sort_keys=True, default=str)
    delegate = version.options.get("delegate")
    # A delegate is native code, which must not use the verdict of a trial without it.
    if isinstance(delegate, str):
        options += str(stamp([version.path.parent / delegate]))
    # By class name, because the modules of our classes are irrelevant to the model.
    sections = {}
    for kind, section in entry.manifest.sections.items():
        sections[kind.__name__] = section
    manifest = entry.manifest.of_one_version()._replace(sections=sections)  # type: ignore[arg-type]
    text = f"{options}\n{manifest!r}\n{files}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _in_quarantine(entry: ModelEntry, verdict: Verdict) -> str:
    import shlex  # late, because most files are good

    command = f"pocketserve inspect --release {shlex.quote(entry.name)}"
    return f"in quarantine: {verdict.reason}; `{command}` tries it again"
