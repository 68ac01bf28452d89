"""The apps of a simulation: real clients that ask at a steady rate, and note how each of their requests ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pocketserve_client import Client, ServerError, ServerUnreachableError
from pocketserve_simulate.scenarios.questions import Question
from pocketserve_simulate.scenarios.scenario import LOADS, Stream
from pocketserve_wire.errors import code_named

RIGHT, WRONG, REFUSED, LOST, SILENT = "right", "wrong", "refused", "lost", "silent"
"""How a request can end.

RIGHT: answered, and the answer is the one that this very request has. WRONG: answered with anything else, or with an
error that is none of the server's own. REFUSED: the server said no, with one of its codes. LOST: the client said that
nobody answered. SILENT: the call ended later than the app's patience, which must never happen.
"""

SLACK_S: Final = 0.5
"""What the operating system may add to a call's patience on a busy desktop before it counts as silent."""

UNLOADED: Final = "MODEL_NOT_FOUND"
"""The refusal of a model that was unloaded."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request.

    Attributes:
        stream: whose it was.
        sent, ended: seconds since the beginning of the simulation.
        outcome: RIGHT, WRONG, REFUSED, LOST or SILENT.
        code: the error's stable code, or the name of the client's error; empty for an answer.
        detail: the error's text, or what is wrong with the answer.
    """

    stream: str
    sent: float
    ended: float
    outcome: str
    code: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Addresses:
    """Where the server is: URLs by transport, and the file of its token."""

    http: str
    socket: str
    token_file: Path

    def open(self, transport: str, timeout: float, reconnect: float) -> Client:
        """A client as an app would have it."""
        url = self.http if transport == "http" else self.socket
        return Client(url, token_file=self.token_file, timeout=timeout, reconnect=reconnect)


class App:
    """One stream's requests, from as many threads as it may have requests under way.

    Args:
        questions: asked in turn.
        begin: the monotonic time that counts as 0.

    Attributes:
        samples: the requests that have ended.
        skipped: requests that were due while all its threads still waited for answers.
    """

    def __init__(self, stream: Stream, addresses: Addresses, questions: Sequence[Question], begin: float) -> None:
        self.stream = stream
        self.samples: list[Sample] = []
        self.skipped = 0
        self._questions = questions
        self._begin = begin
        self._client = addresses.open(stream.client, stream.timeout, stream.reconnect)
        self._stopping = threading.Event()
        self._turns = threading.Lock()
        self._next_turn = 0
        self._loads = LoadsAndUnloads()
        count = 1 if stream.ask == LOADS else stream.parallel
        self._under_way: dict[int, float] = {}  # by thread: when its request was sent
        name = f"app {stream.name}"
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(count)]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask nothing new; returns once everything under way has ended, or had all the time that it may take."""
        self._stopping.set()
        ends = time.monotonic() + self.stream.timeouts + SLACK_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        for number in list(self._under_way):
            self._note(number, SILENT, "", "has not ended")
        if not any(thread.is_alive() for thread in self._threads):
            self._client.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            turn, due = self._take_turn()
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            self._under_way[threading.get_ident()] = sent = time.monotonic()
            outcome, code, detail = self._ask(turn)
            waited = time.monotonic() - sent
            if waited > self.stream.timeouts + SLACK_S:
                outcome, detail = SILENT, f"ended after {waited:.1f} s as {outcome} {code}"
            self._note(threading.get_ident(), outcome, code, detail)

    def _note(self, thread: int, outcome: str, code: str, detail: str) -> None:
        """How a thread's request has ended. What was given up counts once, however it ends later."""
        sent = self._under_way.pop(thread, None)
        if sent is not None:
            ended = time.monotonic() - self._begin
            self.samples.append(Sample(self.stream.name, sent - self._begin, ended, outcome, code, detail))

    def _take_turn(self) -> tuple[int, float]:
        """The number and the time of the next request; those whose time has passed long ago are left out."""
        with self._turns:
            passed = int((time.monotonic() - self._begin) * self.stream.rate)
            self.skipped += max(0, passed - self._next_turn)
            turn = max(self._next_turn, passed)
            self._next_turn = turn + 1
        return turn, self._begin + turn / self.stream.rate

    def _ask(self, turn: int) -> tuple[str, str, str]:
        """Outcome, code and detail of one request."""
        question = self._questions[turn % len(self._questions)]
        try:
            if self.stream.ask == LOADS:
                wrong = self._loads.step(self._client, self.stream, question)
            else:
                wrong = question.ask(self._client, self.stream)
        except ServerError as error:
            return (REFUSED if code_named(error.code) else WRONG), error.code, str(error)
        except ServerUnreachableError as error:
            return LOST, type(error).__name__.removesuffix("Error"), str(error)
        except Exception as error:  # what no app expects from the client: the report must show it, not lose a thread
            return WRONG, type(error).__name__, str(error)
        return (WRONG if wrong else RIGHT), "", wrong


class LoadsAndUnloads:
    """An app that loads and unloads a model in turn, and asks it in between whether that still holds.

    What was acknowledged must hold until the next load or unload, whatever happens to the server meanwhile. A change
    that was not acknowledged may have happened or not.
    """

    HELD_FOR: Final = 4
    """Questions between two changes."""

    def __init__(self) -> None:
        self._steps = 0
        self._loaded: bool | None = True  # None: it is not known which

    def step(self, client: Client, stream: Stream, question: Question) -> str:
        """The next request; what is wrong with its answer.

        Raises:
            ServerError, ServerUnreachableError: there was no answer.
        """
        self._steps += 1
        if self._steps % (self.HELD_FOR + 1) == 0:
            return self._change(client, stream.model)
        return self._look(client, stream, question)

    def _change(self, client: Client, model: str) -> str:
        wanted = not self._loaded
        self._loaded = None
        (client.load if wanted else client.unload)(model)
        self._loaded = wanted
        return ""

    def _look(self, client: Client, stream: Stream, question: Question) -> str:
        try:
            wrong = question.ask(client, stream)
        except ServerError as error:
            if error.code == UNLOADED and self._loaded is not True:
                return ""
            if error.code == UNLOADED:
                return "the model was loaded, and is not any more"
            raise
        return "the model was unloaded, and answers again" if self._loaded is False else wrong
