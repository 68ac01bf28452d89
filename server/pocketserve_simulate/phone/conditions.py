"""What a phone is under for a while, and what several such conditions make together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A state that the phone is in until it is lifted; the defaults change nothing.

    Attributes:
        frozen: no process runs.
        background: only slow cores may be used.
        speed: share of the processor that is left, such as 0.5 of a hot one.
        memory_mb: memory for the processes; None leaves what the phone has.
        battery: fields of ``termux-battery-status`` that change.
        api_answers: whether the programs of Termux:API answer at all.
        heat: degrees Celsius of the processor; None leaves it cool.
        clock: seconds by which the wall clock is wrong.
    """

    frozen: bool = False
    background: bool = False
    speed: float = 1.0
    memory_mb: int | None = None
    battery: Mapping[str, object] | None = None
    api_answers: bool = True
    heat: float | None = None
    clock: float = 0.0


def combine(conditions: Iterable[Condition]) -> Condition:
    """All of them together: the slowest, the least memory, the highest heat; the newest word on the battery."""
    listed = list(conditions)
    return Condition(
        frozen=any(c.frozen for c in listed),
        background=any(c.background for c in listed),
        speed=math.prod(c.speed for c in listed),
        memory_mb=min((c.memory_mb for c in listed if c.memory_mb is not None), default=None),
        battery={name: value for c in listed for name, value in (c.battery or {}).items()},
        api_answers=all(c.api_answers for c in listed),
        heat=max((c.heat for c in listed if c.heat is not None), default=None),
        clock=sum(c.clock for c in listed),
    )
