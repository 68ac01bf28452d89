"""A phone: real processes of ``pocketserve`` under the conditions of one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pocketserve.engine.cores import usable_cores
from pocketserve.simulate.conditions import Condition, combine
from pocketserve.simulate.device import PhoneModel, map_cores
from pocketserve.simulate.events import Event, Happening, open_event
from pocketserve.simulate.look import COOL_C, Look
from pocketserve.simulate.squatter import listening_ports
from pocketserve.simulate.throttle import DutyCycle

LAUNCH = Path(__file__).with_name("launch.py")
WATCH_S = 0.2
RESTART_S = 1.0
"""The pause of runit's ``runsv`` between two starts of a service that ends."""
SPAWN_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 8.0
"""More than the 5 s that a server may take to drain."""


class PhoneError(Exception):
    """What cannot be done to the phone now; one sentence."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that has ended.

    Attributes:
        at: by the monotonic clock.
        code: as of :class:`subprocess.Popen`, negative for a signal.
        cause: ``kill``, ``memory``, ``squatter`` or ``close``; empty when nothing was done to it: it ended by itself.
            A start that fails because a squatter has the ports counts as the squatter's doing.
    """

    at: float
    pid: int
    code: int
    cause: str


class Phone:
    """One phone. Threads may share it. Close it: its processes end with it, and with this process however that ends.

    Args:
        folder: for what the phone holds; it stays when the phone is closed. Where another run has the phone already,
            this one is a guest on it: it finds battery, memory and clock as the other left them.
        env: variables for the processes, on top of the phone's own.
        output: a file to which the processes' output is appended; None lets them use ours.
        stdin: what they read.

    Attributes:
        exits: every process that has ended.
        excuse: why a process that is started now may fail.
    """

    def __init__(
        self,
        model: PhoneModel,
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
    ) -> None:
        self.model = model
        self.cores = map_cores(model, usable_cores())
        self.look = Look(folder, model, self.cores)
        self.exits: list[Exit] = []
        self.excuse = ""
        self._ports: list[int] = []
        self._env = {**self.look.environment(os.environ), **(env or {})}
        self._output, self._stdin = output, stdin
        self._conditions: list[Condition] = []
        self._under_way: list[tuple[Event, Happening]] = []
        self._changed = threading.Condition(threading.RLock())
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] | None = None
        self._cause = self._failing_cause = ""
        self._start_at: float | None = None
        self._supervised = False
        self._start_error: Exception | None = None
        self._closed = False
        self._reaping = threading.Lock()  # the innermost: a process id is valid until the process is reaped
        self._duty = DutyCycle(self._signal)
        # Starts every process, because one dies with the thread that started it.
        self._keeper = threading.Thread(target=self._keep, name="simulate-phone", daemon=True)
        self._keeper.start()
        self._apply()

    def __enter__(self) -> Phone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Processes

    def start(self, arguments: Sequence[str]) -> None:
        """Run ``pocketserve ARGUMENTS…`` on the phone; returns once the process is there, not once it is ready.

        Raises:
            PhoneError: one runs already, or none can be started.
        """
        with self._changed:
            if self._closed or self.alive:
                raise PhoneError("the phone is closed" if self._closed else "the phone runs a command already")
            self._arguments, self._supervised, self._start_error = list(arguments), False, None
            self._process = None
            self._start_at = time.monotonic()
            self._changed.notify_all()
            ready = self._changed.wait_for(lambda: self._process or self._start_error or self._closed, SPAWN_TIMEOUT_S)
            if not ready or self._process is None:
                raise PhoneError(f"the command cannot be started: {self._start_error or 'it takes too long'}")

    def revive(self) -> None:
        """Start the command again if it is dead, and again a second after each start that fails, as runit does.

        Does not wait. It goes on until the phone is closed, or the command ends with 0.
        """
        with self._changed:
            if self._arguments is None or self._closed:
                return
            self._supervised = True
            if not self.alive and self._start_at is None:
                self._start_at = time.monotonic()
                self._changed.notify_all()

    def kill(self, cause: str = "kill") -> None:
        """End the process and all it started by signal 9. It stays dead until :meth:`revive`."""
        with self._changed:
            self._supervised, self._start_at = False, None
            if self.alive and self._process is not None:
                self._ports = listening_ports(self._process.pid) or self._ports
            self._kill(cause)

    def interrupt(self) -> None:
        """Ask the process to end, as Ctrl-C does; it is not started again."""
        with self._changed:
            self._supervised, self._start_at = False, None
            self._cause = "close"
            self._signal(signal.SIGINT)

    def wait(self, timeout: float) -> int | None:
        """Wait until nothing runs and nothing is to be started; returns the last exit code, None when time is over.

        Args:
            timeout: seconds.
        """
        with self._changed:
            ended = self._changed.wait_for(lambda: not self.alive and self._start_at is None, timeout)
            return self.exits[-1].code if ended and self.exits else None

    @property
    def alive(self) -> bool:
        """Whether a process runs; a frozen one does."""
        with self._changed:
            self._notice_end()
            return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its id."""
        with self._changed:
            return self._process.pid if self.alive and self._process is not None else None

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which the process listens; when it is dead, those that it had when it was killed."""
        pid = self.pid
        with self._changed:
            return (listening_ports(pid) if pid is not None else []) or self._ports

    def memory_bytes(self) -> int | None:
        """What the process holds in memory (``VmRSS``); None without one, or where the system does not tell."""
        pid = self.pid
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None

    def processor_seconds(self) -> float | None:
        """Processor time of the process that runs now, user and system; None without one."""
        pid = self.pid
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return None

    # Events and conditions

    def begin(self, event: Event) -> None:
        """Let an event begin.

        Raises:
            EventError: there is no such event.
        """
        happening = open_event(event)
        with self._changed:
            self._under_way.append((event, happening))
        try:
            happening.begin(self)
        except BaseException:
            with self._changed:
                self._under_way = [pair for pair in self._under_way if pair[0] is not event]
            raise

    def end(self, event: Event) -> None:
        """Let an event end; one that is not under way is passed over."""
        with self._changed:
            found = next((pair for pair in self._under_way if pair[0] is event), None)
            if found is None:
                return
            self._under_way.remove(found)
        found[1].end(self)

    @property
    def under_way(self) -> list[Event]:
        """The events that have begun and not ended."""
        with self._changed:
            return [event for event, _ in self._under_way]

    def happening(self, event: Event) -> Happening:
        """What an event that is under way does, for a look at it.

        Raises:
            StopIteration: it is not under way.
        """
        with self._changed:
            return next(happening for begun, happening in self._under_way if begun is event)

    def impose(self, condition: Condition) -> None:
        """Put the phone under a condition until it is lifted."""
        with self._changed:
            self._conditions.append(condition)
            self._apply()

    def lift(self, condition: Condition) -> None:
        """Take a condition away again."""
        with self._changed:
            if condition in self._conditions:
                self._conditions.remove(condition)
                self._apply()

    @property
    def condition(self) -> Condition:
        """All conditions together."""
        with self._changed:
            return combine(self._conditions)

    @property
    def speed(self) -> float:
        """Share of the time that the processes run now."""
        condition = self.condition
        return self.model.speed * condition.speed * (self.model.slow_speed if condition.background else 1.0)

    def close(self) -> None:
        """End what is under way and the process: first politely, then by signal 9."""
        with self._changed:
            if self._closed:
                return
            self._closed, self._supervised, self._start_at = True, False, None
            left, self._under_way = self._under_way, []
        for _, happening in left:
            happening.end(self)
        with self._changed:
            self._duty.set(1.0, False)
            if self.alive:
                self._cause = self._cause or "close"
                self._signal(signal.SIGTERM)
                if not self._await_end():
                    self._kill("close")
            self._changed.notify_all()
        self._keeper.join(SPAWN_TIMEOUT_S)
        self._duty.close()
        self.look.close()

    # Inside: all of it under the lock

    def _apply(self) -> None:
        condition = combine(self._conditions)
        self._duty.set(self.speed, condition.frozen)
        self._bind(self._usable)
        self.look.set_battery(condition.battery or {}, condition.api_answers)
        self.look.set_heat(COOL_C if condition.heat is None else condition.heat)
        self.look.set_clock(condition.clock)
        self._watch_memory()

    @property
    def _usable(self) -> tuple[int, ...]:
        return self.cores.background if combine(self._conditions).background else self.cores.all

    def _bind(self, cores: Sequence[int]) -> None:
        """Move every thread to these cores, as Android does with its cpusets.

        Twice, for those that a thread starts meanwhile: a new one inherits the cores of the one that starts it.
        """
        if self._process is None:
            return
        for _ in range(2):
            for path in Path(f"/proc/{self._process.pid}/task").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(int(path.name), cores)

    def _signal(self, number: int) -> bool:
        """Send a signal to all processes of the command; says whether there is one. Needs no lock."""
        with self._reaping:
            process = self._process
            if process is None or process.returncode is not None:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # it leads a session of its own
            return True

    def _await_end(self) -> bool:
        """Wait until the process has ended, for the time that a server may take."""
        if self._process is not None:
            descriptor = os.pidfd_open(self._process.pid)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(STOP_TIMEOUT_S * 1000)
            finally:
                os.close(descriptor)
            self._notice_end()
        return self._process is None

    def _kill(self, cause: str) -> None:
        if self._process is None:
            return
        self._cause = cause
        self._signal(signal.SIGKILL)
        self._await_end()

    def _notice_end(self) -> None:
        """Take note of a process that has ended, once."""
        process = self._process
        if process is None:
            return
        with self._reaping:
            if process.poll() is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started is not left behind
        cause = self._cause or (self._failing_cause if process.returncode > 0 else "")
        self.exits.append(Exit(time.monotonic(), process.pid, process.returncode, cause))
        self._process, self._cause = None, ""
        self.look.list_processes([])
        if self._supervised and process.returncode != 0:
            self._start_at = time.monotonic() + RESTART_S
        self._changed.notify_all()

    # The keeper's thread

    def _keep(self) -> None:
        with self._changed:
            while not self._closed:
                if self._start_at is not None and time.monotonic() >= self._start_at and not self.alive:
                    self._start_at = None
                    self._spawn()
                self._notice_end()
                self._watch_memory()
                self._changed.wait_for(lambda: self._closed or self._is_due, WATCH_S)

    @property
    def _is_due(self) -> bool:
        return self._start_at is not None and time.monotonic() >= self._start_at

    def _spawn(self) -> None:
        assert self._arguments is not None
        self._failing_cause = self.excuse
        specification = json.dumps({"parent": os.getpid(), "cores": self._usable})
        launch = [sys.executable, "-I", "-S", str(LAUNCH), specification]
        command = [sys.executable, "-m", "pocketserve", *self._arguments]
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._output.open("ab")) if self._output is not None else None
            try:
                self._process = subprocess.Popen(
                    [*launch, *command],
                    stdin=self._stdin,
                    stdout=file,
                    stderr=file,
                    env=self._env,
                    start_new_session=True,  # so that signals reach what it starts, and Ctrl-C does not reach it
                )
            except OSError as error:
                self._start_error = error
            else:
                self.look.list_processes([self._process.pid])
                self._duty.apply()
        self._changed.notify_all()

    def _watch_memory(self) -> None:
        """Tell how much is left, and kill a process that holds more than there is, as Android does.

        An allocation never fails on a phone: what asks for too much is killed a moment later.
        """
        condition = combine(self._conditions)
        limit = (condition.memory_mb or self.model.memory_mb) * 10**6
        held = self.memory_bytes() or 0
        self.look.set_memory(max(0, limit - held))
        if held > limit:
            self._kill("memory")


def describe(phone: Phone) -> str:
    """The phone in one sentence, and what stands for it here."""
    model, cores = phone.model, phone.cores
    fast, slow = (", ".join(map(str, listed)) for listed in (cores.fast, cores.slow))
    where = f"fast ones run on desktop core {fast}" + (f", slow ones on {slow}" if slow else "")
    return (
        f"{model.name}: {model.fast_cores} fast and {model.slow_cores} slow cores ({where}), "
        f"{model.speed:.0%} of a desktop core's time each, {model.memory_mb} MB for processes"
    )
