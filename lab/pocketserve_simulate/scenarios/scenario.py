"""A scenario: a TOML file with a phone, its apps, and its events."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pocketserve.messages import did_you_mean
from pocketserve.repository.toml_table import ManifestError, TomlTable, declared_values
from pocketserve_simulate.phone.device import DEVICES
from pocketserve_simulate.phone.events import (
    KINDS,
    MAX_EVENTS,
    EventError,
    PhoneEvent,
    check_event,
)
from pocketserve_wire.errors import code_named

SHIPPED: Final = Path(__file__).parent
"""The folder of the built-in scenarios."""
MAX_FILE_BYTES: Final = 65_536
MAX_SECONDS: Final = 3_600.0
MAX_STREAMS: Final = 16

VANISHING = "vanishing"
NEVER_READS = "never_reads"
DISTURBANCES: Final = (VANISHING, NEVER_READS)
"""Events that other apps cause; all others happen to the phone."""

TENSORS = "tensors"
PICTURES = "pictures"
LOADS = "loads"


class ScenarioError(Exception):
    """An invalid scenario, or one that cannot be run.

    The text names the file, the key and the way out.
    """


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests of one app, with the fields of ``docs/scenarios.md``.

    An empty version is the model's default.
    """

    name: Annotated[str, TomlTable.text]
    model: Annotated[str, TomlTable.text]
    rate: Annotated[float, TomlTable.number, 0.1, 1_000]
    client: Annotated[str, TomlTable.choice, ("socket", "http")] = "socket"
    version: Annotated[str, TomlTable.text] = ""
    ask: Annotated[str, TomlTable.choice, (TENSORS, PICTURES, LOADS)] = TENSORS
    rows: Annotated[int, TomlTable.integer, 1, 256] = 1
    parallel: Annotated[int, TomlTable.integer, 1, 32] = 4
    deadline: Annotated[float, TomlTable.number, 0.01, 60] = 2.0
    timeout: Annotated[float, TomlTable.number, 0.1, 60] = 5.0
    reconnect: Annotated[float, TomlTable.number, 0, 60] = 5.0
    priority: Annotated[int, TomlTable.integer, 0, 2**31 - 1] = 0
    fresh: Annotated[bool, TomlTable.flag] = False
    allow: Annotated[tuple[str, ...], TomlTable.texts] = ()

    @property
    def max_call_s(self) -> float:
        """Seconds of the longest call.

        A connection breaks at the end of one wait; the client reconnects and waits
        again.
        """
        return 2 * self.timeout + self.reconnect


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A checked scenario, with the fields of ``docs/scenarios.md``.

    Its events are in order.
    """

    name: str
    description: Annotated[str, TomlTable.text] = ""
    device: Annotated[str, TomlTable.choice, tuple(DEVICES)] = "mid"
    seconds: Annotated[float, TomlTable.number, 1, MAX_SECONDS]
    recovery: Annotated[float, TomlTable.number, 0.1, 60] = 2.0
    options: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = ()
    events: tuple[PhoneEvent, ...] = ()


def shipped() -> list[str]:
    """Return the names of the built-in scenarios."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_scenario(name: str) -> Scenario:
    """Read a built-in scenario by its name, or another one by its path.

    Raises:
        ScenarioError: it is invalid.
    """
    path = SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError):
        names = f"{', '.join(shipped())}{did_you_mean(name, shipped())}"
        raise ScenarioError(
            f"{name!r} is not a scenario file and none of {names}"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(
            f"{path.name}: a scenario has {MAX_FILE_BYTES} bytes at most"
        )
    return parse_scenario(content, path.name)


def parse_scenario(content: bytes, file_name: str) -> Scenario:
    """Parse and check a scenario.

    Raises:
        ScenarioError: it is invalid; the text names the wrong key and its valid values.
    """
    try:
        values = tomllib.loads(content.decode())
    except (
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        RecursionError,
        ValueError,
    ) as error:
        raise ScenarioError(f"{file_name}: not a TOML file ({error})") from None
    try:
        return _scenario(TomlTable(values, file_name, ""), Path(file_name).stem)
    except ManifestError as error:
        raise ScenarioError(str(error)) from None


def _scenario(table: TomlTable, name: str) -> Scenario:
    """Read a scenario's document."""
    scenario = Scenario(name=name, **_values(Scenario, table, "seconds"))
    server = table.table("server")
    options = server.texts("options")
    load = server.texts("load")
    server.refuse_rest()
    streams = _streams(table)
    latest_end = scenario.seconds - scenario.recovery
    events = []
    for entry in _tables(table, "events", 0, MAX_EVENTS):
        events.append(_event(entry, latest_end))
    events.sort(key=lambda event: event.at)
    _check_disturbances(table, streams, events)
    _check_squatters(table, events)
    table.refuse_rest()
    return replace(
        scenario,
        options=options,
        load=load,
        streams=streams,
        events=tuple(events),
    )


def _streams(table: TomlTable) -> tuple[Stream, ...]:
    """Read the streams, which have different names."""
    streams = []
    for entry in _tables(table, "streams", 1, MAX_STREAMS):
        streams.append(_stream(entry))
    names = [stream.name for stream in streams]
    for name in names:
        if names.count(name) > 1:
            raise table.fault("streams", f"holds two called {name!r}")
    return tuple(streams)


def _check_disturbances(
    table: TomlTable, streams: Sequence[Stream], events: Sequence[PhoneEvent]
) -> None:
    """Raise a fault if a misbehaving client has no stream to take requests from."""
    if any(stream.ask == TENSORS for stream in streams):
        return
    for event in events:
        if event.kind in DISTURBANCES:
            raise table.fault(
                "events",
                f"holds {event.kind!r}, which sends the requests of a stream of "
                "tensors, and there is none",
            )


def _check_squatters(table: TomlTable, events: Sequence[PhoneEvent]) -> None:
    """Raise a fault if two events take the same port at a time."""
    squatters = [event for event in events if event.kind == "squatter"]
    for event, later in pairwise(squatters):
        if later.at < event.at + event.seconds:
            raise table.fault(
                "events",
                "holds two of kind 'squatter' at once, and a port goes to one only",
            )


def _stream(table: TomlTable) -> Stream:
    stream = Stream(**_values(Stream, table, "name", "model", "rate"))
    for code in stream.allow:
        if code_named(code) is None:
            raise table.fault(
                "allow",
                f"holds {code!r}, which is not an error code of the server "
                "(docs/http.md lists them)",
            )
    table.refuse_rest()
    return stream


class _Span(NamedTuple):
    kind: Annotated[str, TomlTable.choice, (*KINDS, *DISTURBANCES)]
    at: Annotated[float, TomlTable.number, 0, MAX_SECONDS]
    seconds: Annotated[float, TomlTable.number, 0, MAX_SECONDS]


def _event(table: TomlTable, latest_end: float) -> PhoneEvent:
    kind, at, seconds = _Span(**_values(_Span, table, *_Span._fields))
    if at + seconds > latest_end:
        raise table.fault(
            "seconds",
            f"must end it by {latest_end:g} s, so that there is time to see the "
            "recovery",
        )
    if kind in DISTURBANCES:
        table.refuse_rest()
        return PhoneEvent(kind, at, seconds)
    event = PhoneEvent(kind, at, seconds, table.rest())
    try:
        check_event(event)
    except EventError as error:
        raise table.fault("kind", f"{kind!r} cannot be: {error}") from None
    return event


def _values(options: type, table: TomlTable, *required: str) -> dict[str, Any]:
    values = declared_values(options, table)
    for key in required:
        if key not in values:
            raise table.fault(key, "is missing")
    return values


def _tables(table: TomlTable, key: str, minimum: int, maximum: int) -> list[TomlTable]:
    entries = table.tables(key)
    if not minimum <= len(entries) <= maximum:
        raise table.fault(
            key,
            f"must be {minimum} to {maximum} tables ([[{key}]]), not {len(entries)}",
        )
    return entries
