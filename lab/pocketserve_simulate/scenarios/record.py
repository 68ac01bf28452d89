"""The record of a simulation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

from pocketserve_simulate.phone.processes import ProcessExit

RIGHT = "right"
"""The outcome of a request with the expected answer."""

WRONG = "wrong"
"""Another answer, or an error that is not one of the server's."""

REFUSED = "refused"
"""The server rejected the request with one of its codes."""

LOST = "lost"
"""The client reported that no answer arrived."""

SILENT = "silent"
"""The call took longer than the client's timeouts allow, which must never happen."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request of a stream.

    Times are seconds since the start of the simulation.

    Attributes:
        code: stable code of an error; empty for an answer.
        detail: text of an error, or the error in a wrong answer.
    """

    stream: str
    sent: float
    ended: float
    outcome: str
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event with its real times, in seconds since the start of the simulation."""

    kind: str
    begun: float
    ended: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def meets(self, sample: Sample, aftermath: float = 0.0) -> bool:
        """Return whether a request was in flight during the event or its aftermath.

        Args:
            aftermath: seconds after the event.
        """
        return self.begun <= sample.ended and sample.sent <= self.ended + aftermath


@dataclass(frozen=True, slots=True)
class Life:
    """A process of the server: its id, and the second of its start."""

    pid: int
    since: float


@dataclass(frozen=True)
class Record:
    """A simulation; all times are seconds since its start.

    Attributes:
        streams: the scenario's tables, by name.
        memory: second, and resident bytes of the server, None without a server.
        skipped: by stream, requests that were due while all its threads were waiting.
        successes: by model, counted by the last server; None if unknown.
        strangers: requests that misbehaving clients have sent.
    """

    scenario: str
    description: str
    device: str
    seconds: float
    recovery: float
    streams: Mapping[str, Mapping[str, Any]]
    events: list[PastEvent]
    samples: list[Sample]
    memory: list[tuple[float, int | None]]
    lives: list[Life]
    exits: list[ProcessExit]
    skipped: Mapping[str, int]
    successes: Mapping[str, int] | None
    strangers: int
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return everything, with the samples as columns."""
        columns = {}
        for name in Sample.__dataclass_fields__:
            columns[name] = list(map(attrgetter(name), self.samples))
        return {**asdict(self), "samples": columns}

    def is_allowed(self, sample: Sample) -> bool:
        """Return whether the scenario allows the error of a request at any time."""
        return sample.code in self.streams[sample.stream]["allow"]
