"""The process of one trial: started, watched, ended, and its end judged."""

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
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

from pocketserve.child.feed import PipeFeed
from pocketserve.child.process import Child, Exceeded, Limits, Streams
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
"""Address space that frameworks reserve but do not use, on top of the limit, before the hard end of memory."""

SPARE_BYTES = 96 << 20
SPARE_THREADS = 8
"""What a device must have left for a failed trial to be the file's fault; threads beside two for each core."""

ALARM_MARGIN_S = 5  # after its time limit, a trial whose server has gone ends itself


def run_trial(
    entry: ModelEntry,
    version: VersionEntry,
    source: ModelSource,
    state_dir: Path,
    timeout: float,
    memory: int,
    on_start: Callable[[Child], None],
) -> Verdict:
    """Load and run one version in a process, in a work folder of its own, and return what its end means.

    Args:
        timeout: seconds from its start to its answer.
        memory: resident bytes that it may take.
        on_start: takes the child; killing it ends the trial.

    Raises:
        ApiError: MODEL_NOT_READY, the device had too little of something.
        RuntimeMissingError, ModelLoadError: the framework is missing, or refused the file in good order. Neither is
            a verdict: another framework or manifest may change it.
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
        try:
            child = Child(
                [sys.executable, "-P", "-m", SANDBOX, json.dumps(rules)],
                # The answer goes to no file: on a full disk every trial would fail.
                Streams(subprocess.PIPE, subprocess.PIPE),
                environment=_environment(str(folder.path)),
                folder=folder.path,
            )
        except OSError as error:
            _retry_later(
                f"a process for the file's trial cannot be had ({error.strerror})"
            )
        stack.callback(child.end)
        on_start(child)
        fault = _watch(child, request, timeout, memory)
        child.kill()  # what it started may still run
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


def _watch(child: Child, request: bytes, timeout: float, memory: int) -> Verdict | None:
    """Pass the request on and wait for the end; return a verdict if a limit is exceeded."""
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
    """Return what it has written, which fits into a pipe. Its children may still hold the other end."""
    os.set_blocking(pipe.fileno(), False)
    try:
        return os.read(pipe.fileno(), MAX_ANSWER_BYTES)
    except BlockingIOError:
        return b""


def _check_framework(format: ModelFormat, timeout: float, *, timed_out: bool) -> None:
    """Blame a framework that is not imported here, and whose import ended the trial or did not end."""
    if not sys.modules.keys().isdisjoint(format.packages):
        return
    package = next(
        (
            name
            for name in format.packages
            if importlib.util.find_spec(name) is not None
        ),
        format.name,
    )
    if timed_out:
        raise RuntimeMissingError(
            f"the import of {package} alone takes more than {timeout:g} s; try again when the device has "
            "less to do, or give --trial-timeout more seconds"
        )
    raise RuntimeMissingError(
        f"{package} is installed, but its import ends the process; `pocketserve doctor` says what to do"
    )


def _retry_later(reason: str, seconds: int = 5) -> NoReturn:
    raise ApiError(
        ErrorCode.MODEL_NOT_READY, f"{reason}; try again", retry_after_s=seconds
    ) from None


def _check_resources() -> None:
    """Blame no file while the device has no threads or memory to spare: frameworks die, hang or refuse without them."""
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
    """Make the trial's folder in the state folder, or if that cannot be written, among temporary files."""
    try:
        with locked(state_dir):
            return WorkFolder(state_dir, TRIAL_PREFIX)
    except OSError as error:
        reason = error.strerror
    try:
        return WorkFolder(Path(tempfile.gettempdir()), f"pocketserve-{TRIAL_PREFIX}")
    except OSError:
        text = f"there is no place to try the file in: {reason}; make room in {state_dir}, which the server writes to"
        raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1) from None


def _environment(folder: str) -> dict[str, str]:
    # Relative entries of the path would mean something else in the trial's own folder.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    # No file is to learn the token, in whatever way it gets at its process's environment.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POCKETSERVE_TOKEN")
    }
    return {
        **FRAMEWORK_ENVIRONMENT,
        **inherited,
        "TMPDIR": folder,
        "PYTHONPATH": path,
        TRIAL_VARIABLE: "1",
    }


def _judge(exit_code: int, answer: bytes) -> Verdict:
    """Return what the end of a trial within its limits means. Raises as :func:`run_trial`."""
    if exit_code in (-signal.SIGKILL, -signal.SIGTERM):
        # Android ends child processes when it likes: that says nothing of the file.
        _retry_later("the system ended the file's trial", 1)
    if exit_code == -signal.SIGSYS:
        return Verdict(
            False,
            "it made a system call that no model needs, and that ends its process (SIGSYS)",
        )
    if (
        exit_code == -signal.SIGINT
    ):  # from OpenBLAS, which has no threads: nobody else reaches the trial's session
        _retry_later("there were no threads to try the file")
    if exit_code < 0:
        return Verdict(False, f"it crashed its framework ({signal_name(exit_code)})")
    try:
        result = json.loads(answer)
    except ValueError:
        return Verdict(
            False, f"its framework ended the process (exit code {exit_code})"
        )
    outcome, reason = result["outcome"], result["reason"]
    if outcome == "starved":
        _retry_later(f"the file could not be tried ({reason})")
    if outcome == "missing":
        raise RuntimeMissingError(reason)
    if outcome == "rejected":
        raise ModelLoadError(reason)
    return Verdict(outcome == "ok", reason, result["runtime"])
