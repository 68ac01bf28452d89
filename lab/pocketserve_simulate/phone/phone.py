"""A phone: processes of ``pocketserve`` under its conditions."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pocketserve.engine.device.cores import usable_cores
from pocketserve_simulate.phone.device import PhoneModel, map_cores
from pocketserve_simulate.phone.device_image import DeviceImage
from pocketserve_simulate.phone.events import (
    KINDS,
    Condition,
    EventError,
    PhoneEvent,
    check_event,
    combine,
)
from pocketserve_simulate.phone.mount_masks import ABSENT, find_covers, launcher
from pocketserve_simulate.phone.port_hijacker import PortHijacker
from pocketserve_simulate.phone.processes import Processes
from pocketserve_simulate.phone.throttle import DutyCycle
from pocketserve_wire.addresses import LOOPBACK

GUEST = (
    "; another command has this folder: the system's figures of cores, memory and "
    "battery are that one's"
)


class Phone:
    """A phone, which threads may share.

    Its processes end with :meth:`close`, and with this process however that ends.

    Args:
        folder: is kept when the phone is closed. If another run uses it, this one is a
            guest and changes nothing.
        output: a file to which output is appended; None shares our output.
        absent: paths to hide from the processes, if possible.
        observe: called several times a second with the memory of the process, None
            without one.
        host: the address of the server, for an app that takes its ports.
    """

    def __init__(
        self,
        model: PhoneModel,
        folder: Path,
        *,
        output: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        absent: Sequence[Path] = ABSENT,
        observe: Callable[[int | None], None] = lambda _resident: None,
        host: str = LOOPBACK,
    ) -> None:
        self.model = model
        self.cores = map_cores(model, usable_cores())
        self.image = DeviceImage(folder, model, self.cores)
        self.covers = find_covers(self.image.folder, absent)
        self.hijackers: dict[PhoneEvent, PortHijacker] = {}
        self._observe = observe
        self._host = host
        self._closed = False
        self._conditions: dict[PhoneEvent, Condition] = {}
        self.processes = Processes(
            self._launcher,
            self.image.environment(os.environ),
            output,
            stdin,
            self._watch_memory,
            self._started,
        )
        self._changed = self.processes.changed
        self._duty = DutyCycle(self.processes.signal)
        self._apply()
        self.processes.open()

    def __enter__(self) -> Phone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def summary(self) -> str:
        """Return the phone in one sentence, and its mapping to this desktop."""
        model = self.model
        cores = self.cores
        mapping = f"fast ones run on desktop core {_listed(cores.fast)}"
        if cores.slow:
            mapping += f", slow ones on {_listed(cores.slow)}"
        hidden_paths = " and ".join(self.covers) or "nothing"
        remark = ""
        if self.image.is_guest:
            remark = GUEST
        return (
            f"{model.name}: {model.fast_cores} fast and {model.slow_cores} slow cores "
            f"({mapping}), {model.speed:.0%} of a desktop core's time each, "
            f"{model.memory_mb} MB for processes, {hidden_paths} hidden{remark}"
        )

    def memory_bytes(self) -> int | None:
        """Return the memory of the process (``VmRSS``).

        None without a process, or if the system does not report it.
        """
        status = Path(f"/proc/{self.processes.pid}/status")
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None

    def begin(self, event: PhoneEvent) -> None:
        """Start an event.

        EventError if it is invalid, or not possible now.
        """
        options = check_event(event)
        with self._changed:
            if event.kind == "squatter":
                self.hijackers[event] = self._hijack(options)
            elif event.kind == "kill":
                self.processes.kill("kill")
            self._conditions[event] = KINDS[event.kind].condition(options, self.model)
            self._apply()

    def end(self, event: PhoneEvent) -> None:
        """End an event; ignore one that is not in progress."""
        with self._changed:
            if self._conditions.pop(event, None) is None:
                return
            self._apply()
            hijacker = self.hijackers.pop(event, None)
        if hijacker is not None:
            hijacker.close()
            self.processes.excuse = ""
        if KINDS[event.kind].death:
            self.processes.revive()

    def under_way(self) -> list[PhoneEvent]:
        """Return the events in progress."""
        with self._changed:
            return list(self._conditions)

    @property
    def speed(self) -> float:
        """Share of the time that the processes run now."""
        condition = self._condition()
        speed = self.model.speed * condition.speed
        if condition.background:
            speed *= self.model.slow_speed
        return speed

    def close(self) -> None:
        """End all events and the process, with SIGTERM and then with SIGKILL."""
        if self._closed:
            return
        self._closed = True
        while self.hijackers:
            self.hijackers.popitem()[1].close()
        with self._changed:
            self._conditions.clear()
            self._apply()
        self._duty.set(1.0, False)
        self.processes.close()
        self._duty.close()
        self.image.close()

    def _hijack(self, options: Mapping[str, Any]) -> PortHijacker:
        """Kill the server, and take its ports before it is restarted."""
        ports = options["ports"] or self.processes.ports
        if not ports:
            raise EventError("the command listens on no port yet")
        self.processes.kill("squatter")
        try:
            hijacker = PortHijacker(ports, self._host)
            self.processes.excuse = "squatter"
            return hijacker
        except OSError as error:
            raise EventError(
                f"the ports {ports} cannot be taken: {error.strerror}"
            ) from None
        finally:
            self.processes.revive()

    # All methods below run under the lock.

    def _launcher(self, ready: int) -> list[str]:
        return launcher(self._usable_cores(), self.covers, ready)

    def _condition(self) -> Condition:
        with self._changed:
            return combine(self._conditions.values())

    def _usable_cores(self) -> tuple[int, ...]:
        if self._condition().background:
            return self.cores.background
        return self.cores.all

    def _apply(self) -> None:
        condition = self._condition()
        self._duty.set(self.speed, condition.frozen)
        pid = self.processes.pid
        if pid is not None:
            # Twice: a new thread inherits the cores of the thread that starts it.
            self._bind_threads(pid)
            self._bind_threads(pid)
        self.image.show(condition)
        self._watch_memory()

    def _bind_threads(self, pid: int) -> None:
        """Bind all threads of a process to its cores, as Android's cpusets do."""
        cores = self._usable_cores()
        for path in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            # A thread may have ended.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(path.name), cores)

    def _started(self, pid: int | None) -> None:
        self.image.list_process(pid)
        self._duty.apply()

    def _watch_memory(self) -> None:
        """Show the free memory, and kill a process that exceeds it."""
        # Stops a child that was started just before a freeze.
        self._duty.apply()
        limit = (self._condition().memory_mb or self.model.memory_mb) * 10**6
        resident = self.memory_bytes()
        self._observe(resident)
        used = resident or 0
        self.image.set_memory(max(0, limit - used))
        if used > limit:
            self.processes.kill("memory", for_good=False)


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))
