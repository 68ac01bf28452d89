"""Running a scenario: a phone with a server on it, apps that ask it, and what happens to them, to the second."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pocketserve_client import ServerError, ServerUnreachableError
from pocketserve_simulate.phone.device import DEVICES
from pocketserve_simulate.phone.events import PhoneEvent
from pocketserve_simulate.phone.phone import Phone
from pocketserve_simulate.scenarios.misbehaving_clients import MisbehavingClient
from pocketserve_simulate.scenarios.questions import Question, prepare_questions
from pocketserve_simulate.scenarios.record import Life, PastEvent, Record
from pocketserve_simulate.scenarios.scenario import (
    DISTURBANCES,
    TENSORS,
    Scenario,
    ScenarioError,
)
from pocketserve_simulate.scenarios.traffic import App, ServerAddresses
from pocketserve_wire.addresses import LOOPBACK

READY_TIMEOUT_S: Final = 120.0
STATISTICS_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.1


class Simulation:
    """A run of a scenario; ``folder`` is an empty one, for the phone, the server's state and its token."""

    def __init__(
        self, scenario: Scenario, models: Path, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._scenario = scenario
        self._models = models
        self._folder = folder
        self._say = say
        self._log, self._ready, token = (
            folder / "server.log",
            folder / "ready.json",
            folder / "token",
        )
        http_port, socket_port = _free_ports()
        self._arguments = [
            "serve",
            str(models),
            "--http-port",
            str(http_port),
            "--socket-port",
            str(socket_port),
        ]
        self._arguments += [
            "--ready-file",
            str(self._ready),
            "--token-file",
            str(token),
        ]
        self._arguments += [
            "--state-dir",
            str(folder / "state"),
            "--log-level",
            "warning",
            *scenario.options,
        ]
        self._arguments += ["--load", *scenario.load] if scenario.load else []
        self._addresses = ServerAddresses(
            f"http://{LOOPBACK}:{http_port}",
            f"socket://{LOOPBACK}:{socket_port}",
            token,
        )
        self._questions: Mapping[str, list[Question]] = {}
        self._misbehaving: list[MisbehavingClient] = []
        self._begin = 0.0

    def run(self) -> Record:
        """Run it to its end; ScenarioError if the server cannot be started, or not be asked."""
        self._say("asking beforehand for the right answers")
        self._questions = prepare_questions(
            self._scenario.streams, self._models, self._folder / "state"
        )
        model, folder = DEVICES[self._scenario.device], self._folder / "phone"
        memory: list[tuple[float, int | None]] = []
        observe = lambda resident: memory.append((time.monotonic(), resident))  # noqa: E731
        with Phone(model, folder, output=self._log, observe=observe) as phone:
            self._say(f"starting the server on a {self._scenario.device} phone")
            phone.processes.start(self._arguments)
            phone.processes.revive()  # from now on a process that ends is started again, as a supervisor does
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not self._ready.exists():
                if time.monotonic() > deadline:
                    raise ScenarioError(
                        f"the server was not ready within {READY_TIMEOUT_S:g} s; try it without a phone: "
                        f"pocketserve {' '.join(self._arguments)}; it said: {self.log[-500:]!r}"
                    )
                time.sleep(POLL_S)
            return self._play(phone, memory)

    @property
    def log(self) -> str:
        """Return what the server has printed."""
        return self._log.read_text(errors="replace")

    def _play(self, phone: Phone, memory: list[tuple[float, int | None]]) -> Record:
        self._begin = begin = time.monotonic()
        scenario = self._scenario
        apps = [
            App(stream, self._addresses, self._questions[stream.name], begin)
            for stream in scenario.streams
        ]
        with contextlib.ExitStack() as stack:
            for app in apps:
                app.start()
                stack.callback(app.stop)
            stack.callback(self._stop_misbehaving)
            events = self._pass_time(phone)
        return Record(
            scenario=scenario.name,
            description=scenario.description,
            device=scenario.device,
            seconds=scenario.seconds,
            recovery=scenario.recovery,
            streams={
                stream.name: dataclasses.asdict(stream) for stream in scenario.streams
            },
            events=events,
            samples=sorted(
                (sample for app in apps for sample in app.samples),
                key=lambda sample: sample.sent,
            ),
            memory=[(at - begin, resident) for at, resident in memory if at >= begin],
            lives=[
                Life(pid, max(0.0, at - begin)) for at, pid in phone.processes.starts
            ],
            exits=[
                dataclasses.replace(item, at=item.at - begin)
                for item in phone.processes.exits
            ],
            skipped={app.stream.name: app.skipped for app in apps},
            successes=self._successes(),
            strangers=sum(client.requests for client in self._misbehaving),
            machine={
                "system": sys.platform,
                "architecture": platform.machine(),
                "cores": os.cpu_count(),
                "python": sys.version,
            },
        )

    def _pass_time(self, phone: Phone) -> list[PastEvent]:
        """Begin and end every event when it is due."""
        beginnings: dict[PhoneEvent, float] = {}
        past: list[PastEvent] = []
        for at, begins, event in _moments(self._scenario):
            self._sleep_until(at)
            now = time.monotonic() - self._begin
            self._say(f"{now:5.1f} s  {event.kind} {'begins' if begins else 'is over'}")
            if begins:
                beginnings[event] = now
                self._start_misbehaving(
                    event
                ) if event.kind in DISTURBANCES else phone.begin(event)
            else:
                past.append(
                    PastEvent(event.kind, beginnings[event], now, event.options)
                )
                self._stop_misbehaving(
                    event.kind
                ) if event.kind in DISTURBANCES else phone.end(event)
        self._sleep_until(self._scenario.seconds)
        return sorted(past, key=lambda event: event.begun)

    def _sleep_until(self, second: float) -> None:
        time.sleep(max(0.0, self._begin + second - time.monotonic()))

    def _start_misbehaving(self, event: PhoneEvent) -> None:
        stream = next(
            stream for stream in self._scenario.streams if stream.ask == TENSORS
        )
        client = MisbehavingClient(
            event.kind, self._addresses, stream.model, self._questions[stream.name][0]
        )
        self._misbehaving.append(client)
        client.start()

    def _stop_misbehaving(self, kind: str = "") -> None:
        """Stop the misbehaving clients of a kind, or all."""
        for client in self._misbehaving:
            if kind in ("", client.kind):
                client.stop()

    def _successes(self) -> dict[str, int] | None:
        """Return by model how many requests the server says it has answered; None if it cannot be asked."""
        counts: dict[str, int] = {}
        try:
            with self._addresses.open(
                "http", STATISTICS_TIMEOUT_S, STATISTICS_TIMEOUT_S
            ) as client:
                for entry in client.statistics():
                    count = int(entry["inference_stats"]["success"]["count"])
                    counts[entry["name"]] = counts.get(entry["name"], 0) + count
        except (ServerError, ServerUnreachableError):
            return None
        return counts


def _free_ports() -> tuple[int, int]:
    """Return two ports that nobody listens on: a server that is started again must come back where it was."""
    with (
        socket.create_server((LOOPBACK, 0)) as first,
        socket.create_server((LOOPBACK, 0)) as second,
    ):
        return first.getsockname()[1], second.getsockname()[1]


def _moments(scenario: Scenario) -> list[tuple[float, bool, PhoneEvent]]:
    """Return when events begin and end, as (second, whether it begins, event).

    At the same second, ends come before beginnings; but an event without duration ends behind its own beginning.
    """
    moments = [(event.at, True, event) for event in scenario.events]
    moments += [(event.at + event.seconds, False, event) for event in scenario.events]
    return sorted(
        moments,
        key=lambda moment: (
            moment[0],
            not moment[1] and not moment[2].seconds,
            moment[1],
        ),
    )
