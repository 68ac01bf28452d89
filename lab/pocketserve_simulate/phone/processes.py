"""The processes of a phone: started, ended, and started again as a supervisor such as runit does."""

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
RESTART_S = (
    1.0  # the pause of runit's ``runsv`` between two starts of a service that ends
)
SPAWN_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 8.0  # more than the 5 s that a server may take to drain


class PhoneError(Exception):
    """A request that the phone cannot meet now; one sentence."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a process, with its monotonic time and its code, which is negative for a signal.

    The cause is ``kill``, ``memory``, ``squatter`` or ``close``; empty when it ended by itself. A start that fails
    because a port hijacker has the ports has that cause, too.
    """

    at: float
    code: int
    cause: str
    pid: int = 0


class Processes:
    """Runs one ``pocketserve`` command at a time, with all that it starts. Threads may share it.

    Args:
        launcher: given a descriptor, the start of the command line. A byte comes through the descriptor once the
            process cannot outlive this one.
        output: a file to which output is appended; None lets the processes use ours.
        watch: called five times a second under the lock.
        started: called under the lock with the id of each new process, None when one has ended.
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
        self.changed = threading.Condition(
            threading.RLock()
        )  # the lock of the phone, notified of every change
        self.starts: list[tuple[float, int]] = []  # monotonic time and id
        self.exits: list[ProcessExit] = []
        self.excuse = ""  # cause of starts that fail from now on
        self._launcher, self._env, self._output, self._stdin = (
            launcher,
            env,
            output,
            stdin,
        )
        self._watch, self._started = watch, started
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] | None = None
        self._cause = self._failing_cause = ""
        self._start_at: float | None = None
        self._supervised = False
        self._closed = self._ended = False
        self._detached = DetachedChildren()
        self._reaping = (
            threading.Lock()
        )  # the innermost: a process id is valid until the process is reaped
        # Starts every process, because one dies with the thread that started it.
        self._keeper = threading.Thread(
            target=self._keep, name="simulate-phone", daemon=True
        )

    def open(self) -> None:
        """Begin to watch."""
        self._keeper.start()

    def start(self, arguments: Sequence[str]) -> None:
        """Run ``pocketserve ARGUMENTS…``; returns once the process is there, not once it is ready."""
        with self.changed:
            if self._closed or self.pid is not None:
                raise PhoneError(
                    "the phone is closed"
                    if self._closed
                    else "the phone runs a command already"
                )
            self._arguments, self._supervised, before = (
                list(arguments),
                False,
                len(self.starts),
            )
            self._start_at = time.monotonic()
            self.changed.notify_all()
            if not self.changed.wait_for(
                lambda: len(self.starts) > before, SPAWN_TIMEOUT_S
            ):
                raise PhoneError("the command cannot be started")

    def revive(self) -> None:
        """Start the last command again if it is dead, and after each end until it ends with 0; does not wait."""
        with self.changed:
            if self._arguments is None or self._closed:
                return
            self._supervised = True
            if self.pid is None and self._start_at is None:
                self._start_at = time.monotonic()
                self.changed.notify_all()

    def kill(self, cause: str = "kill", *, for_good: bool = True) -> None:
        """End everything by signal 9; ``for_good`` until it is revived."""
        with self.changed:
            if for_good:
                self._supervised, self._start_at = False, None
            if self.pid is None or self._process is None:
                return
            self._cause = cause
            self.signal(signal.SIGKILL)
            self._await_end()

    def wait(self, timeout: float) -> int | None:
        """Wait until nothing runs and nothing is to be started; returns the last exit code, None when time is over."""
        with self.changed:
            ended = self.changed.wait_for(
                lambda: self.pid is None and self._start_at is None, timeout
            )
            return self.exits[-1].code if ended and self.exits else None

    @property
    def pid(self) -> int | None:
        """The id of the process that runs, frozen or not."""
        with self.changed:
            self._notice_end()
            return self._process.pid if self._process is not None else None

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which the process listens."""
        pid = self.pid
        return listening_ports(pid) if pid is not None else []

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the command. Takes no lock of the phone's.

        Those in sessions of their own are stopped, continued and killed with it; a polite end is its own business.
        """
        with self._reaping:
            process = self._process
            if process is None or process.returncode is not None:
                return
            if number == signal.SIGKILL:
                self._detached.search(
                    process.pid
                )  # once it is dead, its children are nobody's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # it leads a session of its own
            if number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL):
                self._detached.send(number)

    def close(self) -> None:
        """Start nothing any more, and end what runs: first politely, then by signal 9."""
        with self.changed:
            self._closed, self._supervised, self._start_at = True, False, None
            if self.pid is not None:
                self._cause = self._cause or "close"
                self.signal(signal.SIGTERM)
                if not self._await_end():
                    self.kill("close")
            self._ended = True  # not before: the keeper's end would be the process's
            self.changed.notify_all()
        self._keeper.join(SPAWN_TIMEOUT_S)

    # Inside: all of it under the lock

    def _await_end(self) -> bool:
        """Wait until the process has ended, for the time that a server may take."""
        if self._process is not None:
            descriptor = os.pidfd_open(self._process.pid)
            try:
                select.select([descriptor], [], [], STOP_TIMEOUT_S)
            finally:
                os.close(descriptor)
            self._notice_end()
        return self._process is None

    def _notice_end(self) -> None:
        """Record the end of a process, once."""
        process = self._process
        if process is None:
            return
        with self._reaping:
            if (
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                is None
            ):
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # what it started; before its id may be somebody else's
            self._detached.send(signal.SIGKILL)
            self._detached.forget()
            process.wait()
        cause = self._cause or (self._failing_cause if process.returncode > 0 else "")
        self.exits.append(
            ProcessExit(time.monotonic(), process.returncode, cause, process.pid)
        )
        self._process, self._cause = None, ""
        self._started(None)
        if self._supervised and process.returncode != 0:
            self._start_at = time.monotonic() + RESTART_S
        self.changed.notify_all()

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
        assert self._arguments is not None
        self._failing_cause = self.excuse
        ready, says_ready = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, ready)
            file = (
                stack.enter_context(self._output.open("ab"))
                if self._output is not None
                else None
            )
            try:
                process = subprocess.Popen(
                    [
                        *self._launcher(says_ready),
                        sys.executable,
                        "-m",
                        "pocketserve",
                        *self._arguments,
                    ],
                    stdin=self._stdin,
                    stdout=file,
                    stderr=file,
                    env=self._env,
                    pass_fds=[says_ready],
                    start_new_session=True,  # so that signals reach what it starts, and Ctrl-C does not reach it
                )
            except OSError:  # no process or memory is left now
                self._start_at = time.monotonic() + RESTART_S
                return
            finally:
                os.close(says_ready)
            select.select(
                [ready], [], [], SPAWN_TIMEOUT_S
            )  # stopped before that, it could outlive this process
            self._process = process
            self.starts.append((time.monotonic(), process.pid))
            self._started(process.pid)
            self.changed.notify_all()
