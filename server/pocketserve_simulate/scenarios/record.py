"""What was seen in a simulation, as plain data: to be judged, printed, drawn and kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pocketserve_simulate.scenarios.traffic import Sample


@dataclass(frozen=True, slots=True)
class Happened:
    """An event as it really was: seconds since the beginning of the simulation."""

    kind: str
    begun: float
    ended: float
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Life:
    """One process of the server: its id, and the second from which on it is known."""

    pid: int
    since: float


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process of the server: when, its exit code, and which event asked for it; "" means that none did."""

    at: float
    code: int
    cause: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of the server at a second; None while there is no server."""

    at: float
    bytes: int | None


@dataclass(frozen=True)
class Record:
    """One simulation.

    Attributes:
        timeouts: seconds within which each app must have right answers again after an event.
        streams: by name, what the scenario says of them.
        skipped: by stream, requests that were due while all its threads were waiting.
        successes: by model, what the last server says it has answered; None where it could not be asked.
        strangers: requests that misbehaving clients have sent.
        machine: what it was run on.
    """

    scenario: str
    description: str
    device: str
    seconds: float
    recovery: float
    streams: Mapping[str, Mapping[str, Any]]
    events: list[Happened]
    samples: list[Sample]
    memory: list[Memory]
    lives: list[Life]
    exits: list[Exit]
    skipped: Mapping[str, int]
    successes: Mapping[str, int] | None
    strangers: int
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Everything, with the samples as columns."""
        content = asdict(self)
        content["samples"] = {
            name: [getattr(sample, name) for sample in self.samples] for name in Sample.__dataclass_fields__
        }
        content["memory"] = [[memory.at, memory.bytes] for memory in self.memory]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        """Return what :meth:`to_json` gave."""
        columns = [content["samples"][name] for name in Sample.__dataclass_fields__]
        fields = {name: content[name] for name in cls.__dataclass_fields__}
        fields["samples"] = [Sample(*row) for row in zip(*columns, strict=True)]
        fields["memory"] = [Memory(*pair) for pair in content["memory"]]
        for name, kind in {"events": Happened, "lives": Life, "exits": Exit}.items():
            fields[name] = [kind(**item) for item in content[name]]
        return cls(**fields)
