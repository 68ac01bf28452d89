"""The processes of a phone: started, killed, and restarted as by a supervisor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pocketserve_simulate.phone.detached_children import DetachedChildren
from pocketserve_simulate.phone.port_hijacker import listening_ports

WATCH_S = 0.2
RESTART_S = 1.0
"""Delay of runit's ``runsv`` before it restarts a service."""

SPAWN_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 8.0
"""More than the 5 s that a server may take to drain."""


class PhoneError(Exception):
    """A request that the phone cannot meet now.

    The text is one sentence.
    """


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a process.

    Attributes:
        at: monotonic time.
        code: negative for a signal.
        cause: ``kill``, ``memory``, ``squatter`` or ``close``; empty if it ended by
            itself. A start that fails because a port hijacker has the ports has that
            cause, too.
    """

    at: float
    code: int
    cause: str
    pid: int = 0


class Processes:
    """Runs one ``pocketserve`` command at a time, with its descendants. Thread-safe.

    Args:
        launcher: returns the start of the command line for a descriptor. A byte arrives
            through the descriptor once the process cannot outlive this one.
        output: a file to which output is appended; None shares our output.
        watch: called five times a second under the lock.
        started: called under the lock with the id of each new process, None when one
            has ended.
    """

    def __init__(
        self,
        launcher: Callable[[int], list[str]],
        env: Mapping[str, str],
        output: Path | None,
        stdin: int | IO[bytes],
        watch: Callable[[], None],
        started: Callable[[int | None], None],
    ) -> None:
        # The lock of the phone, notified of every change.
        self.changed = threading.Condition(threading.RLock())
        # Monotonic time and id.
        self.starts: list[tuple[float, int]] = []
        self.exits: list[ProcessExit] = []
        # Cause of starts that fail from now on.
        self.excuse = ""
        self._launcher = launcher
        self._env = env
        self._output = output
        self._stdin = stdin
        self._watch = watch
        self._started = started
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] | None = None
        self._cause = ""
        self._failing_cause = ""
        self._start_at: float | None = None
        self._supervised = False
        self._closed = False
        self._ended = False
        self._detached = DetachedChildren()
        # The innermost lock: a process id is valid until the process is reaped.
        self._reaping = threading.Lock()
        # Starts every process, because one dies with the thread that started it.
        self._keeper = threading.Thread(
            target=self._keep, name="simulate-phone", daemon=True
        )

    def open(self) -> None:
        """Start the keeper thread."""
        self._keeper.start()

    def start(self, arguments: Sequence[str]) -> None:
        """Run ``pocketserve ARGUMENTS…``; return once the process exists.

        It may not be ready by then.
        """
        with self.changed:
            if self._closed:
                raise PhoneError("the phone is closed")
            if self.pid is not None:
                raise PhoneError("the phone runs a command already")
            self._arguments = list(arguments)
            self._supervised = False
            self._start_at = time.monotonic()
            self.changed.notify_all()
            before = len(self.starts)
            is_started = self.changed.wait_for(
                lambda: len(self.starts) > before, SPAWN_TIMEOUT_S
            )
            if not is_started:
                raise PhoneError("the command cannot be started")

    def revive(self) -> None:
        """Restart a dead command, and again after each end until it exits with 0.

        It does not wait.
        """
        with self.changed:
            if self._arguments is None or self._closed:
                return
            self._supervised = True
            if self.pid is None and self._start_at is None:
                self._start_at = time.monotonic()
                self.changed.notify_all()

    def kill(self, cause: str = "kill", *, for_good: bool = True) -> None:
        """Kill all processes; ``for_good`` means until :meth:`revive`."""
        with self.changed:
            if for_good:
                self._supervised = False
                self._start_at = None
            if self.pid is None or self._process is None:
                return
            self._cause = cause
            self.signal(signal.SIGKILL)
            self._await_end()

    def wait(self, timeout: float) -> int | None:
        """Wait until nothing runs or is due.

        Return the last exit code. None after the timeout.
        """
        with self.changed:
            is_over = self.changed.wait_for(
                lambda: self.pid is None and self._start_at is None, timeout
            )
            if not is_over or not self.exits:
                return None
            return self.exits[-1].code

    @property
    def pid(self) -> int | None:
        """The id of the process, frozen or not; None without one."""
        with self.changed:
            self._notice_end()
            if self._process is not None:
                return self._process.pid
            return None

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which the process listens."""
        pid = self.pid
        if pid is not None:
            return listening_ports(pid)
        return []

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the command, without the phone's lock.

        Processes in sessions of their own are stopped, continued and killed; other
        signals are not sent to them.
        """
        with self._reaping:
            process = self._process
            if process is None or process.returncode is not None:
                return
            if number == signal.SIGKILL:
                # Its children cannot be found after its end.
                self._detached.search(process.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # It leads a session of its own.
                os.killpg(process.pid, number)
            if number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL):
                self._detached.send(number)

    def close(self) -> None:
        """Start nothing more, and end the process with SIGTERM, then with SIGKILL."""
        with self.changed:
            self._closed = True
            self._supervised = False
            self._start_at = None
            if self.pid is not None:
                self._cause = self._cause or "close"
                self.signal(signal.SIGTERM)
                if not self._await_end():
                    self.kill("close")
            # Not earlier: the process dies with the keeper thread.
            self._ended = True
            self.changed.notify_all()
        self._keeper.join(SPAWN_TIMEOUT_S)

    # All methods below run under the lock.

    def _await_end(self) -> bool:
        """Wait for the process to end."""
        if self._process is not None:
            descriptor = os.pidfd_open(self._process.pid)
            try:
                select.select([descriptor], [], [], STOP_TIMEOUT_S)
            finally:
                os.close(descriptor)
            self._notice_end()
        return self._process is None

    def _notice_end(self) -> None:
        """Record the end of the process, once."""
        process = self._process
        if process is None or not self._reap(process):
            return
        code = process.returncode
        cause = self._cause
        if not cause and code > 0:
            cause = self._failing_cause
        self.exits.append(ProcessExit(time.monotonic(), code, cause, process.pid))
        self._process = None
        self._cause = ""
        self._started(None)
        if self._supervised and code != 0:
            self._start_at = time.monotonic() + RESTART_S
        self.changed.notify_all()

    def _reap(self, process: subprocess.Popen[bytes]) -> bool:
        """Reap a process that has ended, and kill its descendants."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with self._reaping:
            if os.waitid(os.P_PID, process.pid, options) is None:
                return False
            # Before the id of its group can be reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            self._detached.send(signal.SIGKILL)
            self._detached.forget()
            process.wait()
        return True

    # The keeper's thread

    def _keep(self) -> None:
        with self.changed:
            while not self._ended:
                if self._is_due() and self.pid is None:
                    self._start_at = None
                    self._spawn()
                self._notice_end()
                with self._reaping:
                    if self._process is not None:
                        self._detached.search(self._process.pid)
                self._watch()
                self.changed.wait_for(lambda: self._ended or self._is_due(), WATCH_S)

    def _is_due(self) -> bool:
        return self._start_at is not None and time.monotonic() >= self._start_at

    def _spawn(self) -> None:
        self._failing_cause = self.excuse
        ready, says_ready = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, ready)
            try:
                process = self._popen(says_ready, stack)
            except OSError:
                # There are no processes or no memory left now.
                self._start_at = time.monotonic() + RESTART_S
                return
            finally:
                os.close(says_ready)
            # If it were stopped earlier, it could outlive this process.
            select.select([ready], [], [], SPAWN_TIMEOUT_S)
            self._process = process
            self.starts.append((time.monotonic(), process.pid))
            self._started(process.pid)
            self.changed.notify_all()

    def _popen(
        self, says_ready: int, stack: contextlib.ExitStack
    ) -> subprocess.Popen[bytes]:
        assert self._arguments is not None
        file = None
        if self._output is not None:
            file = stack.enter_context(self._output.open("ab"))
        command = [
            *self._launcher(says_ready),
            sys.executable,
            "-m",
            "pocketserve",
            *self._arguments,
        ]
        return subprocess.Popen(
            command,
            stdin=self._stdin,
            stdout=file,
            stderr=file,
            env=self._env,
            pass_fds=[says_ready],
            # So that signals reach its children, and Ctrl-C does not reach it.
            start_new_session=True,
        )
