"""What Android, other apps and the surroundings do to a server: one small class per kind of event.

An event begins and ends. What lasts (a freeze, heat) is a :class:`~pocketserve_simulate.phone.conditions.Condition`
that the phone is under in between; several may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from pocketserve.messages import did_you_mean
from pocketserve_simulate.phone.conditions import Condition
from pocketserve_simulate.phone.device import PhoneModel
from pocketserve_simulate.phone.port_hijacker import PortHijacker

Options = Mapping[str, Any]
CORES_ABOVE_BATTERY_C = 35.0
"""A round number: a busy chip is that much hotter than the battery beside it."""


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
    options: Options = field(default_factory=lambda: MappingProxyType({}))


class PhoneUnderEvents(Protocol):
    """All that an event may do to a phone; see :class:`~pocketserve_simulate.phone.phone.Phone`."""

    model: PhoneModel

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which its process listens, or did."""

    def impose(self, condition: Condition) -> None:
        """Put it under a condition."""

    def lift(self, condition: Condition) -> None:
        """Take the condition away again."""

    def kill(self, cause: str) -> None:
        """End its process by signal 9, until it is revived."""

    def revive(self) -> None:
        """Start the process again if it is dead."""

    def excuse(self, cause: str) -> None:
        """Name what is to blame for starts that fail; nothing, if empty."""


class Happening(Protocol):
    """One event under way."""

    def begin(self, phone: PhoneUnderEvents) -> None:
        """Do it."""

    def end(self, phone: PhoneUnderEvents) -> None:
        """Undo what does not go away by itself."""


class _Lasting:
    """An event that is nothing but a condition."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition

    def begin(self, phone: PhoneUnderEvents) -> None:
        phone.impose(self._condition)

    def end(self, phone: PhoneUnderEvents) -> None:
        phone.lift(self._condition)


class Freeze(_Lasting):
    """Android's freezer: no thread runs, the kernel goes on to take connections and bytes. Its end is the thaw."""

    def __init__(self, options: Options) -> None:
        _take(options)
        super().__init__(Condition(frozen=True))


class Background(_Lasting):
    """The app goes to the background: Android leaves it few little cores. Its end brings it to the front."""

    def __init__(self, options: Options) -> None:
        _take(options)
        super().__init__(Condition(background=True))


class Thermal(_Lasting):
    """A hot phone slows its cores down. ``speed``: what is left of it; ``degrees``: of the battery, in Celsius."""

    def __init__(self, options: Options) -> None:
        taken = _take(options, speed=(0.5, 0.05, 1.0), degrees=(45.0, 0.0, 100.0))
        battery = {"temperature": taken["degrees"], "health": "OVERHEAT"}
        heat = taken["degrees"] + CORES_ABOVE_BATTERY_C
        super().__init__(Condition(speed=taken["speed"], heat=heat, battery=battery))


class Battery(_Lasting):
    """An empty battery. ``percent``; ``plugged`` is 1 at the charger; with ``answers`` 0, Termux:API hangs."""

    def __init__(self, options: Options) -> None:
        taken = _take(options, percent=(8, 0, 100), plugged=(0, 0, 1), answers=(1, 0, 1))
        states = {"plugged": "PLUGGED_AC", "status": "CHARGING"} if taken["plugged"] else {}
        percent = round(taken["percent"])
        super().__init__(
            Condition(battery={"percentage": percent, "level": percent, **states}, api_answers=bool(taken["answers"]))
        )


class MemoryPressure:
    """Other apps need memory: ``mb`` are left, by default a quarter of what the phone has for its processes.

    The server sees it where it looks, in ``MemAvailable``. If it holds more than is left, it is killed, as Android's
    low memory killer would; then the event's end starts it again. The kernel's taking of pages before that is left out.
    """

    def __init__(self, options: Options) -> None:
        self._mb = _take(options, mb=(0, 0, 1_000_000))["mb"]
        self._condition = Condition()

    def begin(self, phone: PhoneUnderEvents) -> None:
        self._condition = Condition(memory_mb=max(1, round(self._mb or phone.model.memory_mb / 4)))
        phone.impose(self._condition)

    def end(self, phone: PhoneUnderEvents) -> None:
        phone.lift(self._condition)
        phone.revive()


class ClockJump(_Lasting):
    """The wall clock is set, ``by`` seconds; at the end it is set right again. Monotonic clocks go on."""

    def __init__(self, options: Options) -> None:
        super().__init__(Condition(clock=_take(options, by=(86_400.0, -1e9, 1e9))["by"]))


class Kill:
    """Signal 9, which no program can catch. At its end the supervisor starts the server again."""

    def __init__(self, options: Options) -> None:
        _take(options)

    def begin(self, phone: PhoneUnderEvents) -> None:
        phone.kill("kill")

    def end(self, phone: PhoneUnderEvents) -> None:
        phone.revive()


class PortSquatter:
    """The server is killed, and another app has its ports before it is back. The supervisor tries in vain meanwhile.

    ``ports``: a list of them; by default those on which the process listens.
    """

    def __init__(self, options: Options) -> None:
        _take({name: value for name, value in options.items() if name != "ports"}, ports=(0, 0, 0))
        self._ports = options.get("ports", [])
        if not isinstance(self._ports, list | tuple) or not all(
            isinstance(p, int) and 0 < p < 65536 for p in self._ports
        ):
            raise EventError(f"ports must be a list of port numbers, not {self._ports!r}")
        self.squatter: PortHijacker | None = None

    def begin(self, phone: PhoneUnderEvents) -> None:
        ports = self._ports or phone.ports
        if not ports:
            raise EventError("the command listens on no port yet")
        phone.kill("squatter")
        phone.excuse("squatter")
        try:
            self.squatter = PortHijacker(ports)
        except OSError as error:
            phone.excuse("")
            phone.revive()
            raise EventError(f"the ports {ports} cannot be taken: {error.strerror}") from None
        phone.revive()

    def end(self, phone: PhoneUnderEvents) -> None:
        phone.excuse("")
        if self.squatter is not None:
            self.squatter.close()


KINDS: Mapping[str, Callable[[Options], Happening]] = MappingProxyType(
    {
        "background": Background,
        "freeze": Freeze,
        "thermal": Thermal,
        "battery": Battery,
        "memory_pressure": MemoryPressure,
        "kill": Kill,
        "clock_jump": ClockJump,
        "squatter": PortSquatter,
    }
)


def open_event(event: Event) -> Happening:
    """Return what an event does.

    Raises:
        EventError: there is no such kind, or an option is wrong.
    """
    if event.kind not in KINDS:
        raise EventError(
            f"there is no event {event.kind!r}; there are {', '.join(KINDS)}{did_you_mean(event.kind, KINDS)}"
        )
    return KINDS[event.kind](event.options)


def _take(options: Options, **known: tuple[Any, float, float]) -> dict[str, Any]:
    """The options of an event, checked.

    Args:
        known: name -> default, lowest and highest value of a number.

    Raises:
        EventError: there is no such option, or its value is out of range.
    """
    for name in options:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise EventError(f"the event has no option {name!r}; it has {listed}{did_you_mean(name, known)}")
    taken = {}
    for name, (default, low, high) in known.items():
        value = options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise EventError(f"{name} must be a number between {low:g} and {high:g}, not {value!r}")
        taken[name] = value
    return taken
