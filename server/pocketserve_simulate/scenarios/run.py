"""Running a scenario: a phone with a server on it, apps that ask it, and what happens to them, to the second."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pocketserve_client import ServerError, ServerUnreachableError
from pocketserve_simulate.phone.device import DEVICES
from pocketserve_simulate.phone.events import Event
from pocketserve_simulate.phone.phone import Phone
from pocketserve_simulate.scenarios.misbehaving_clients import MisbehavingClient
from pocketserve_simulate.scenarios.questions import Question, prepare
from pocketserve_simulate.scenarios.record import Exit, Happened, Life, Memory, Record
from pocketserve_simulate.scenarios.scenario import DISTURBANCES, TENSORS, Scenario, ScenarioError
from pocketserve_simulate.scenarios.traffic import Addresses, App

HOST: Final = "127.0.0.1"
LOG_FILE: Final = "server.log"
"""What the server prints, in the simulation's folder."""

READY_TIMEOUT_S: Final = 120.0
LAST_WORD_S: Final = 10.0
LOOK_EVERY_S: Final = 0.1

Say = Callable[[str], None]


class Simulation:
    """One run of a scenario.

    Args:
        models: the folder that is served.
        folder: an empty one, for the phone, the server's state and its token.
        say: told what happens while it happens.
    """

    def __init__(self, scenario: Scenario, models: Path, folder: Path, say: Say) -> None:
        self._scenario = scenario
        self._models = models
        self._folder = folder
        self._say = say
        self._ready = folder / "ready.json"
        ports = free_ports()
        self._arguments = _serve_arguments(scenario, models, folder, self._ready, ports)
        self._addresses = Addresses(f"http://{HOST}:{ports[0]}", f"socket://{HOST}:{ports[1]}", folder / "token")
        self._questions: Mapping[str, list[Question]] = {}
        self._strangers: list[MisbehavingClient] = []
        self._begin = 0.0

    def run(self) -> Record:
        """Run it to its end.

        Raises:
            ScenarioError: the server cannot be started, or not be asked what the scenario wants to ask.
        """
        self._say("asking beforehand for the right answers")
        self._questions = prepare(self._scenario.streams, self._models, self._folder / "state")
        phone = Phone(DEVICES[self._scenario.device], self._folder / "phone", output=self._folder / LOG_FILE)
        with contextlib.closing(phone):
            self._say(f"starting the server on a {self._scenario.device} phone")
            phone.start(self._arguments)
            phone.revive()  # from now on a process that ends is started again, as a supervisor does
            self._await_ready()
            return self._play(phone)

    @property
    def log(self) -> str:
        """Return what the server has printed."""
        return (self._folder / LOG_FILE).read_text(errors="replace")

    def _await_ready(self) -> None:
        ends = time.monotonic() + READY_TIMEOUT_S
        pace = threading.Event()  # never set
        while not self._ready.exists():
            if time.monotonic() > ends:
                raise ScenarioError(
                    f"the server was not ready within {READY_TIMEOUT_S:g} s; try it without a phone: "
                    f"pocketserve {' '.join(self._arguments)}; it said: {self.log[-500:]!r}"
                )
            pace.wait(LOOK_EVERY_S)

    def _play(self, phone: Phone) -> Record:
        self._begin = time.monotonic()
        streams = self._scenario.streams
        apps = [App(stream, self._addresses, self._questions[stream.name], self._begin) for stream in streams]
        watch = Watch(phone, self._begin)
        with running(watch, *apps):
            try:
                events = self._pass_time(phone)
            finally:
                self._quieten()
        successes = self._successes()
        return Record(
            scenario=self._scenario.name,
            description=self._scenario.description,
            device=self._scenario.device,
            seconds=self._scenario.seconds,
            recovery=self._scenario.recovery,
            streams={stream.name: asdict(stream) for stream in streams},
            events=events,
            samples=sorted((sample for app in apps for sample in app.samples), key=lambda sample: sample.sent),
            memory=watch.memory,
            lives=watch.lives,
            exits=[Exit(item.at - self._begin, item.code, item.cause) for item in phone.exits],
            skipped={app.stream.name: app.skipped for app in apps},
            successes=successes,
            strangers=sum(stranger.requests for stranger in self._strangers),
            machine=_machine(),
        )

    def _pass_time(self, phone: Phone) -> list[Happened]:
        """Let every event begin and end when it is due."""
        pace = threading.Event()  # never set
        begun: dict[int, float] = {}
        happened: list[Happened] = []
        for at, begins, number in _moments(self._scenario):
            event = self._scenario.events[number]
            pace.wait(max(0.0, self._begin + at - time.monotonic()))
            now = time.monotonic() - self._begin
            self._say(f"{now:5.1f} s  {event.kind} {'begins' if begins else 'is over'}")
            if begins:
                begun[number] = now
                self._start(event, phone)
            else:
                happened.append(Happened(event.kind, begun[number], now, event.options))
                self._end(event, phone)
        pace.wait(max(0.0, self._begin + self._scenario.seconds - time.monotonic()))
        return sorted(happened, key=lambda event: event.begun)

    def _start(self, event: Event, phone: Phone) -> None:
        if event.kind not in DISTURBANCES:
            phone.begin(event)
            return
        stream = next(stream for stream in self._scenario.streams if stream.ask == TENSORS)
        stranger = MisbehavingClient(event.kind, self._addresses, stream.model, self._questions[stream.name][0])
        self._strangers.append(stranger)
        stranger.start()

    def _end(self, event: Event, phone: Phone) -> None:
        if event.kind in DISTURBANCES:
            self._quieten(event.kind)
        else:
            phone.end(event)

    def _quieten(self, kind: str = "") -> None:
        """Let the strangers of a kind, or all, leave."""
        for stranger in self._strangers:
            if kind in ("", stranger.kind):
                stranger.stop()

    def _successes(self) -> dict[str, int] | None:
        """By model, how many requests the server says it has answered; None if it cannot be asked."""
        try:
            with self._addresses.open("http", LAST_WORD_S, LAST_WORD_S) as client:
                counted: dict[str, int] = {}
                for entry in client.statistics():
                    count = int(entry["inference_stats"]["success"]["count"])
                    counted[entry["name"]] = counted.get(entry["name"], 0) + count
                return counted
        except (ServerError, ServerUnreachableError):
            return None


