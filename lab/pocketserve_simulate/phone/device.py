"""Models of phones, and the mapping of their cores to this desktop's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BACKGROUND_CORES = 2
"""Cores of background apps on a Pixel 2 (BOINC issues 2549 and 2594 on GitHub)."""
_RANGES = {
    "fast_cores": (1, 64),
    "slow_cores": (0, 64),
    "speed": (0.02, 1.0),
    "memory_mb": (32, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class PhoneModel:
    """The hardware of a phone.

    Attributes:
        fast_cores: big and middle cores.
        slow_cores: little cores.
        speed: share of a desktop core's time that processes get, to simulate a slower
            core.
        memory_mb: memory for the processes, out of ``total_mb``, in MB of 10^6 bytes.
        slow_speed: speed of little cores, as a share of ``speed``.
        api: Android's API level.
    """

    name: str
    fast_cores: int
    slow_cores: int
    speed: float
    memory_mb: int
    slow_speed: float = 0.4
    fast_khz: int = 2_400_000
    slow_khz: int = 1_600_000
    total_mb: int = 8000
    api: int = 34

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(
                    f"{name} of a phone must be between {low:g} and {high:g}, "
                    f"not {value}"
                )

    def with_knobs(self, **fields: float | None) -> PhoneModel:
        """Return this phone with some fields changed; None keeps a field."""
        changes: dict[str, Any] = {}
        for name, value in fields.items():
            if value is not None:
                changes[name] = value
        if not changes:
            return self
        changes["name"] = f"{self.name}, changed"
        return dataclasses.replace(self, **changes)


# The numbers of cores are those of common chips of each class (2 Cortex-A75 or -A76 and
# 6 Cortex-A55; 4 and 4; 1 + 4 and 3). Clocks, speeds and memory are round numbers, not
# measurements of any phone.
_PHONES = (
    PhoneModel("budget", 2, 6, 0.25, 700, 0.4, 2_000_000, 1_300_000, 3000, 31),
    PhoneModel("mid", 4, 4, 0.45, 2000, 0.4, 2_400_000, 1_600_000, 6000),
    PhoneModel("flagship", 5, 3, 0.9, 5000, 0.35, 3_200_000, 2_000_000, 12_000, 36),
)
DEVICES: Mapping[str, PhoneModel] = {phone.name: phone for phone in _PHONES}


@dataclass(frozen=True, slots=True)
class CoreMap:
    """The cores of this desktop that simulate a phone's fast and slow ones.

    On a single core both are the same.
    """

    fast: tuple[int, ...]
    slow: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """The cores of an app in the foreground."""
        return tuple(sorted({*self.fast, *self.slow}))

    @property
    def background(self) -> tuple[int, ...]:
        """The cores of an app in the background: slow ones, at most two."""
        return (self.slow or self.fast)[:BACKGROUND_CORES]


def map_cores(model: PhoneModel, desktop: Sequence[int]) -> CoreMap:
    """Map a phone's cores to the usable ones of a desktop.

    If the desktop has fewer, both kinds shrink in proportion, to at least one core
    each.
    """
    count = len(desktop)
    total = model.fast_cores + model.slow_cores
    fast = model.fast_cores
    if total > count:
        most = count
        if model.slow_cores:
            most = count - 1
        fast = max(1, min(most, round(count * fast / total)))
    slow = desktop[fast : fast + model.slow_cores]
    if not slow and model.slow_cores:
        slow = desktop[-1:]
    return CoreMap(tuple(desktop[:fast]), tuple(slow))
