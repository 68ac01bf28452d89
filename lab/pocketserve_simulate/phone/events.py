"""Events of a phone: their kinds and numbers, the conditions that they bring, and how people write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pocketserve.messages import did_you_mean
from pocketserve_simulate.phone.device import PhoneModel

Options = Mapping[str, Any]
CORES_ABOVE_BATTERY_C = (
    35.0  # a round number: a busy chip is that much hotter than the battery beside it
)
MAX_EVENTS = 64
MAX_SECONDS = 86_400.0
KILL_SECONDS, USUAL_SECONDS = 1.0, 5.0


class EventError(ValueError):
    """An event that cannot be; the text is one sentence that says what is expected."""


@dataclass(frozen=True, slots=True, eq=False)
class PhoneEvent:
    """An event of a kind in :data:`KINDS`, so many seconds after the start and for so many seconds."""

    kind: str
    at: float = 0.0
    seconds: float = 0.0
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of the phone; the defaults change nothing."""

    frozen: bool = False
    background: bool = False  # only slow cores may be used
    speed: float = 1.0  # share of the processor that is left
    memory_mb: int | None = None
    battery: Mapping[str, object] = field(
        default_factory=dict
    )  # fields of ``termux-battery-status`` that change
    api_answers: bool = True  # whether the programs of Termux:API answer at all
    heat: float | None = None  # degrees Celsius of the processor
    clock: float = 0.0  # seconds by which the wall clock is wrong


def combine(conditions: Iterable[Condition]) -> Condition:
    """Return all conditions as one: the slowest, the least memory, the highest heat, the newest battery."""
    listed = list(conditions)
    return Condition(
        frozen=any(c.frozen for c in listed),
        background=any(c.background for c in listed),
        speed=math.prod(c.speed for c in listed),
        memory_mb=min(
            (c.memory_mb for c in listed if c.memory_mb is not None), default=None
        ),
        battery={name: value for c in listed for name, value in c.battery.items()},
        api_answers=all(c.api_answers for c in listed),
        heat=max((c.heat for c in listed if c.heat is not None), default=None),
        clock=sum(c.clock for c in listed),
    )


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event."""

    condition: Callable[
        [Options, PhoneModel], Condition
    ]  # makes what the phone is under while the event lasts
    # Default, lowest and highest value of each option; a tuple as default takes a list of whole numbers.
    ranges: Mapping[str, tuple[Any, float, float]] = field(default_factory=dict)
    death: str = ""  # cause of a process's end that the event may bring; such an event's end starts the command again


def _heat(options: Options, _model: PhoneModel) -> Condition:
    battery = {"temperature": options["degrees"], "health": "OVERHEAT"}
    return Condition(
        speed=options["speed"],
        heat=options["degrees"] + CORES_ABOVE_BATTERY_C,
        battery=battery,
    )


def _battery(options: Options, _model: PhoneModel) -> Condition:
    charging = (
        {"plugged": "PLUGGED_AC", "status": "CHARGING"} if options["plugged"] else {}
    )
    percent = round(options["percent"])
    return Condition(
        battery={"percentage": percent, "level": percent, **charging},
        api_answers=bool(options["answers"]),
    )


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
    # Android's low memory killer; the kernel's taking of pages before that is left out.
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
    """Return all options of an event, with their defaults; EventError if it has no known kind or a wrong option."""
    if event.kind not in KINDS:
        raise EventError(
            f"there is no event {event.kind!r}; there are {', '.join(KINDS)}{did_you_mean(event.kind, KINDS)}"
        )
    ranges = KINDS[event.kind].ranges
    for name in event.options:
        if name not in ranges:
            listed = ", ".join(ranges) or "none"
            raise EventError(
                f"the event has no option {name!r}; it has {listed}{did_you_mean(name, ranges)}"
            )
    options = {
        name: event.options.get(name, default)
        for name, (default, _, _) in ranges.items()
    }
    for name, (default, low, high) in ranges.items():
        value = options[name]
        if isinstance(default, tuple):
            if not isinstance(value, list | tuple) or not all(
                isinstance(n, int) and low <= n <= high for n in value
            ):
                raise EventError(
                    f"{name} must be a list of port numbers, not {value!r}"
                )
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise EventError(
                f"{name} must be a number between {low:g} and {high:g}, not {value!r}"
            )
    return options


def parse_events(text: str) -> list[PhoneEvent]:
    """Parse a timeline such as ``freeze@3+2, battery@5+10:percent=8, kill@8``; returns the events by their start."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MAX_EVENTS:
        raise EventError(f"there are {len(words)} events, of {MAX_EVENTS} at most")
    return sorted(map(_parse_word, words), key=lambda event: event.at)


def parse_line(line: str) -> PhoneEvent:
    """Parse an event such as ``freeze``, which lasts until it is ended, or ``battery 10 percent=8``."""
    kind, *words = line.split()
    seconds = (
        _number(words.pop(0), "seconds") if words and "=" not in words[0] else math.inf
    )
    return _event(kind, 0.0, seconds, words)


def _parse_word(word: str) -> PhoneEvent:
    head, *options = word.split(":")
    kind, _, times = head.partition("@")
    start, plus, length = times.partition("+")
    if not start:
        raise EventError(f"an event looks like freeze@3+2 or kill@8, not {word!r}")
    usual = KILL_SECONDS if kind == "kill" else USUAL_SECONDS
    seconds = _number(length, "seconds") if plus else usual
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
