"""Decides whether the server may load a version: by an earlier verdict on its content, else by a trial.

A trial costs one extra process per new file, once. It is never on the path of a request to a loaded model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketserve.engine.cores import available_memory
from pocketserve.quarantine.trial import describe
from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.repository.files import Stamp, check_digest, content_digest, stamp, version_files
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import TRIAL_VARIABLE, ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.registry import kind_named
from pocketserve_wire import ApiError, ErrorCode

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.05
MAX_ANSWER_BYTES = 64 * 1024
HEADROOM_BYTES = 2 << 30
"""Address space that frameworks reserve but do not use, on top of the limit, before the hard end of memory."""

ALARM_MARGIN_S = 5
"""After its time limit, a trial whose server has gone ends itself."""

RELEASE_HINT = "`pocketserve inspect --release NAME` tries it again"


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
        self._digests: dict[str, tuple[Stamp, str]] = {}
        # One trial at a time: each may take as much memory as a whole framework.
        self._trial = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, version: VersionEntry, source: ModelSource, deadline: float = math.inf) -> None:
        """Let a version pass, or say why not.

        Args:
            deadline: monotonic time by which a trial must have begun; one at a time runs.

        Raises:
            ModelLoadError: the content is not the expected one, or is in quarantine; the text says why.
            RuntimeMissingError: the framework is missing.
        """
        check_digest(version, self.content(version))
        key = self.key(version)
        verdict = self._store.get(key) or self._try(key, version, source, deadline)
        if not verdict.ok:
            raise ModelLoadError(_in_quarantine(verdict))

    def known_reason(self, version: VersionEntry) -> str | None:
        """Why a version is in quarantine, if that is known without reading the file; else None."""
        known = self._digests.get(version.path.as_posix())
        if known is None:
            return None
        verdict = self._store.get(_key(version, known[1]))
        return None if verdict is None or verdict.ok else _in_quarantine(verdict)

    def release(self, version: VersionEntry) -> bool:
        """Forget the verdict on a version, so that it is tried again; whether there was one."""
        return self._store.remove(self.key(version))

    def key(self, version: VersionEntry) -> str:
        """What a verdict is about: the kind, the content, and the options that decide how it is loaded.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        return _key(version, self.content(version))

    def content(self, version: VersionEntry) -> str:
        """The SHA-256 of the content. A file that has not changed is not hashed again.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        now = stamp(version_files(version))
        name = version.path.as_posix()
        known = self._digests.get(name)
        if known is None or known[0] != now:
            known = self._digests[name] = (now, content_digest(version))
        return known[1]

    def close(self) -> None:
        """End a trial that is under way."""
        process = self._process
        if process is not None:
            _end(process)

    def _try(self, key: str, version: VersionEntry, source: ModelSource, deadline: float) -> Verdict:
        if not self._trial.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise ApiError(ErrorCode.DEADLINE_EXCEEDED, "the request's timeout passed while another file was tried")
        try:
            known = self._store.get(key)
            if known is not None:
                return known
            started = time.monotonic()
            verdict = self._run(describe(version.kind.name, source))
            log.info("tried %s in %.2f s: %s", version.path.name, time.monotonic() - started, verdict.reason or "good")
            if self.key(version) != key:
                raise ModelLoadError("its files changed while they were tried; load the model again")
            self._store.put(key, verdict)
        finally:
            self._trial.release()
        return verdict

    def _run(self, request: dict[str, Any]) -> Verdict:
        """Start the process and judge how it ends.

        Raises:
            RuntimeMissingError: the framework is missing; that is no verdict on the file.
            ModelLoadError: the framework refused the file in good order; neither is that one, and nothing to remember:
                a newer framework or another manifest may change it.
        """
        limit = self._limits.memory_bytes()
        request["data_limit"] = limit + HEADROOM_BYTES
        request["alarm"] = math.ceil(self._limits.timeout) + ALARM_MARGIN_S
        self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="trial-", dir=self._state_dir) as folder,
            tempfile.TemporaryFile(dir=folder) as answer,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "pocketserve.quarantine.trial"],
                stdin=subprocess.PIPE,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,  # so that its own children end with it
            )
            self._process = process
            try:
                fault = _watch(process, json.dumps(request).encode(), self._limits.timeout, limit)
            finally:
                self._process = None
                _end(process)
            answer.seek(0)
            verdict = _judge(fault, process.returncode, answer.read(MAX_ANSWER_BYTES))
            if not verdict.ok and process.returncode:
                _check_framework(request["kind"], folder, self._limits.timeout)
            return verdict


def _key(version: VersionEntry, content: str) -> str:
    """Options are part of it: a delegate, which is native code, must not profit from a trial without it."""
    if not version.options:
        return f"{version.kind.name}:{content}"
    options = json.dumps(dict(version.options), sort_keys=True, default=str)
    delegate = version.options.get("delegate")
    library = version.path.parent / delegate if isinstance(delegate, str) else None
    options += str(stamp([library])) if library is not None else ""
    return f"{version.kind.name}:{content}:{hashlib.sha256(options.encode()).hexdigest()}"


def _environment(folder: str) -> dict[str, str]:
    # Relative entries of the path would mean something else in the trial's own folder.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**os.environ, "TMPDIR": folder, "PYTHONPATH": path, TRIAL_VARIABLE: "1"}


def _watch(process: subprocess.Popen[bytes], request: bytes, timeout: float, memory: int) -> str:
    """Wait for the end; returns what limit was broken, or nothing."""
    assert process.stdin is not None
    ends = time.monotonic() + timeout
    try:
        process.stdin.write(request)
        process.stdin.close()
    except OSError:  # it ended before it read: its exit code tells why
        pass
    while True:
        try:
            process.wait(WATCH_INTERVAL_S)
            return ""
        except subprocess.TimeoutExpired:
            if time.monotonic() > ends:
                return f"it did not finish loading and running within {timeout:g} s"
            if _resident_bytes(process.pid) > memory:
                return f"it took more than {memory // 2**20} MiB of memory"


def _judge(fault: str, exit_code: int | None, answer: bytes) -> Verdict:
    if fault:
        return Verdict(False, fault)
    if exit_code is not None and -exit_code in (signal.SIGKILL, signal.SIGTERM):
        # Android ends child processes when it likes: that says nothing of the file.
        raise ApiError(ErrorCode.MODEL_NOT_READY, "the system ended the file's trial; try again", retry_after_s=1)
    if exit_code is not None and exit_code < 0:
        return Verdict(False, f"it crashed its framework ({_signal_name(-exit_code)})")
    try:
        result = json.loads(answer)
    except ValueError:
        return Verdict(False, f"its framework ended the process (exit code {exit_code})")
    if result["outcome"] == "missing":
        raise RuntimeMissingError(result["reason"])
    if result["outcome"] == "refused":
        raise ModelLoadError(result["reason"])
    return Verdict(result["outcome"] == "good", result["reason"], result["runtime"])


def _check_framework(kind: str, folder: str, timeout: float) -> None:
    """A file is not to blame for a framework that does not even import without it.

    Raises:
        RuntimeMissingError: the framework's import ends its process, or does not end.
    """
    known = kind_named(kind)
    for package in known.packages if known is not None else ():
        if importlib.util.find_spec(package) is None:
            continue
        command = [sys.executable, "-c", f"import {package}"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=_environment(folder),
                timeout=timeout,
                check=False,
            )
            harmed = done.returncode not in (0, 1)  # 1: it raised, which harms nobody
        except subprocess.TimeoutExpired:
            harmed = True
        if harmed:
            raise RuntimeMissingError(
                f"{package} is installed, but its import ends the process; `pocketserve doctor` says what to do"
            )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _resident_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _in_quarantine(verdict: Verdict) -> str:
    return f"in quarantine: {verdict.reason}; {RELEASE_HINT}"
