"""The process of one trial: started, watched, ended, and its end judged."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pocketserve.engine.device.cores import available_memory
from pocketserve.quarantine.leftovers import spare_folder, sweep, working_folder
from pocketserve.quarantine.rules import rules_for
from pocketserve.quarantine.trial import IMPORTED, describe
from pocketserve.quarantine.verdicts import Verdict
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import TRIAL_VARIABLE, ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.privacy import PRIVATE
from pocketserve.state.plain_files import make_private_folder
from pocketserve_wire import ApiError, ErrorCode

WATCH_INTERVAL_S = 0.05
MAX_ANSWER_BYTES = 64 * 1024
HEADROOM_BYTES = 2 << 30
"""Address space that frameworks reserve but do not use, on top of the limit, before the hard end of memory."""

SPARE_BYTES = 96 << 20
SPARE_THREADS = 8
"""What a device must have left for a failed trial to be the file's fault; threads beside two for each core."""

ALARM_MARGIN_S = 5
"""After its time limit, a trial whose server has gone ends itself."""


class TrialProcess:
    """A process that loads and runs one version, in a working folder of its own.

    Args:
        state_dir: where the working folder is made.
        timeout: seconds from its start to its answer.
        memory: resident bytes that it may take.
    """

    def __init__(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        source: ModelSource,
        state_dir: Path,
        timeout: float,
        memory: int,
    ) -> None:
        self._kind, self._timeout, self._memory = version.format, timeout, memory
        limits = {"data_limit": memory + HEADROOM_BYTES, "alarm": math.ceil(timeout) + ALARM_MARGIN_S}
        self._request = describe(entry, version, source, **limits)
        self._rules = functools.partial(rules_for, entry, version, source)
        self._state_dir = state_dir
        self._stack = ExitStack()

    def __enter__(self) -> TrialProcess:
        with ExitStack() as stack:
            self._folder = _folder(self._state_dir, stack)
            self._process = _started(
                [sys.executable, "-P", "-m", "pocketserve.quarantine.sandbox", json.dumps(self._rules(self._folder))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # no file: on a full disk every model would seem to have ended its process
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                env=_environment(self._folder),
                start_new_session=True,  # so that its own children end with it
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._stack:
            if self._process.returncode is None:
                self.end()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def judge(self) -> Verdict:
        """Wait for its end and say what it means.

        Raises:
            RuntimeMissingError: the framework is missing; that is no verdict on the file.
            ModelLoadError: the framework refused the file in good order; neither is that one, and nothing to remember:
                a newer framework or another manifest may change it.
        """
        try:
            fault = _watch(self._process, self._request, self._timeout, self._memory)
        finally:
            self.end()
        try:
            answer = _answer(self._process)
            verdict = _judge(fault, self._process.returncode, answer.removeprefix(IMPORTED))
        except ModelLoadError:
            _refuse_starved()
            raise
        if not verdict.ok:
            _refuse_starved()
        if not verdict.ok and not verdict.memory and not answer.startswith(IMPORTED):
            _refuse_framework(self._kind, fault, self._timeout)
        return verdict

    def end(self) -> None:
        """End it, and whatever it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()


def _started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A new process.

    Raises:
        ApiError: MODEL_NOT_READY, the system gives none.
    """
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise _again(f"a process for the file's trial cannot be had ({error.strerror})") from None


def _again(reason: str) -> ApiError:
    return ApiError(ErrorCode.MODEL_NOT_READY, f"{reason}; try again", retry_after_s=5)


def _refuse_starved() -> None:
    """Blame no file while the device has no threads or memory to spare: frameworks die, hang or refuse without them.

    Raises:
        ApiError: MODEL_NOT_READY.
    """
    if available_memory() < SPARE_BYTES:
        raise _again("there was no memory to try the file")
    done = threading.Event()
    try:
        for _ in range(SPARE_THREADS + 2 * (os.cpu_count() or 1)):
            threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError:
        raise _again("there were no threads to try the file") from None
    finally:
        done.set()


def _folder(state_dir: Path, stack: ExitStack) -> str:
    """A folder of the trial's own: among the server's state, or where that cannot be written, with other such ones.

    Raises:
        ApiError: MODEL_NOT_READY, there is no place for it.
    """
    try:
        make_private_folder(state_dir)
        return stack.enter_context(working_folder(state_dir))
    except OSError as error:
        reason = error.strerror
    try:
        spare = spare_folder()
        sweep(spare)
        return stack.enter_context(working_folder(spare))
    except OSError:
        text = f"there is no place to try the file in: {reason}; make room in {state_dir}, which the server writes to"
        raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1) from None


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    """Return what it has written; nobody is waited for who may still hold the other end. An answer fits into a pipe."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        return os.read(process.stdout.fileno(), MAX_ANSWER_BYTES)
    except BlockingIOError:
        return b""


def _environment(folder: str) -> dict[str, str]:
    # Relative entries of the path would mean something else in the trial's own folder.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    # No file is to learn the token, in whatever way it gets at its process's environment.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POCKETSERVE_TOKEN")}
    return {**PRIVATE, **kept, "TMPDIR": folder, "PYTHONPATH": path, TRIAL_VARIABLE: "1"}


def _watch(process: subprocess.Popen[bytes], request: bytes, timeout: float, memory: int) -> Verdict | None:
    """Hand the request over and wait for the end; returns what breaking a limit means, or nothing."""
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)  # a long one does not fit into the pipe before somebody reads
    ends = time.monotonic() + timeout
    left = memoryview(request)
    while True:
        if left:
            left = left[_written(process.stdin.fileno(), left) :]
            if not left:
                process.stdin.close()
        try:
            process.wait(WATCH_INTERVAL_S)
            return None
        except subprocess.TimeoutExpired:
            if time.monotonic() > ends:
                return Verdict(False, f"it did not finish loading and running within {timeout:g} s")
            if _resident_bytes(process.pid) > memory:
                return Verdict(False, f"it took more than {memory // 2**20} MiB of memory", memory=memory)


def _written(pipe: int, data: memoryview) -> int:
    """Return how much of it the pipe took; all of it where nobody reads any more: the exit code tells why."""
    try:
        return os.write(pipe, data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _judge(fault: Verdict | None, exit_code: int | None, answer: bytes) -> Verdict:
    if fault is not None:
        return fault
    if exit_code is not None and -exit_code in (signal.SIGKILL, signal.SIGTERM):
        # Android ends child processes when it likes: that says nothing of the file.
        raise ApiError(ErrorCode.MODEL_NOT_READY, "the system ended the file's trial; try again", retry_after_s=1)
    if exit_code == -signal.SIGSYS:
        return Verdict(False, "it made a system call that no model needs, and that ends its process (SIGSYS)")
    if exit_code == -signal.SIGINT:  # from OpenBLAS, which has no threads: nobody else reaches the trial's session
        raise _again("there were no threads to try the file")
    if exit_code is not None and exit_code < 0:
        return Verdict(False, f"it crashed its framework ({_signal_name(-exit_code)})")
    try:
        result = json.loads(answer)
    except ValueError:
        return Verdict(False, f"its framework ended the process (exit code {exit_code})")
    if result["outcome"] == "starved":
        raise _again(f"the file could not be tried ({result['reason']})")
    if result["outcome"] == "missing":
        raise RuntimeMissingError(result["reason"])
    if result["outcome"] == "refused":
        raise ModelLoadError(result["reason"])
    return Verdict(result["outcome"] == "good", result["reason"], result["runtime"])


def _refuse_framework(kind: ModelFormat, fault: Verdict | None, timeout: float) -> None:
    """Blame no file for a framework whose import ends the process, or does not end; one that is here does neither.

    Args:
        fault: the limit that the trial broke; None where it ended by itself.

    Raises:
        RuntimeMissingError: it is not here.
    """
    if not sys.modules.keys().isdisjoint(kind.packages):
        return
    package = next((name for name in kind.packages if importlib.util.find_spec(name) is not None), kind.name)
    if fault is not None:
        raise RuntimeMissingError(
            f"the import of {package} alone takes more than {timeout:g} s; try again when the device has less to do, "
            "or give --trial-timeout more seconds"
        )
    raise RuntimeMissingError(
        f"{package} is installed, but its import ends the process; `pocketserve doctor` says what to do"
    )


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
