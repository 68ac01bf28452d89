"""Events of a phone: their kinds, options and conditions, and their notation."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pocketserve.messages import did_you_mean
from pocketserve_simulate.phone.device import PhoneModel

Options = Mapping[str, Any]
Number = TypeVar("Number", int, float)
CORES_ABOVE_BATTERY_C = 35.0
"""Difference between a busy chip and the battery: a round number."""

MAX_EVENTS = 64
MAX_SECONDS = 86_400.0
KILL_SECONDS = 1.0
USUAL_SECONDS = 5.0


class EventError(ValueError):
    """An invalid event.

    The text is one sentence with the valid values.
    """


@dataclass(frozen=True, slots=True, eq=False)
class PhoneEvent:
    """An event of a kind in :data:`KINDS`.

    Attributes:
        at: seconds after the start.
        seconds: its duration.
    """

    kind: str
    at: float = 0.0
    seconds: float = 0.0
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of the phone; the defaults change nothing.

    Attributes:
        background: whether only slow cores may be used.
        speed: share of the processor that is left.
        battery: fields of ``termux-battery-status`` that change.
        api_answers: whether the programs of Termux:API answer at all.
        heat: degrees Celsius of the processor.
        clock: seconds by which the wall clock is wrong.
    """

    frozen: bool = False
    background: bool = False
    speed: float = 1.0
    memory_mb: int | None = None
    battery: Mapping[str, object] = field(default_factory=dict)
    api_answers: bool = True
    heat: float | None = None
    clock: float = 0.0


def combine(conditions: Iterable[Condition]) -> Condition:
    """Combine conditions: least memory, highest heat, newest battery."""
    combined = Condition()
    for each in conditions:
        combined = Condition(
            frozen=combined.frozen or each.frozen,
            background=combined.background or each.background,
            speed=combined.speed * each.speed,
            memory_mb=_limit(min, combined.memory_mb, each.memory_mb),
            battery={**combined.battery, **each.battery},
            api_answers=combined.api_answers and each.api_answers,
            heat=_limit(max, combined.heat, each.heat),
            clock=combined.clock + each.clock,
        )
    return combined


