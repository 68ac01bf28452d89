"""A phone: real processes of ``pocketserve`` under the conditions of one."""

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

GUEST = "; another command has this folder: what the system tells of cores, memory and battery is that one's"


class Phone:
    """A phone. Threads may share it. Its processes end with :meth:`close`, and with this process however that ends.

    Args:
        folder: stays when the phone is closed. Where another run has it, this one is a guest, and changes nothing.
        output: a file to which output is appended; None lets the processes use ours.
        absent: what is hidden from the processes, as far as possible.
        observe: called several times a second with the bytes that the process holds, None without one.
        host: the address on which the server listens, where another app takes its ports.
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
        self._observe, self._host = observe, host
        self.hijackers: dict[PhoneEvent, PortHijacker] = {}
        self._closed = False
        self._conditions: dict[PhoneEvent, Condition] = {}
        self.processes = Processes(
            lambda ready: launcher(self._usable_cores(), self.covers, ready),
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
        """Return the phone in one sentence, and what stands for it here."""
        model, cores = self.model, self.cores
        fast, slow = (
            ", ".join(map(str, listed)) for listed in (cores.fast, cores.slow)
        )
        mapping = f"fast ones run on desktop core {fast}" + (
            f", slow ones on {slow}" if slow else ""
        )
        return (
            f"{model.name}: {model.fast_cores} fast and {model.slow_cores} slow cores ({mapping}), "
            f"{model.speed:.0%} of a desktop core's time each, {model.memory_mb} MB for processes, "
            f"{' and '.join(self.covers) or 'nothing'} hidden"
            f"{GUEST if self.image.is_guest else ''}"
        )

    def memory_bytes(self) -> int | None:
        """Return what the process holds in memory (``VmRSS``); None without one, or where the system does not tell."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (
                Path(f"/proc/{self.processes.pid}/status").read_text().splitlines()
            ):
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None

    def begin(self, event: PhoneEvent) -> None:
        """Begin an event; EventError if there is none such, or it cannot happen now."""
        options = check_event(event)
        with self._changed:
            if event.kind == "squatter":
                self.hijackers[event] = self._hijack(options)
            elif event.kind == "kill":
                self.processes.kill("kill")
            self._conditions[event] = KINDS[event.kind].condition(options, self.model)
            self._apply()

    def end(self, event: PhoneEvent) -> None:
        """End an event; one that is not under way is passed over."""
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
        """Return the events that have begun and not ended."""
        with self._changed:
            return list(self._conditions)

    @property
    def speed(self) -> float:
        """Share of the time that the processes run now."""
        condition = self._condition()
        return (
            self.model.speed
            * condition.speed
            * (self.model.slow_speed if condition.background else 1.0)
        )

    def close(self) -> None:
        """End what is under way and the process: first politely, then by signal 9."""
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
        """Kill the server, and take its ports before it is started again."""
        ports = options["ports"] or self.processes.ports
        if not ports:
            raise EventError("the command listens on no port yet")
        self.processes.kill("squatter")
        try:
            hijacker = PortHijacker(ports, self._host)
        except OSError as error:
            raise EventError(
                f"the ports {ports} cannot be taken: {error.strerror}"
            ) from None
        else:
            self.processes.excuse = "squatter"
            return hijacker
        finally:
            self.processes.revive()

    # Inside: all of it under the lock

    def _condition(self) -> Condition:
        with self._changed:
            return combine(self._conditions.values())

    def _usable_cores(self) -> tuple[int, ...]:
        return self.cores.background if self._condition().background else self.cores.all

    def _apply(self) -> None:
        condition = self._condition()
        self._duty.set(self.speed, condition.frozen)
        pid = self.processes.pid
        # All threads, as Android's cpusets do. Twice: a new one inherits the cores of the one that starts it.
        for _ in range(2 if pid is not None else 0):
            for path in Path(f"/proc/{pid}/task").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(int(path.name), self._usable_cores())
        self.image.show(condition)
        self._watch_memory()

    def _started(self, pid: int | None) -> None:
        self.image.list_process(pid)
        self._duty.apply()

    def _watch_memory(self) -> None:
        """Show how much memory is left, and kill a process that holds more than there is, as Android does."""
        self._duty.apply()  # a child that was started just before a freeze is stopped a moment later
        limit = (self._condition().memory_mb or self.model.memory_mb) * 10**6
        resident = self.memory_bytes()
        self._observe(resident)
        self.image.set_memory(max(0, limit - (resident or 0)))
        if (resident or 0) > limit:
            self.processes.kill("memory", for_good=False)
