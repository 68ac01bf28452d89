"""Events as people write them: ``freeze@3+2,kill@8`` on the command line, ``freeze 2`` while it runs."""

from __future__ import annotations

import math

from pocketserve_simulate.phone.events import Event, EventError, Options, open_event

MAX_EVENTS = 64
LONGEST_S = 86_400.0
DEFAULT_S = {"kill": 1.0}
USUAL_S = 5.0


def parse_events(text: str) -> list[Event]:
    """A timeline such as ``freeze@3+2, battery@5+10:percent=8, kill@8``.

    Each event is ``KIND@START``, then ``+SECONDS`` unless it lasts 5 s (a killed server stays dead for 1 s), then
    ``:NAME=NUMBER`` for each option.

    Returns:
        The events by their start.

    Raises:
        EventError: the text is something else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MAX_EVENTS:
        raise EventError(f"there are {len(words)} events, of {MAX_EVENTS} at most")
    return sorted((_parse(word) for word in words), key=lambda event: event.at)


def parse_line(line: str) -> Event:
    """An event typed in: ``freeze``, ``freeze 2`` or ``battery 10 percent=8``; without seconds it lasts until ended.

    Raises:
        EventError: it is none.
    """
    kind, *words = line.split()
    seconds = _number(words.pop(0), "seconds") if words and "=" not in words[0] else math.inf
    return _checked(Event(kind, 0.0, seconds, _options(words)))


def _parse(word: str) -> Event:
    head, *options = word.split(":")
    kind, at, times = head.partition("@")
    start, plus, length = times.partition("+")
    if not at or not start:
        raise EventError(f"an event looks like freeze@3+2 or kill@8, not {word!r}")
    seconds = _number(length, "seconds") if plus else DEFAULT_S.get(kind, USUAL_S)
    return _checked(Event(kind.strip(), _number(start, "the start"), seconds, _options(options)))


def _options(words: list[str]) -> Options:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise EventError(f"an option looks like percent=8, not {word!r}")
        options[name.strip()] = _number(value, name, -1e9, 1e9)
    return options


def _number(text: str, name: str, low: float = 0.0, high: float = LONGEST_S) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise EventError(f"{name} must be a number between {low:g} and {high:g}, not {text!r}")
    return number


def _checked(event: Event) -> Event:
    open_event(event)  # says what is wrong with it
    return event
