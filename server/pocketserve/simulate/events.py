"""What Android, other apps and the surroundings do to a server: one small class per kind of event.

An event begins and ends. What lasts (a freeze, heat) is a :class:`~pocketserve.simulate.conditions.Condition` that the
phone is under in between; several may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from pocketserve.simulate.conditions import Condition

if TYPE_CHECKING:
    from pocketserve.simulate.phone import Phone


class EventError(ValueError):
    """An event that cannot be; the text is one sentence that says what is expected."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the phone.

    Attributes:
        kind: a key of :data:`KINDS`.
        at: seconds after the start.
        seconds: how long it lasts.
        options: the kind's own, see there.
    """

    kind: str
    at: float = 0.0
    seconds: float = 0.0
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Happening(Protocol):
    """One event under way."""

    def begin(self, phone: Phone) -> None:
        """Do it."""

    def end(self, phone: Phone) -> None:
        """Undo what does not go away by itself."""


class _Lasting:
    """An event that is nothing but a condition."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition

    def begin(self, phone: Phone) -> None:
        phone.impose(self._condition)

    def end(self, phone: Phone) -> None:
        phone.lift(self._condition)


class Freeze(_Lasting):
    """Android's freezer: no thread runs, the kernel goes on to take connections and bytes. Its end is the thaw."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        _take(options)
        super().__init__(Condition(frozen=True))


class Kill:
    """Signal 9, which no program can catch. At its end the supervisor starts the server again."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        _take(options)

    def begin(self, phone: Phone) -> None:
        phone.kill("kill")

    def end(self, phone: Phone) -> None:
        phone.revive()


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Happening]] = MappingProxyType({"freeze": Freeze, "kill": Kill})


def open_event(event: Event) -> Happening:
    """What an event does.

    Raises:
        EventError: there is no such kind, or an option is wrong.
    """
    if event.kind not in KINDS:
        raise EventError(f"there is no event {event.kind!r}; there are {', '.join(KINDS)}")
    return KINDS[event.kind](event.options)


def _take(options: Mapping[str, Any], **known: tuple[Any, float, float]) -> dict[str, Any]:
    """The options of an event, checked.

    Args:
        known: name -> default, lowest and highest value of a number.

    Raises:
        EventError: there is no such option, or its value is out of range.
    """
    for name in options:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise EventError(f"the event has no option {name!r}; it has {listed}")
    taken = {}
    for name, (default, low, high) in known.items():
        value = options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise EventError(f"{name} must be a number between {low:g} and {high:g}, not {value!r}")
        taken[name] = value
    return taken
