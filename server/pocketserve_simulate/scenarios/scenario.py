"""A scenario: one TOML file that says which phone, which apps ask it for what, and what happens to it when."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pocketserve.messages import did_you_mean
from pocketserve.repository.toml_table import ManifestError, TomlTable
from pocketserve_simulate.phone.device import DEVICES
from pocketserve_simulate.phone.events import KINDS, EventError, PhoneEvent, check_event
from pocketserve_wire.errors import code_named

SHIPPED: Final = Path(__file__).parent
"""The folder of the scenarios that come with the program."""

MAX_FILE_BYTES: Final = 65_536
MAX_SECONDS: Final = 3_600.0
MAX_STREAMS: Final = 16
MAX_EVENTS: Final = 64

VANISHING, NEVER_READS = "vanishing", "never_reads"
DISTURBANCES: Final = (VANISHING, NEVER_READS)
"""What other apps do to the server, as events; all other events happen to the phone."""

TENSORS, PICTURES, LOADS = "tensors", "pictures", "loads"

T = TypeVar("T")


class ScenarioError(Exception):
    """A scenario that cannot be run; the text names the file, the key and the fix."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests of one app, with the fields of ``docs/scenarios.md``; an empty version is the model's default."""

    name: str
    client: str
    model: str
    version: str
    ask: str
    rate: float
    rows: int
    parallel: int
    deadline: float
    timeout: float
    reconnect: float
    priority: int
    fresh: bool
    allow: tuple[str, ...]

    @property
    def max_call_s(self) -> float:
        """Seconds of the longest call: a connection that breaks at the end of one wait, a search, and another wait."""
        return 2 * self.timeout + self.reconnect


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that was read and checked, with the fields of ``docs/scenarios.md``; events in order of time."""

    name: str
    description: str
    device: str
    seconds: float
    recovery: float
    options: tuple[str, ...]
    load: tuple[str, ...]
    streams: tuple[Stream, ...]
    events: tuple[PhoneEvent, ...]


def shipped() -> list[str]:
    """Return the names of the scenarios that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_scenario(name: str) -> Scenario:
    """Read a shipped scenario by its name, or any other by its path.

    Raises:
        ScenarioError: there is none, or it cannot be run.
    """
    path = SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError):
        names = f"{', '.join(shipped())}{did_you_mean(name, shipped())}"
        raise ScenarioError(f"{name!r} is no scenario file and none of {names}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(f"{path.name}: a scenario has {MAX_FILE_BYTES} bytes at most")
    return parse_scenario(content, path.name)


def parse_scenario(content: bytes, file_name: str) -> Scenario:
    """Parse and check a scenario.

    Raises:
        ScenarioError: it cannot be run; the text names the key and what it must be.
    """
    try:
        values = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ScenarioError(f"{file_name}: not a TOML file ({error})") from None
    try:
        return _scenario(TomlTable(values, file_name, ""), Path(file_name).stem)
    except ManifestError as error:
        raise ScenarioError(str(error)) from None


def _scenario(table: TomlTable, name: str) -> Scenario:
    description = table.text("description")
    device = table.choice("device", tuple(DEVICES)) or "mid"
    seconds = _required(table, "seconds", table.number("seconds", 1, MAX_SECONDS))
    recovery = table.number("recovery", 0.1, 60) or 2.0
    server = table.table("server")
    options, load = server.texts("options"), server.texts("load")
    server.refuse_rest()
    streams = tuple(map(_stream, _tables(table, "streams", 1, MAX_STREAMS)))
    names = [stream.name for stream in streams]
    if twins := [name for name in names if names.count(name) > 1]:
        raise table.fault("streams", f"holds two called {twins[0]!r}")
    events = [_event(entry, seconds - recovery) for entry in _tables(table, "events", 0, MAX_EVENTS)]
    events.sort(key=lambda event: event.at)
    disturbances = [event.kind for event in events if event.kind in DISTURBANCES]
    if disturbances and all(stream.ask != TENSORS for stream in streams):
        raise table.fault(
            "events", f"holds {disturbances[0]!r}, which asks what a stream of tensors asks, and there is none"
        )
    free_at = 0.0
    for event in events:
        if event.kind == "squatter" and event.at < free_at:
            raise table.fault("events", "holds two of kind 'squatter' at once, and a port goes to one only")
        free_at = event.at + event.seconds if event.kind == "squatter" else free_at
    table.refuse_rest()
    return Scenario(name, description, device, seconds, recovery, options, load, streams, tuple(events))


def _stream(table: TomlTable) -> Stream:
    reconnect = table.number("reconnect", 0, 60)
    stream = Stream(
        name=_required(table, "name", table.text("name") or None),
        client=table.choice("client", ("socket", "http")) or "socket",
        model=_required(table, "model", table.text("model") or None),
        version=table.text("version"),
        ask=table.choice("ask", (TENSORS, PICTURES, LOADS)) or TENSORS,
        rate=_required(table, "rate", table.number("rate", 0.1, 1_000)),
        rows=table.integer("rows", 1, 256) or 1,
        parallel=table.integer("parallel", 1, 32) or 4,
        deadline=table.number("deadline", 0.01, 60) or 2.0,
        timeout=table.number("timeout", 0.1, 60) or 5.0,
        reconnect=5.0 if reconnect is None else reconnect,
        priority=table.integer("priority", 0, 2**31 - 1) or 0,
        fresh=table.flag("fresh") or False,
        allow=table.texts("allow"),
    )
    for code in stream.allow:
        if code_named(code) is None:
            raise table.fault(
                "allow", f"holds {code!r}, which is no error code of the server (docs/http.md lists them)"
            )
    table.refuse_rest()
    return stream


def _event(table: TomlTable, latest_end: float) -> PhoneEvent:
    kind = _required(table, "kind", table.choice("kind", (*KINDS, *DISTURBANCES)))
    at = _required(table, "at", table.number("at", 0, MAX_SECONDS))
    seconds = _required(table, "seconds", table.number("seconds", 0, MAX_SECONDS))
    if at + seconds > latest_end:
        raise table.fault("seconds", f"must end it by {latest_end:g} s, so that there is time to see the recovery")
    if kind in DISTURBANCES:
        table.refuse_rest()
        return PhoneEvent(kind, at, seconds)
    event = PhoneEvent(kind, at, seconds, table.rest())
    try:
        check_event(event)
    except EventError as error:
        raise table.fault("kind", f"{kind!r} cannot be: {error}") from None
    return event


def _required(table: TomlTable, key: str, value: T | None) -> T:
    if value is None:
        raise table.fault(key, "is missing")
    return value


def _tables(table: TomlTable, key: str, minimum: int, maximum: int) -> list[TomlTable]:
    entries = table.tables(key)
    if not minimum <= len(entries) <= maximum:
        raise table.fault(key, f"must be {minimum} to {maximum} tables ([[{key}]]), not {len(entries)}")
    return entries
