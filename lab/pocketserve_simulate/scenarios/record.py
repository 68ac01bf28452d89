"""The record of a simulation, as plain data: to be judged, printed, drawn and kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pocketserve_simulate.phone.processes import ProcessExit

RIGHT, WRONG, REFUSED, LOST, SILENT = "right", "wrong", "refused", "lost", "silent"
"""How a request can end.

RIGHT: answered, and the answer is the one that this very request has. WRONG: answered with anything else, or with an
error that is none of the server's own. REFUSED: the server said no, with one of its codes. LOST: the client said that
nobody answered. SILENT: the call ended later than the app's patience, which must never happen.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request of a stream; times are seconds since the beginning of the simulation.

    An answer has no code, and in ``detail`` what is wrong with it; an error has its stable code and its text.
    """

    stream: str
    sent: float
    ended: float
    outcome: str
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event as it really was: seconds since the beginning of the simulation."""

    kind: str
    begun: float
    ended: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def meets(self, sample: Sample, aftermath: float = 0.0) -> bool:
        """Return whether the request was under way during the event, or within so many seconds behind it."""
        return self.begun <= sample.ended and sample.sent <= self.ended + aftermath


@dataclass(frozen=True, slots=True)
class Life:
    """A process of the server: its id, and the second of its start."""

    pid: int
    since: float


@dataclass(frozen=True)
class Record:
    """A simulation; all times are seconds since its beginning."""

    scenario: str
    description: str
    device: str
    seconds: float
    recovery: float
    streams: Mapping[str, Mapping[str, Any]]  # by name, what the scenario says of them
    events: list[PastEvent]
    samples: list[Sample]
    memory: list[
        tuple[float, int | None]
    ]  # second and resident bytes of the server, None while there is no server
    lives: list[Life]
    exits: list[ProcessExit]
    skipped: Mapping[
        str, int
    ]  # by stream, requests that were due while all its threads were waiting
    successes: (
        Mapping[str, int] | None
    )  # by model, what the last server has counted; None: not known
    strangers: int  # requests that misbehaving clients have sent
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return everything, with the samples as columns."""
        columns = {
            name: [getattr(s, name) for s in self.samples]
            for name in Sample.__dataclass_fields__
        }
        return {**asdict(self), "samples": columns}

    def is_allowed(self, sample: Sample) -> bool:
        """Return whether the scenario allows the error of a request at any time."""
        return sample.code in self.streams[sample.stream]["allow"]
