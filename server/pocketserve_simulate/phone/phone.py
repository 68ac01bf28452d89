"""A phone: real processes of ``pocketserve`` under the conditions of one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from pocketserve.engine.device.cores import usable_cores
from pocketserve_simulate.phone.conditions import Condition, combine
from pocketserve_simulate.phone.device import PhoneModel, map_cores
from pocketserve_simulate.phone.device_image import COOL_C, DeviceImage
from pocketserve_simulate.phone.events import Event, Happening, open_event
from pocketserve_simulate.phone.mount_masks import ABSENT, find_covers, launcher
from pocketserve_simulate.phone.processes import Exit, PhoneError, Processes
from pocketserve_simulate.phone.throttle import DutyCycle

__all__ = ["Exit", "Phone", "PhoneError", "describe"]


class Phone:
    """One phone. Threads may share it. Close it: its processes end with it, and with this process however that ends.

    Args:
        folder: for what the phone holds; it stays when the phone is closed. Where another run has the phone already,
            this one is a guest on it: it finds battery, memory and clock as the other left them.
        env: variables for the processes, on top of the phone's own.
        output: a file to which the processes' output is appended; None lets them use ours.
        stdin: what they read.
        absent: what is hidden from them, as far as possible.
    """

    def __init__(
        self,
        model: PhoneModel,
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        absent: Sequence[Path] = ABSENT,
    ) -> None:
        self.model = model
        self.cores = map_cores(model, usable_cores())
        self.look = DeviceImage(folder, model, self.cores)
        self._covers = find_covers(self.look.folder, absent)
        self._conditions: list[Condition] = []
        self._under_way: list[tuple[Event, Happening]] = []
        variables = {**self.look.environment(os.environ), **(env or {})}
        self._processes = Processes(self._launcher, variables, output, stdin, self._watch_memory, self._started)
        self._changed = self._processes.changed
        self._duty = DutyCycle(self._processes.signal)
        self._apply()
        self._processes.open()

    def __enter__(self) -> Phone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def hidden(self) -> list[str]:
        """Return what the processes do not see, though the desktop has it."""
        return list(self._covers)

    # Processes

    def start(self, arguments: Sequence[str]) -> None:
        """Run ``pocketserve ARGUMENTS…`` on the phone; returns once the process is there, not once it is ready.

        Raises:
            PhoneError: one runs already, or none can be started.
        """
        self._processes.start(arguments)

    def revive(self) -> None:
        """Start the command again if it is dead, and again a second after each start that fails, as runit does.

        Does not wait. It goes on until the phone is closed, or the command ends with 0.
        """
        self._processes.revive()

    def kill(self, cause: str = "kill") -> None:
        """End the process and all it started by signal 9. It stays dead until :meth:`revive`."""
        self._processes.kill(cause, for_good=True)

    def wait(self, timeout: float) -> int | None:
        """Wait until nothing runs and nothing is to be started; returns the last exit code, None when time is over.

        Args:
            timeout: seconds.
        """
        return self._processes.wait(timeout)

    def excuse(self, cause: str) -> None:
        """Name what is to blame from now on for starts that fail; nothing, if empty."""
        self._processes.excuse = cause

    @property
    def exits(self) -> list[Exit]:
        """Every process that has ended, in order."""
        return self._processes.exits

    @property
    def alive(self) -> bool:
        """Return whether a process runs; a frozen one does."""
        return self._processes.alive

    @property
    def pid(self) -> int | None:
        """Its id."""
        return self._processes.pid

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which the process listens; when it is dead, those that it had when it was killed."""
        return self._processes.ports

    def memory_bytes(self) -> int | None:
        """Return what the process holds in memory (``VmRSS``); None without one, or where the system does not tell."""
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
        """Return what an event that is under way does, for a look at it.

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
        if not self._processes.retire():
            return
        with self._changed:
            left, self._under_way = self._under_way, []
        for _, happening in left:
            happening.end(self)
        self._duty.set(1.0, False)
        self._processes.close()
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
        pid = self.pid
        for _ in range(2 if pid is not None else 0):
            for path in Path(f"/proc/{pid}/task").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(int(path.name), cores)

    def _launcher(self, ready: int) -> list[str]:
        return launcher(self._usable, self._covers, ready)

    def _started(self, pid: int | None) -> None:
        self.look.list_processes([pid] if pid is not None else [])
        self._duty.apply()

    def _watch_memory(self) -> None:
        """Tell how much is left, and kill a process that holds more than there is, as Android does.

        An allocation never fails on a phone: what asks for too much is killed a moment later.
        """
        self._duty.apply()  # a child that was started just before a freeze is found a moment later
        condition = combine(self._conditions)
        limit = (condition.memory_mb or self.model.memory_mb) * 10**6
        held = self.memory_bytes() or 0
        self.look.set_memory(max(0, limit - held))
        if held > limit:
            self._processes.kill("memory", for_good=False)


GUEST = "; another command has this folder: what the system tells of cores, memory and battery is that one's"


def describe(phone: Phone) -> str:
    """The phone in one sentence, and what stands for it here."""
    model, cores = phone.model, phone.cores
    fast, slow = (", ".join(map(str, listed)) for listed in (cores.fast, cores.slow))
    where = f"fast ones run on desktop core {fast}" + (f", slow ones on {slow}" if slow else "")
    return (
        f"{model.name}: {model.fast_cores} fast and {model.slow_cores} slow cores ({where}), "
        f"{model.speed:.0%} of a desktop core's time each, {model.memory_mb} MB for processes, "
        f"{' and '.join(phone.hidden) or 'nothing'} hidden"
        f"{GUEST if phone.look.is_guest else ''}"
    )