class Watch:
    """Looks at the server's process now and then, from outside.

    Attributes:
        memory: its resident memory over time.
        lives: its processes, one after the other.
    """

    def __init__(self, phone: Phone, begin: float) -> None:
        self.memory: list[Memory] = []
        self.lives = [Life(phone.pid, 0.0)] if phone.pid is not None else []  # it was ready before the traffic
        self._phone = phone
        self._begin = begin
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            now = time.monotonic() - self._begin
            pid = self._phone.pid if self._phone.alive else None
            if pid is not None and (not self.lives or self.lives[-1].pid != pid):
                self.lives.append(Life(pid, now))
            self.memory.append(Memory(now, self._phone.memory_bytes() if pid is not None else None))


@contextlib.contextmanager
def running(*parts: App | Watch) -> Iterator[None]:
    """Start them, and stop those that were started."""
    with contextlib.ExitStack() as stack:
        for part in parts:
            part.start()
            stack.callback(part.stop)
        yield


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on: a server that is started again must come back where it was."""
    with socket.socket() as one, socket.socket() as other:
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


def _serve_arguments(scenario: Scenario, models: Path, folder: Path, ready: Path, ports: tuple[int, int]) -> list[str]:
    arguments = ["serve", str(models), "--http-port", str(ports[0]), "--socket-port", str(ports[1])]
    arguments += ["--ready-file", str(ready), "--token-file", str(folder / "token")]
    arguments += ["--state-dir", str(folder / "state"), "--log-level", "warning", *scenario.options]
    return [*arguments, "--load", *scenario.load] if scenario.load else arguments


def _moments(scenario: Scenario) -> list[tuple[float, bool, int]]:
    """Return when events end and begin, as (second, whether it begins, number); ends come before beginnings."""
    moments = []
    for number, event in enumerate(scenario.events):
        begins = (event.at, True, number)
        ends = (event.at + event.seconds, False, number)
        moments += [begins, ends]
    return sorted(moments, key=lambda moment: (moment[0], _instant(moment, scenario), moment[1], moment[2]))


def _instant(moment: tuple[float, bool, int], scenario: Scenario) -> bool:
    """Return whether it is the end of an event without duration, which must follow its own beginning."""
    return not moment[1] and not scenario.events[moment[2]].seconds


def _machine() -> dict[str, Any]:
    return {"system": sys.platform, "architecture": platform.machine(), "cores": os.cpu_count(), "python": sys.version}