def _limit(
    function: Callable[[Number, Number], Number],
    first: Number | None,
    second: Number | None,
) -> Number | None:
    """Apply ``min`` or ``max`` to two numbers that may be missing."""
    if first is None:
        return second
    if second is None:
        return first
    return function(first, second)


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event.

    Attributes:
        condition: makes the phone's condition during the event.
        ranges: default, lowest and highest value of each option; a tuple as default
            takes a list of whole numbers.
        death: cause of a process's end that the event may bring; the end of such an
            event restarts the command.
    """

    condition: Callable[[Options, PhoneModel], Condition]
    ranges: Mapping[str, tuple[Any, float, float]] = field(default_factory=dict)
    death: str = ""


def _heat(options: Options, _model: PhoneModel) -> Condition:
    battery = {"temperature": options["degrees"], "health": "OVERHEAT"}
    return Condition(
        speed=options["speed"],
        heat=options["degrees"] + CORES_ABOVE_BATTERY_C,
        battery=battery,
    )


def _battery(options: Options, _model: PhoneModel) -> Condition:
    percent = round(options["percent"])
    battery: dict[str, object] = {"percentage": percent, "level": percent}
    if options["plugged"]:
        battery |= {"plugged": "PLUGGED_AC", "status": "CHARGING"}
    return Condition(battery=battery, api_answers=bool(options["answers"]))


def _memory(options: Options, model: PhoneModel) -> Condition:
    return Condition(memory_mb=max(1, round(options["mb"] or model.memory_mb / 4)))


KINDS: Mapping[str, EventKind] = {
    "background": EventKind(lambda _options, _model: Condition(background=True)),
    "freeze": EventKind(lambda _options, _model: Condition(frozen=True)),
    "thermal": EventKind(
        _heat, {"speed": (0.5, 0.05, 1.0), "degrees": (45.0, 0.0, 100.0)}
    ),
    "battery": EventKind(
        _battery, {"percent": (8, 0, 100), "plugged": (0, 0, 1), "answers": (1, 0, 1)}
    ),
    # Android's low memory killer; the reclaiming of pages before that is omitted.
    "memory_pressure": EventKind(_memory, {"mb": (0, 0, 1_000_000)}, "memory"),
    "kill": EventKind(lambda _options, _model: Condition(), death="kill"),
    "clock_jump": EventKind(
        lambda options, _model: Condition(clock=options["by"]),
        {"by": (86_400.0, -1e9, 1e9)},
    ),
    "squatter": EventKind(
        lambda _options, _model: Condition(), {"ports": ((), 1, 65535)}, "squatter"
    ),
}


def check_event(event: PhoneEvent) -> dict[str, Any]:
    """Return all options of an event, with their defaults.

    Raises:
        EventError: its kind is unknown, or an option is wrong.
    """
    if event.kind not in KINDS:
        hint = did_you_mean(event.kind, KINDS)
        raise EventError(
            f"there is no event {event.kind!r}; there are {', '.join(KINDS)}{hint}"
        )
    ranges = KINDS[event.kind].ranges
    _check_names(event, ranges)
    options = {}
    for name, (default, low, high) in ranges.items():
        value = event.options.get(name, default)
        if isinstance(default, tuple):
            _check_ports(name, value, low, high)
        else:
            _check_number(name, value, low, high)
        options[name] = value
    return options


def _check_names(event: PhoneEvent, allowed: Collection[str]) -> None:
    """Raise if an event has an unknown option."""
    for name in event.options:
        if name in allowed:
            continue
        listed = ", ".join(allowed) or "none"
        hint = did_you_mean(name, allowed)
        raise EventError(f"the event has no option {name!r}; it has {listed}{hint}")


def _check_ports(name: str, value: Any, low: float, high: float) -> None:
    """Raise unless a value is a list of ports."""
    ports: Iterable[Any] = [None]
    if isinstance(value, list | tuple):
        ports = value
    for port in ports:
        if not isinstance(port, int) or not low <= port <= high:
            raise EventError(f"{name} must be a list of port numbers, not {value!r}")


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise EventError(
            f"{name} must be a number between {low:g} and {high:g}, not {value!r}"
        )


def parse_events(text: str) -> list[PhoneEvent]:
    """Parse a timeline; return the events by their start.

    Such as ``freeze@3+2, battery@5+10:percent=8, kill@8``.
    """
    words = []
    for word in text.split(","):
        if word.strip():
            words.append(word.strip())
    if len(words) > MAX_EVENTS:
        raise EventError(f"there are {len(words)} events, of {MAX_EVENTS} at most")
    return sorted(map(_parse_word, words), key=lambda event: event.at)


def parse_line(line: str) -> PhoneEvent:
    """Parse an event such as ``battery 10 percent=8``.

    Without seconds, such as ``freeze``, it lasts until it is ended.
    """
    kind, *words = line.split()
    seconds = math.inf
    if words and "=" not in words[0]:
        seconds = _number(words.pop(0), "seconds")
    return _event(kind, 0.0, seconds, words)


def _parse_word(word: str) -> PhoneEvent:
    head, *options = word.split(":")
    kind, _, times = head.partition("@")
    start, plus, length = times.partition("+")
    if not start:
        raise EventError(f"an event looks like freeze@3+2 or kill@8, not {word!r}")
    seconds = USUAL_SECONDS
    if kind == "kill":
        seconds = KILL_SECONDS
    if plus:
        seconds = _number(length, "seconds")
    return _event(kind.strip(), _number(start, "the start"), seconds, options)


def _event(kind: str, at: float, seconds: float, words: Iterable[str]) -> PhoneEvent:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise EventError(f"an option looks like percent=8, not {word!r}")
        options[name.strip()] = _number(value, name, -1e9, 1e9)
    event = PhoneEvent(kind, at, seconds, options)
    check_event(event)
    return event


def _number(text: str, name: str, low: float = 0.0, high: float = MAX_SECONDS) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise EventError(
            f"{name} must be a number between {low:g} and {high:g}, not {text!r}"
        )
    return number
