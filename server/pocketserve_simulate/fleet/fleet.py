"""A fleet: simulated phones on one desktop, each with a server, a state folder and a token of its own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pocketserve.engine.device.cores import usable_cores
from pocketserve_client import Client
from pocketserve_simulate.fleet.addresses import AddressBlock
from pocketserve_simulate.phone.device import PhoneModel
from pocketserve_simulate.phone.phone import Phone
from pocketserve_simulate.phone.processes import PhoneError
from pocketserve_wire.addresses import HTTP_PORT, SOCKET_PORT

T = TypeVar("T")

READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
LOG_CHARACTERS: Final = 500  # of a server that cannot start: its last words
PARALLEL_ENDS: Final = 16  # an end is mostly waiting, a start is work


@dataclass(frozen=True)
class FleetPhone:
    """A phone of a fleet, with a server that runs or is to run; the first one has number 1."""

    number: int
    host: str
    phone: Phone
    folder: Path

    @property
    def profile(self) -> str:
        """The name of the device that it stands for."""
        return self.phone.model.name

    @property
    def token_file(self) -> Path:
        """The file of its own token."""
        return self.phone.image.home / ".local/state/pocketserve/token"

    def url(self, transport: str = "socket") -> str:
        """Return the address of its server over ``socket`` or ``http``."""
        return f"{transport}://{self.host}:{SOCKET_PORT if transport == 'socket' else HTTP_PORT}"

    def client(self, timeout: float, reconnect: float = 0.0, transport: str = "socket") -> Client:
        """Return a client as an app on this phone would have it."""
        return Client(self.url(transport), token_file=self.token_file, timeout=timeout, reconnect=reconnect)

    def start(self, arguments: Sequence[str]) -> None:
        """Start the server at the desktop's speed; returns once it is ready.

        Raises:
            PhoneError: it ended, or was not ready in time; the text holds its last words.
        """
        ready = self.folder / "ready.json"
        options = ["--host", self.host, "--http-port", str(HTTP_PORT), "--socket-port", str(SOCKET_PORT)]
        options += ["--ready-file", str(ready), "--log-level", "warning"]
        self.phone.hurry(True)
        self.phone.processes.start(["serve", *options, *arguments])
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready(ready):
            ended = self.phone.processes.wait(POLL_S) is not None
            if ended or time.monotonic() > deadline:
                reason = "ended before it was ready" if ended else f"was not ready within {READY_TIMEOUT_S:g} s"
                raise PhoneError(f"the server of phone {self.number} at {self.host} {reason}: {self.last_words}")
        self.phone.processes.revive()  # from now on one that is killed may be started again

    @property
    def last_words(self) -> str:
        """The end of what its server has printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "server.log").read_text(errors="replace")[-LOG_CHARACTERS:].strip()
        return ""

    def _is_ready(self, ready: Path) -> bool:
        """Return whether the process that runs now has said that it is ready."""
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(ready.read_text())["pid"] == self.phone.processes.pid)
        return False


class Fleet:
    """Phones with a server each. As a context manager it starts them all, and ends them all.

    No more servers start at a time than there are cores, so that none of them waits for its share of the desktop.

    Args:
        models: the device of each phone.
        folder: an empty one, for the phones.
        arguments: of ``pocketserve serve``, given the folder of the phone.
    """

    def __init__(self, models: Sequence[PhoneModel], folder: Path, arguments: Callable[[Path], Sequence[str]]) -> None:
        self._models, self._folder, self._arguments = models, folder, arguments
        self._open = contextlib.ExitStack()
        self.phones: list[FleetPhone] = []

    def __enter__(self) -> Fleet:
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all servers: first politely, then by signal 9. Nothing of the fleet runs when this returns."""
        self._open.close()

    def _start(self) -> None:
        block = AddressBlock()
        self._open.callback(block.close)
        self._open.callback(self._end_all)
        in_parallel(self._start_one, [(number, block.host(number)) for number in range(1, len(self._models) + 1)])
        self.phones.sort(key=lambda item: item.number)

    def _start_one(self, numbered: tuple[int, str]) -> None:
        number, host = numbered
        folder = self._folder / f"phone-{number}"
        folder.mkdir()
        phone = Phone(self._models[number - 1], folder / "phone", output=folder / "server.log", host=host)
        member = FleetPhone(number, host, phone, folder)
        self.phones.append(member)  # before anything runs on it: whatever happens, its end is the fleet's
        member.start(self._arguments(folder))

    def _end_all(self) -> None:
        in_parallel(lambda item: item.phone.close(), list(self.phones), PARALLEL_ENDS)


def in_parallel(work: Callable[[T], object], items: Iterable[T], threads: int = 0) -> None:
    """Do the work for each item on so many threads, by default one for each core; raises the first error.

    Nothing new begins behind an error.
    """
    pool = ThreadPoolExecutor(threads or len(usable_cores()), thread_name_prefix="simulate-fleet")
    try:
        for future in [pool.submit(work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
