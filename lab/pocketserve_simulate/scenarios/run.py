"""Run a scenario: a server, its apps, and timed events."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

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
    """A run of a scenario.

    Args:
        folder: an empty one, for the phone, the server's state and its token.
    """

    def __init__(
        self, scenario: Scenario, models: Path, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._scenario = scenario
        self._models = models
        self._folder = folder
        self._say = say
        self._log = folder / "server.log"
        self._ready = folder / "ready.json"
        http_port, socket_port = _free_ports()
        self._addresses = ServerAddresses(
            f"http://{LOOPBACK}:{http_port}",
            f"socket://{LOOPBACK}:{socket_port}",
            folder / "token",
        )
        self._arguments = [
            "serve",
            str(models),
            "--http-port",
            str(http_port),
            "--socket-port",
            str(socket_port),
            "--ready-file",
            str(self._ready),
            "--token-file",
            str(self._addresses.token_file),
            "--state-dir",
            str(folder / "state"),
            "--log-level",
            "warning",
            *scenario.options,
        ]
        if scenario.load:
            self._arguments += ["--load", *scenario.load]
        self._questions: Mapping[str, list[Question]] = {}
        self._misbehaving: list[MisbehavingClient] = []
        self._begin = 0.0

    def run(self) -> Record:
        """Run the scenario to its end.

        Raises:
            ScenarioError: the server cannot be started, or does not answer.
        """
        self._say("recording the right answers")
        self._questions = prepare_questions(
            self._scenario.streams, self._models, self._folder / "state"
        )
        memory: list[tuple[float, int | None]] = []

        def observe(resident: int | None) -> None:
            memory.append((time.monotonic(), resident))

        model = DEVICES[self._scenario.device]
        folder = self._folder / "phone"
        with Phone(model, folder, output=self._log, observe=observe) as phone:
            self._say(f"starting the server on a {self._scenario.device} phone")
            phone.processes.start(self._arguments)
            # From now on, a process that ends is restarted, as by a supervisor.
            phone.processes.revive()
            self._await_server()
            return self._play(phone, memory)

    def _await_server(self) -> None:
        """Wait until the server is ready.

        Raises:
            ScenarioError: it takes too long.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._ready.exists():
            if time.monotonic() > deadline:
                command = " ".join(self._arguments)
                raise ScenarioError(
                    f"the server was not ready within {READY_TIMEOUT_S:g} s; try it "
                    f"without a phone: pocketserve {command}; "
                    f"it said: {self.log[-500:]!r}"
                )
            time.sleep(POLL_S)

    @property
    def log(self) -> str:
        """Return the output of the server."""
        return self._log.read_text(errors="replace")

    def _play(self, phone: Phone, memory: list[tuple[float, int | None]]) -> Record:
        begin = time.monotonic()
        self._begin = begin
        apps = []
        for stream in self._scenario.streams:
            questions = self._questions[stream.name]
            apps.append(App(stream, self._addresses, questions, begin))
        with contextlib.ExitStack() as stack:
            for app in apps:
                app.start()
                stack.callback(app.stop)
            stack.callback(self._stop_misbehaving)
            events = self._pass_time(phone)
        return self._record(phone, apps, events, memory)

    def _record(
        self,
        phone: Phone,
        apps: Sequence[App],
        events: list[PastEvent],
        memory: Sequence[tuple[float, int | None]],
    ) -> Record:
        """Return everything that happened, by the time since the beginning."""
        begin = self._begin
        scenario = self._scenario
        samples = []
        skipped = {}
        for app in apps:
            samples += app.samples
            skipped[app.stream.name] = app.skipped
        samples.sort(key=lambda sample: sample.sent)
        lives = []
        for at, pid in phone.processes.starts:
            lives.append(Life(pid, max(0.0, at - begin)))
        exits = []
        for item in phone.processes.exits:
            exits.append(dataclasses.replace(item, at=item.at - begin))
        streams = {}
        for stream in scenario.streams:
            streams[stream.name] = dataclasses.asdict(stream)
        return Record(
            scenario=scenario.name,
            description=scenario.description,
            device=scenario.device,
            seconds=scenario.seconds,
            recovery=scenario.recovery,
            streams=streams,
            events=events,
            samples=samples,
            memory=_since(begin, memory),
            lives=lives,
            exits=exits,
            skipped=skipped,
            successes=self._successes(),
            strangers=sum(client.requests for client in self._misbehaving),
            machine=_machine(),
        )

    def _pass_time(self, phone: Phone) -> list[PastEvent]:
        """Begin and end every event when it is due."""
        starts: dict[PhoneEvent, float] = {}
        past: list[PastEvent] = []
        for moment in _moments(self._scenario):
            event = moment.event
            self._sleep_until(moment.second)
            now = time.monotonic() - self._begin
            if moment.begins:
                self._say(f"{now:5.1f} s  {event.kind} begins")
                starts[event] = now
                self._start_event(phone, event)
            else:
                self._say(f"{now:5.1f} s  {event.kind} is over")
                start = starts[event]
                past.append(PastEvent(event.kind, start, now, event.options))
                self._end_event(phone, event)
        self._sleep_until(self._scenario.seconds)
        return sorted(past, key=lambda event: event.begun)

    def _start_event(self, phone: Phone, event: PhoneEvent) -> None:
        if event.kind in DISTURBANCES:
            self._start_misbehaving(event)
        else:
            phone.begin(event)

    def _end_event(self, phone: Phone, event: PhoneEvent) -> None:
        if event.kind in DISTURBANCES:
            self._stop_misbehaving(event.kind)
        else:
            phone.end(event)

    def _sleep_until(self, second: float) -> None:
        time.sleep(max(0.0, self._begin + second - time.monotonic()))

    def _start_misbehaving(self, event: PhoneEvent) -> None:
        """Start a client that sends the first stream of tensors."""
        streams = self._scenario.streams
        stream = next(stream for stream in streams if stream.ask == TENSORS)
        question = self._questions[stream.name][0]
        client = MisbehavingClient(
            event.kind,
            self._addresses,
            stream.model,
            question,
        )
        self._misbehaving.append(client)
        client.start()

    def _stop_misbehaving(self, kind: str = "") -> None:
        """Stop the misbehaving clients of a kind, or all."""
        for client in self._misbehaving:
            if kind in ("", client.kind):
                client.stop()

    def _successes(self) -> dict[str, int] | None:
        """Return the server's numbers of answered requests, by model.

        None if it does not answer.
        """
        counts: Counter[str] = Counter()
        timeout = STATISTICS_TIMEOUT_S
        try:
            with self._addresses.open("http", timeout, timeout) as client:
                for entry in client.statistics():
                    success = entry["inference_stats"]["success"]
                    counts[entry["name"]] += int(success["count"])
        except (ServerError, ServerUnreachableError):
            return None
        return dict(counts)


