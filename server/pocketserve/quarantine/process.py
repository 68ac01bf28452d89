"""Run the process of one trial, and judge its result."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from pocketserve.child.feed import PipeFeed
from pocketserve.child.process import Child, Exceeded, Limits, Streams, ended_by_system
from pocketserve.engine.device.cores import available_memory
from pocketserve.engine.device.processes import signal_name
from pocketserve.quarantine import TRIAL_PREFIX
from pocketserve.quarantine.rules import rules_for
from pocketserve.quarantine.trial import IMPORTED, serialize_request
from pocketserve.quarantine.verdicts import Verdict
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import (
    TRIAL_VARIABLE,
    ModelLoadError,
    ModelSource,
    RuntimeMissingError,
)
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.state.folder_lock import WorkFolder, locked
from pocketserve_wire import ApiError, ErrorCode

SANDBOX = "pocketserve.quarantine.sandbox"
POLL_INTERVAL_S = 0.05
MAX_ANSWER_BYTES = 64 * 1024
HEADROOM_BYTES = 2 << 30
"""Address space that frameworks reserve but do not use, in addition to the limit."""

SPARE_BYTES = 96 << 20
SPARE_THREADS = 8
"""The spare resources without which a failed trial is not the file's fault.

The threads are in addition to two for each core.
"""

ALARM_MARGIN_S = 5  # a trial whose server is gone ends itself this long after its limit


def run_trial(
    entry: ModelEntry,
    version: VersionEntry,
    source: ModelSource,
    state_dir: Path,
    timeout: float,
    memory: int,
    on_start: Callable[[Child], None],
) -> Verdict:
    """Load and run one version in its own process.

    Args:
        timeout: seconds from its start to its answer.
        memory: limit of its resident bytes.
        on_start: receives the child; killing it ends the trial.

    Raises:
        ApiError: MODEL_NOT_READY, the device lacked resources.
        RuntimeMissingError, ModelLoadError: the framework is missing, or has rejected
            the file. Neither is a verdict, because another framework or manifest may
            change the outcome.
    """
    limits = {
        "data_limit": memory + HEADROOM_BYTES,
        "alarm": math.ceil(timeout) + ALARM_MARGIN_S,
    }
    request = serialize_request(entry, version, source, **limits)
    with contextlib.ExitStack() as stack:
        folder = _work_folder(state_dir)
        stack.callback(folder.remove)
        rules = rules_for(entry, version, source, str(folder.path))
        child = _start(rules, folder)
        stack.callback(child.end)
        on_start(child)
        fault = _watch(child, request, timeout, memory)
        child.kill()  # its child processes may still run
        assert child.process.stdout is not None
        answer = _answer(child.process.stdout)
    try:
        verdict = fault or _judge(
            child.process.returncode, answer.removeprefix(IMPORTED)
        )
    except ModelLoadError:
        _check_resources()
        raise
    if not verdict.ok:
        _check_resources()
        if not verdict.memory and not answer.startswith(IMPORTED):
            _check_framework(version.format, timeout, timed_out=fault is not None)
    return verdict


def _start(rules: dict[str, Any], folder: WorkFolder) -> Child:
    try:
        return Child(
            [sys.executable, "-P", "-m", SANDBOX, json.dumps(rules)],
            # Pipes, not files: on a full disk every trial would seem to fail.
            Streams(subprocess.PIPE, subprocess.PIPE),
            environment=_environment(str(folder.path)),
            folder=folder.path,
        )
    except OSError as error:
        _retry_later(
            f"no process could be started for the file's trial ({error.strerror})"
        )


def _watch(child: Child, request: bytes, timeout: float, memory: int) -> Verdict | None:
    """Send the request, wait, and return a verdict on exceeded limits."""
    assert child.process.stdin is not None
    feed = PipeFeed(child.process.stdin, request)
    limits = Limits(timeout, memory, with_descendants=False, poll_s=POLL_INTERVAL_S)
    exceeded = child.wait(limits, feed.push)
    if exceeded is Exceeded.TIME:
        reason = f"it did not finish loading and running within {timeout:g} s"
        return Verdict(False, reason)
    if exceeded is Exceeded.MEMORY:
        reason = f"it took more than {memory // 2**20} MiB of memory"
        return Verdict(False, reason, memory=memory)
    return None


def _answer(pipe: IO[bytes]) -> bytes:
    """Return the process's output, which fits into the pipe.

    Its child processes may still have the other end open.
    """
    os.set_blocking(pipe.fileno(), False)
    try:
        return os.read(pipe.fileno(), MAX_ANSWER_BYTES)
    except BlockingIOError:
        return b""


def _check_framework(format: ModelFormat, timeout: float, *, timed_out: bool) -> None:
    """Raise if the framework's import was the problem."""
    if not sys.modules.keys().isdisjoint(format.packages):
        return
    package = format.name
    for name in format.packages:
        if importlib.util.find_spec(name) is not None:
            package = name
            break
    if timed_out:
        raise RuntimeMissingError(
            f"the import of {package} alone takes more than {timeout:g} s; try again "
            "when the device is less busy, or give --trial-timeout more seconds"
        )
    raise RuntimeMissingError(
        f"{package} is installed, but its import ends the process; "
        "`pocketserve doctor` says what to do"
    )


