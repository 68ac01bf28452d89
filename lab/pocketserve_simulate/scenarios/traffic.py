"""The apps of a simulation: real clients that ask at a steady rate, and record how each of their requests ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pocketserve_client import Client, ServerError, ServerUnreachableError
from pocketserve_simulate.scenarios.record import (
    LOST,
    REFUSED,
    RIGHT,
    SILENT,
    WRONG,
    Sample,
)
from pocketserve_simulate.scenarios.scenario import LOADS, Stream
from pocketserve_wire.errors import code_named

SLACK_S: Final = 0.5  # what the operating system may add to a call on a busy desktop before it counts as silent
UNLOADED: Final = "MODEL_NOT_FOUND"  # the refusal of a model that was unloaded
QUESTIONS_PER_CHANGE: Final = 4  # questions between two loads or unloads


@dataclass(frozen=True)
class ServerAddresses:
    """URLs of the server by transport, and the file of its token."""

    http: str
    socket: str
    token_file: Path

    def open(self, transport: str, timeout: float, reconnect: float) -> Client:
        """Return a client as an app would have it."""
        url = self.http if transport == "http" else self.socket
        return Client(
            url, token_file=self.token_file, timeout=timeout, reconnect=reconnect
        )


class Askable(Protocol):
    """A request with an answer that is known beforehand."""

    def ask(self, client: Client, stream: Stream) -> str:
        """Ask it; returns what is wrong with the answer, empty if nothing is."""


class App:
    """Sends one stream's requests, from as many threads as it may have requests under way."""

    def __init__(
        self,
        stream: Stream,
        addresses: ServerAddresses,
        questions: Sequence[Askable],
        begin: float,
    ) -> None:
        self.stream = stream
        self.samples: list[Sample] = []
        self.skipped = 0
        loads = stream.ask == LOADS
        self._questions: Sequence[Askable] = (
            [LoadsAndUnloads(questions)] if loads else questions
        )
        self._begin = begin
        self._client = addresses.open(stream.client, stream.timeout, stream.reconnect)
        self._stopping = threading.Event()
        self._counting = threading.Lock()
        self._next = 0
        self._under_way: dict[int, float] = {}  # by thread: when its request was sent
        count = 1 if loads else stream.parallel
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(count)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask nothing new; returns once everything under way has ended, or had all the time that it may take."""
        self._stopping.set()
        deadline = time.monotonic() + self.stream.max_call_s + SLACK_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for number in list(self._under_way):
            self._record(number, SILENT, "", "has not ended")
        if not any(thread.is_alive() for thread in self._threads):
            self._client.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            number, due = self._next_request()
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            self._under_way[threading.get_ident()] = sent = time.monotonic()
            outcome, code, detail = self._ask(
                self._questions[number % len(self._questions)]
            )
            took = time.monotonic() - sent
            if took > self.stream.max_call_s + SLACK_S:
                outcome, detail = (
                    SILENT,
                    f"ended after {took:.1f} s as {outcome} {code}",
                )
            self._record(threading.get_ident(), outcome, code, detail)

    def _record(self, thread: int, outcome: str, code: str, detail: str) -> None:
        """Record how a thread's request has ended, once: one that was given up may end later."""
        sent = self._under_way.pop(thread, None)
        if sent is not None:
            ended = time.monotonic() - self._begin
            self.samples.append(
                Sample(
                    self.stream.name, sent - self._begin, ended, outcome, code, detail
                )
            )

    def _next_request(self) -> tuple[int, float]:
        """Return number and time of the next request; those whose time is over are skipped."""
        with self._counting:
            due = int((time.monotonic() - self._begin) * self.stream.rate)
            self.skipped += max(0, due - self._next)
            number = max(self._next, due)
            self._next = number + 1
        return number, self._begin + number / self.stream.rate

    def _ask(self, question: Askable) -> tuple[str, str, str]:
        """Return outcome, code and detail of a request."""
        try:
            wrong = question.ask(self._client, self.stream)
        except ServerError as error:
            return (
                (REFUSED if code_named(error.code) else WRONG),
                error.code,
                str(error),
            )
        except ServerUnreachableError as error:
            return LOST, type(error).__name__.removesuffix("Error"), str(error)
        except Exception as error:  # what no app expects from the client: the report must show it, not lose a thread
            return WRONG, type(error).__name__, str(error)
        return (WRONG if wrong else RIGHT), "", wrong


class LoadsAndUnloads:
    """Loads and unloads a model in turn, and asks it in between whether that still holds.

    What was acknowledged must hold until the next load or unload, whatever happens to the server meanwhile. A change
    that was not acknowledged may have happened or not.
    """

    def __init__(self, questions: Sequence[Askable]) -> None:
        self._questions = questions
        self._steps = 0
        self._loaded: bool | None = True  # None: it is not known which

    def ask(self, client: Client, stream: Stream) -> str:
        """Send the next request; returns what is wrong with its answer."""
        self._steps += 1
        if self._steps % (QUESTIONS_PER_CHANGE + 1) == 0:
            load, self._loaded = not self._loaded, None
            (client.load if load else client.unload)(stream.model)
            self._loaded = load
            return ""
        try:
            wrong = self._questions[self._steps % len(self._questions)].ask(
                client, stream
            )
        except ServerError as error:
            if error.code != UNLOADED:
                raise
            return "the model was loaded, and is not any more" if self._loaded else ""
        return (
            "the model was unloaded, and answers again"
            if self._loaded is False
            else wrong
        )