def _since(
    begin: float, memory: Sequence[tuple[float, int | None]]
) -> list[tuple[float, int | None]]:
    """Return the measurements after the beginning, by the time since then."""
    measured = []
    for at, resident in memory:
        if at >= begin:
            measured.append((at - begin, resident))
    return measured


def _machine() -> dict[str, Any]:
    """Return facts on the computer."""
    return {
        "system": sys.platform,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version,
    }


def _free_ports() -> tuple[int, int]:
    """Return two free ports, which a restarted server uses again."""
    with (
        socket.create_server((LOOPBACK, 0)) as first,
        socket.create_server((LOOPBACK, 0)) as second,
    ):
        return first.getsockname()[1], second.getsockname()[1]


class _Moment(NamedTuple):
    """The start or end of an event."""

    second: float
    begins: bool
    event: PhoneEvent

    def rank(self) -> tuple[float, bool, bool]:
        """Return the sort key.

        At the same second, ends come before starts; but an event without duration ends
        after its own start.
        """
        is_instant_end = not self.begins and not self.event.seconds
        return self.second, is_instant_end, self.begins


def _moments(scenario: Scenario) -> list[_Moment]:
    """Return the starts and ends of all events, in order."""
    moments = []
    for event in scenario.events:
        end = event.at + event.seconds
        moments.append(_Moment(event.at, True, event))
        moments.append(_Moment(end, False, event))
    return sorted(moments, key=_Moment.rank)
