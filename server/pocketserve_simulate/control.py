"""Runs a command on a phone while events happen to it: those of a timeline, and those that somebody types in."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from pocketserve.cli.signals import SAME_WISH_S
from pocketserve_simulate.phone.event_text import parse_line
from pocketserve_simulate.phone.events import Event, EventError
from pocketserve_simulate.phone.phone import Phone, PhoneError

LOOK_S = 0.2
MAX_LINE_BYTES = 4096
REVIVING = {"kill": "kill", "squatter": "squatter", "memory_pressure": "memory"}
"""Events whose end starts the command again, and the cause of death that goes with each."""
MEANING = {"memory": ": it held more memory than the phone has", "kill": "", "squatter": ""}
HELP = """\
background | freeze | thermal | battery | memory_pressure | clock_jump | squatter  [SECONDS] [NAME=NUMBER...]
    lets it begin, for so long or until it is ended (docs/simulate.md lists the numbers)
kill [SECONDS]   signal 9; after so long, or with `end kill`, the server is started again
end KIND         ends it now; `thaw` is `end freeze`, `end` ends everything
status           shows what the phone is under
quit             ends the command, as Ctrl-C does"""


class Control:
    """One run of a command on a phone.

    Args:
        timeline: events with their times after the start.
        typed: the descriptor from which lines are read; None reads none.
        say: shows a line to whoever watches.
    """

    def __init__(self, phone: Phone, timeline: Sequence[Event], typed: int | None, say: Callable[[str], None]) -> None:
        self._phone = phone
        self._coming = sorted(timeline, key=lambda event: event.at)
        self._ends: list[tuple[float, Event]] = []
        self._typed = typed
        self._line = b""
        self._say = say
        self._started = 0.0
        self._asked_to_end = False

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command to its end.

        Returns:
            Its exit code, 1 for one that was killed and is not started again.

        Raises:
            PhoneError: it cannot be started.
        """
        self._started = time.monotonic()
        with self._signals():
            self._phone.start(arguments)
            while not self._asked_to_end:
                code = self._phone.wait(0.0)
                if code is not None and not self._may_come_back:
                    return self._ended(code)
                self._read(self._pause())
                self._advance()
            self._phone.close()  # also thaws what is frozen, which could not hear that it is to end
            return self._ended(self._phone.exits[-1].code)

    @property
    def _may_come_back(self) -> bool:
        """Return whether something may yet start a process that was killed."""
        may_end = [event for at, event in self._ends if math.isfinite(at) or self._typed is not None]
        return any(REVIVING.get(event.kind) == self._phone.exits[-1].cause for event in may_end)

    def _ended(self, code: int) -> int:
        if code < 0:
            cause = self._phone.exits[-1].cause
            self._tell(f"the command was ended by signal {-code}" + MEANING.get(cause, ""))
        return code if code >= 0 else 1

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _pause(self) -> float:
        """Seconds until something is due, and no longer than until the process is to be looked at."""
        due = [event.at for event in self._coming[:1]] + [at for at, _ in self._ends]
        return max(0.0, min([LOOK_S, *(at - self._elapsed() for at in due)]))

    def _advance(self) -> None:
        now = self._elapsed()
        for at, event in sorted(self._ends, key=lambda pair: pair[0]):
            if at <= now:
                self._end(event)
        while self._coming and self._coming[0].at <= now:
            self._begin(self._coming.pop(0))

    def _begin(self, event: Event) -> None:
        self._tell(f"{event.kind} begins" + ("" if math.isinf(event.seconds) else f", for {event.seconds:g} s"))
        try:
            self._phone.begin(event)
        except EventError as error:
            self._tell(f"{event.kind} does not happen: {error}")
            return
        self._ends.append((self._elapsed() + event.seconds, event))

    def _end(self, event: Event) -> None:
        self._ends = [pair for pair in self._ends if pair[1] is not event]
        self._phone.end(event)
        self._tell(f"{event.kind} ends")

    def _tell(self, what: str) -> None:
        self._say(f"{self._elapsed():7.1f} s  {what}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the command on the phone and the run with it; a later one does not wait for it."""
        asked = math.inf

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if time.monotonic() - asked >= SAME_WISH_S:
                raise KeyboardInterrupt
            self._asked_to_end, asked = True, min(asked, time.monotonic())

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    # Typed lines

    def _read(self, seconds: float) -> None:
        """Wait so long, and do what was typed in meanwhile."""
        if self._typed is None:
            self._phone.wait(seconds)
            return
        ready, _, _ = select.select([self._typed], [], [], seconds)
        if not ready:
            return
        data = os.read(self._typed, MAX_LINE_BYTES)
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > MAX_LINE_BYTES:
            self._typed = None  # nobody types, or no person does
        for line in lines:
            try:
                self._do(line.decode(errors="replace").strip())
            except (EventError, PhoneError) as error:
                self._say(str(error))

    def _do(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word in ("", "help", "?"):
            self._say(HELP)
        elif word == "quit":
            self._asked_to_end = True
        elif word == "status":
            self._say(self._status())
        elif word == "end" or line in ("thaw", "revive"):
            self._end_kind({"thaw": "freeze", "revive": "kill"}.get(line, rest.strip()))
        else:
            self._begin(parse_line(line))

    def _end_kind(self, kind: str) -> None:
        found = [event for event in self._phone.under_way if kind in ("", event.kind)]
        for event in found:
            self._end(event)
        if not found:
            self._say(f"no {kind or 'event'} is under way")

    def _status(self) -> str:
        phone = self._phone
        memory = phone.memory_bytes()
        state = f"process {phone.pid}" + (f" holds {memory / 1e6:.0f} MB" if memory else "")
        names = ", ".join(event.kind for event in phone.under_way) or "nothing"
        return f"{state if phone.alive else 'no process'}; speed {phone.speed:.0%}; under way: {names}"


def say_to_stderr(line: str) -> None:
    """Show a line beside the command's own output."""
    print(f"phone: {line}" if "\n" not in line else line, file=sys.stderr, flush=True)