def _retry_later(reason: str, seconds: int = 5) -> NoReturn:
    raise ApiError(
        ErrorCode.MODEL_NOT_READY, f"{reason}; try again", retry_after_s=seconds
    ) from None


def _check_resources() -> None:
    """Raise MODEL_NOT_READY if the device lacks threads or memory.

    Frameworks crash, hang or reject files without them, which is not the file's fault.
    """
    if available_memory() < SPARE_BYTES:
        _retry_later("there was no memory to try the file")
    end = threading.Event()
    try:
        for _ in range(SPARE_THREADS + 2 * (os.cpu_count() or 1)):
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError:
        _retry_later("there were no threads to try the file")
    finally:
        end.set()


def _work_folder(state_dir: Path) -> WorkFolder:
    """Create the trial's folder, preferably in the state folder."""
    try:
        with locked(state_dir):
            return WorkFolder(state_dir, TRIAL_PREFIX)
    except OSError as error:
        reason = error.strerror
    try:
        return WorkFolder(Path(tempfile.gettempdir()), f"pocketserve-{TRIAL_PREFIX}")
    except OSError:
        raise ApiError(
            ErrorCode.MODEL_NOT_READY,
            f"there is no space to try the file: {reason}; make room in {state_dir}, "
            "which the server writes to",
            retry_after_s=1,
        ) from None


def _environment(folder: str) -> dict[str, str]:
    # Absolute, because the trial has another working folder.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    inherited = {}
    for name, value in os.environ.items():
        # A file must not learn the token from its process's environment.
        if not name.startswith("POCKETSERVE_TOKEN"):
            inherited[name] = value
    return {
        **FRAMEWORK_ENVIRONMENT,
        **inherited,
        "TMPDIR": folder,
        "PYTHONPATH": path,
        TRIAL_VARIABLE: "1",
    }


def _judge(exit_code: int, answer: bytes) -> Verdict:
    """Return the verdict on a trial within its limits.

    Raises as :func:`run_trial`.
    """
    if ended_by_system(exit_code):
        _retry_later("the system ended the file's trial", 1)
    if exit_code == -signal.SIGSYS:
        return Verdict(
            False,
            "it made a system call that no model needs, and that ends its process "
            "(SIGSYS)",
        )
    # OpenBLAS sends SIGINT if it has no threads; nothing else can reach the trial.
    if exit_code == -signal.SIGINT:
        _retry_later("there were no threads to try the file")
    if exit_code < 0:
        return Verdict(False, f"it crashed its framework ({signal_name(exit_code)})")
    try:
        result = json.loads(answer)
    except ValueError:
        return Verdict(
            False, f"its framework ended the process (exit code {exit_code})"
        )
    return _judge_result(result)


def _judge_result(result: Mapping[str, str]) -> Verdict:
    outcome, reason = result["outcome"], result["reason"]
    if outcome == "starved":
        _retry_later(f"the file could not be tried ({reason})")
    if outcome == "missing":
        raise RuntimeMissingError(reason)
    if outcome == "rejected":
        raise ModelLoadError(reason)
    return Verdict(outcome == "ok", reason, result["runtime"])
