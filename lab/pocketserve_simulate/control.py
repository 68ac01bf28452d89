"""Run a command on a phone, with events."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Sequence

from pocketserve_simulate.phone.events import KINDS, EventError, PhoneEvent, parse_line
from pocketserve_simulate.phone.phone import Phone
from pocketserve_simulate.phone.processes import PhoneError

POLL_S = 0.2
MAX_LINE_BYTES = 4096
HELP = """\
background | freeze | thermal | battery | memory_pressure | clock_jump | squatter
    [SECONDS] [NAME=NUMBER...]
    starts it, for so long or until it is ended (docs/simulate.md lists the numbers)
kill [SECONDS]   signal 9; after so long, or with `end kill`, the server is restarted
end KIND         ends it now; `thaw` is `end freeze`, `end` ends everything
status           shows the state of the phone
quit             ends the command, as Ctrl-C does"""


class Control:
    """A run of a command on a phone.

    Events come from a timeline, and as lines from ``typed``.
    """

    def __init__(
        self,
        phone: Phone,
        timeline: Sequence[PhoneEvent],
        typed: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._phone = phone
        self._processes = phone.processes
        self._timeline = sorted(timeline, key=lambda event: event.at)
        self._ends: dict[PhoneEvent, float] = {}
        self._typed = typed
        self._line = b""
        self._say = say
        self._started = 0.0

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command to its end; return its exit code.

        The code is 1 for a process that was killed and is not restarted.
        """
        self._started = time.monotonic()
        try:
            self._processes.start(arguments)
            while self._processes.wait(0.0) is None or self._may_come_back():
                self._read()
                self._advance()
        # Ctrl-C, SIGTERM, or `quit`; a second one does not wait for the command.
        except KeyboardInterrupt:
            # This also thaws a frozen process, which could not handle the signal.
            self._phone.close()
            if not self._processes.exits:
                raise
        ended = self._processes.exits[-1]
        if ended.code >= 0:
            return ended.code
        reason = ""
        if ended.cause == "memory":
            reason = ": it held more memory than the phone has"
        self._tell(f"the command was ended by signal {-ended.code}{reason}")
        return 1

    def _may_come_back(self) -> bool:
        """Return whether the end of an event may restart a killed process."""
        cause = self._processes.exits[-1].cause
        if not cause:
            return False
        for event, end in self._ends.items():
            can_end = math.isfinite(end) or self._typed is not None
            if can_end and KINDS[event.kind].death == cause:
                return True
        return False

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _advance(self) -> None:
        now = self._elapsed()
        for event, at in sorted(self._ends.items(), key=lambda item: item[1]):
            if at <= now:
                self._end(event)
        while self._timeline and self._timeline[0].at <= now:
            self._begin(self._timeline.pop(0))

    def _begin(self, event: PhoneEvent) -> None:
        duration = ""
        if not math.isinf(event.seconds):
            duration = f", for {event.seconds:g} s"
        self._tell(f"{event.kind} begins{duration}")
        try:
            self._phone.begin(event)
        except EventError as error:
            self._tell(f"{event.kind} failed: {error}")
        else:
            self._ends[event] = self._elapsed() + event.seconds

    def _end(self, event: PhoneEvent) -> None:
        del self._ends[event]
        self._phone.end(event)
        self._tell(f"{event.kind} ends")

    def _tell(self, text: str) -> None:
        self._say(f"{self._elapsed():7.1f} s  {text}")

    def _read(self) -> None:
        """Wait for the next event or input line, and execute input lines."""
        seconds = self._seconds_to_wait()
        if self._typed is None:
            self._processes.wait(seconds)
            return
        ready, _, _ = select.select([self._typed], [], [], seconds)
        if not ready:
            return
        for line in self._read_lines(self._typed):
            try:
                self._do(line)
            except (EventError, PhoneError) as error:
                self._say(str(error))

    def _read_lines(self, typed: int) -> list[str]:
        """Return the complete lines of the available input."""
        data = os.read(typed, MAX_LINE_BYTES)
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > MAX_LINE_BYTES:
            # The end of the input, or no person types.
            self._typed = None
        return [line.decode(errors="replace").strip() for line in lines]

    def _seconds_to_wait(self) -> float:
        """Return the time until the next event or poll."""
        moments = list(self._ends.values())
        if self._timeline:
            moments.append(self._timeline[0].at)
        elapsed = self._elapsed()
        seconds = min([POLL_S, *(moment - elapsed for moment in moments)])
        return max(0.0, seconds)

    def _do(self, line: str) -> None:
        word, _, argument = line.partition(" ")
        if word in ("", "help", "?"):
            self._say(HELP)
        elif word == "quit":
            raise KeyboardInterrupt
        elif word == "status":
            self._say(self._status())
        elif line == "thaw":
            self._end_all("freeze")
        elif line == "revive":
            self._end_all("kill")
        elif word == "end":
            self._end_all(argument.strip())
        else:
            self._begin(parse_line(line))

    def _end_all(self, kind: str) -> None:
        """End the events of a kind.

        Of all kinds for an empty one.
        """
        events = [
            event for event in self._phone.under_way() if kind in ("", event.kind)
        ]
        for event in events:
            self._end(event)
        if not events:
            self._say(f"no {kind or 'event'} is under way")

    def _status(self) -> str:
        pid = self._processes.pid
        memory = self._phone.memory_bytes()
        state = "no process"
        if pid:
            state = f"process {pid}"
        if pid and memory:
            state += f" holds {memory / 1e6:.0f} MB"
        names = ", ".join(event.kind for event in self._phone.under_way()) or "nothing"
        return f"{state}; speed {self._phone.speed:.0%}; under way: {names}"
