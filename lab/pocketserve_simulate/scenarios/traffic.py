"""The apps of a simulation: real clients with a steady rate of requests.

They record the outcome of each request.
"""

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

SLACK_S: Final = 0.5
"""Delay of a call by a busy desktop, before the call counts as silent."""

UNLOADED: Final = "MODEL_NOT_FOUND"
"""The error of a model that was unloaded."""

QUESTIONS_PER_CHANGE: Final = 4
"""Questions between two loads or unloads."""


@dataclass(frozen=True)
class ServerAddresses:
    """URLs of the server by transport, and the file of its token."""

    http: str
    socket: str
    token_file: Path

    def open(self, transport: str, timeout: float, reconnect: float) -> Client:
        """Return a client like that of an app."""
        url = self.http if transport == "http" else self.socket
        return Client(
            url, token_file=self.token_file, timeout=timeout, reconnect=reconnect
        )


class Askable(Protocol):
    """A request with a known answer."""

    def ask(self, client: Client, stream: Stream) -> str:
        """Send it.

        Return the error in the answer, empty if it is right.
        """


class App:
    """Sends one stream's requests, with a thread for each request in flight."""

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
        self._questions = questions
        count = stream.parallel
        if stream.ask == LOADS:
            self._questions = [LoadsAndUnloads(questions)]
            count = 1
        self._begin = begin
        self._client = addresses.open(stream.client, stream.timeout, stream.reconnect)
        self._stopping = threading.Event()
        self._counting = threading.Lock()
        self._next = 0
        # By thread: the time at which its request was sent.
        self._under_way: dict[int, float] = {}
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)

    def start(self) -> None:
        """Start sending requests."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending.

        Return once all requests have ended, or their time is up.
        """
        self._stopping.set()
        deadline = time.monotonic() + self.stream.max_call_s + SLACK_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for number in list(self._under_way):
            self._record(number, SILENT, "", "has not ended")
        if not any(thread.is_alive() for thread in self._threads):
            self._client.close()

    def _work(self) -> None:
        thread = threading.get_ident()
        while not self._stopping.is_set():
            number, due = self._next_request()
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            sent = time.monotonic()
            self._under_way[thread] = sent
            outcome, code, detail = self._ask(number)
            took = time.monotonic() - sent
            if took > self.stream.max_call_s + SLACK_S:
                detail = f"ended after {took:.1f} s as {outcome} {code}"
                outcome = SILENT
            self._record(thread, outcome, code, detail)

    def _record(self, thread: int, outcome: str, code: str, detail: str) -> None:
        """Record the end of a thread's request.

        Only once: a request that was given up may end later.
        """
        sent = self._under_way.pop(thread, None)
        if sent is None:
            return
        ended = time.monotonic() - self._begin
        sent -= self._begin
        sample = Sample(self.stream.name, sent, ended, outcome, code, detail)
        self.samples.append(sample)

    def _next_request(self) -> tuple[int, float]:
        """Return number and time of the next request.

        Overdue ones are skipped.
        """
        with self._counting:
            due = int((time.monotonic() - self._begin) * self.stream.rate)
            self.skipped += max(0, due - self._next)
            number = max(self._next, due)
            self._next = number + 1
        return number, self._begin + number / self.stream.rate

    def _ask(self, number: int) -> tuple[str, str, str]:
        """Send a request; return its outcome, code and detail."""
        question = self._questions[number % len(self._questions)]
        try:
            wrong = question.ask(self._client, self.stream)
        except ServerError as error:
            outcome = WRONG
            if code_named(error.code):
                outcome = REFUSED
            return outcome, error.code, str(error)
        except ServerUnreachableError as error:
            return LOST, type(error).__name__.removesuffix("Error"), str(error)
        # No app expects other errors from the client: the report shows them.
        except Exception as error:
            return WRONG, type(error).__name__, str(error)
        return (WRONG if wrong else RIGHT), "", wrong


class LoadsAndUnloads:
    """Loads and unloads a model in turn, and checks the effect with requests.

    An acknowledged change must last until the next load or unload, even if the server
    is killed. A change that was not acknowledged may have happened or not.
    """

    def __init__(self, questions: Sequence[Askable]) -> None:
        self._questions = questions
        self._steps = 0
        # None if unknown.
        self._loaded: bool | None = True

    def ask(self, client: Client, stream: Stream) -> str:
        """Send the next request; return the error in its answer."""
        self._steps += 1
        if self._steps % (QUESTIONS_PER_CHANGE + 1) == 0:
            self._change(client, stream.model)
            return ""
        question = self._questions[self._steps % len(self._questions)]
        try:
            wrong = question.ask(client, stream)
        except ServerError as error:
            if error.code != UNLOADED:
                raise
            if self._loaded:
                return "the model was loaded, but is no longer"
            return ""
        if self._loaded is False:
            return "the model was unloaded, and answers again"
        return wrong

    def _change(self, client: Client, model: str) -> None:
        """Load an unloaded model, and unload a loaded one."""
        load = not self._loaded
        self._loaded = None
        if load:
            client.load(model)
        else:
            client.unload(model)
        self._loaded = load
