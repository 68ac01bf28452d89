"""Decides whether the server may load a version: by an earlier verdict on its content, else by a trial.

A trial costs one extra process per new file, once. It is never on the path of a request to a loaded model.
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

RETRY_FACTOR = 1.5  # a trial that took too much memory is repeated where there is so many times as much


class TrialLimits(NamedTuple):
    """Limits of one trial: seconds, and resident bytes; 0 takes half of what is available, and 1 GiB at least."""

    timeout: float = 120.0
    memory: int = 0

    def memory_bytes(self) -> int:
        """Return the limit in bytes, now."""
        return self.memory or max(1 << 30, available_memory() // 2)


class Quarantine:
    """Keeps files that harm their loader away from the server. Verdicts and trials use the state folder."""

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
        """Refuse a version that is in quarantine; try one that is unknown.

        Args:
            deadline: monotonic time by which a trial must have begun; one at a time runs.
            content: SHA-256 of the private copy that the source is in.

        Raises:
            ModelLoadError: the content is not the expected one, or is in quarantine; the text says why.
        """
        content = content or content_digest(version)
        check_digest(version, content)
        key = self.key(entry, version, content, source.sides)
        verdict = self._verdict(key) or self._try(
            key, entry, version, content, source, deadline
        )
        if not verdict.ok:
            raise ModelLoadError(_in_quarantine(entry, verdict))

    def known_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why a version is in quarantine, if that is known without reading its files; else None."""
        with suppress(ModelLoadError, OSError):  # loading it says why
            for verdict in self._store.rejections(version.path).values():
                if verdict.seen == _stamp(entry, version) and self._holds(verdict):
                    return _in_quarantine(entry, verdict)
        return None

    def release(self, entry: ModelEntry, version: VersionEntry) -> bool:
        """Forget the verdict on a version, so that it is tried again; return whether there was one."""
        return self._store.remove(self.key(entry, version))

    def key(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        content: str = "",
        sides: Mapping[Path, str] | None = None,
    ) -> str:
        """Return the key of a verdict: the format, the content, and all else that decides how it is loaded and run."""
        hashes = self.sides(entry, version) if sides is None else sides
        names = [
            (value, os.path.relpath(path, entry.folder))
            for path, value in hashes.items()
        ]
        beside = describe_hashes(names).decode(errors="surrogateescape")
        return f"{version.format.name}:{content or content_digest(version)}:{_hash(entry, version, beside)}"

    def sides(self, entry: ModelEntry, version: VersionEntry) -> Mapping[Path, str]:
        """Return the SHA-256 of each file beside a version that a task may read, or the code of one import."""
        return {path: sidecar_hash(path) for path in sidecar_files(entry, version)}

    def close(self) -> None:
        """End the trial that runs."""
        if (process := self._process) is not None:
            process.kill()

    def _started(self, process: Child) -> None:
        self._process = process

    def _verdict(self, key: str) -> Verdict | None:
        verdict = self._store.get(key)
        return verdict if verdict is not None and self._holds(verdict) else None

    def _holds(self, verdict: Verdict) -> bool:
        """Return whether a verdict counts still: one for want of memory does not once there is much more."""
        return (
            not verdict.memory
            or self._limits.memory_bytes() <= RETRY_FACTOR * verdict.memory
        )

    def _try(
        self,
        key: str,
        entry: ModelEntry,
        version: VersionEntry,
        content: str,
        source: ModelSource,
        deadline: float,
    ) -> Verdict:
        from pocketserve.quarantine.process import (
            run_trial,
        )  # late: known files need no process

        if not self._trial.acquire(
            timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
        ):
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                "the request's timeout passed while another file was tried",
            )
        try:
            if (earlier := self._verdict(key)) is not None:
                return earlier
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


def _stamp(entry: ModelEntry, version: VersionEntry) -> str:
    """Return what changes with the files of a version, without reading them: after a restart, listings use it."""
    files = stamp([*version_files(version), *sidecar_files(entry, version)])
    return _hash(entry, version, f"{version.format.name}\n{files}")


def _hash(entry: ModelEntry, version: VersionEntry, files: str) -> str:
    """Return the hash of a description of files, of the options, and of what decides in the manifest."""
    options = json.dumps(dict(version.options), sort_keys=True, default=str)
    delegate = version.options.get("delegate")
    if isinstance(
        delegate, str
    ):  # native code, which must not profit from a trial without it
        options += str(stamp([version.path.parent / delegate]))
    # By name: where the classes of sections stand in our code says nothing of the model.
    sections = {
        kind.__name__: options for kind, options in entry.manifest.sections.items()
    }
    manifest = entry.manifest.of_one_version()._replace(sections=sections)  # type: ignore[arg-type]
    return hashlib.sha256(
        f"{options}\n{manifest!r}\n{files}".encode(errors="surrogateescape")
    ).hexdigest()


def _in_quarantine(entry: ModelEntry, verdict: Verdict) -> str:
    import shlex  # late: most files are good

    command = f"pocketserve inspect --release {shlex.quote(entry.name)}"
    return f"in quarantine: {verdict.reason}; `{command}` tries it again"
