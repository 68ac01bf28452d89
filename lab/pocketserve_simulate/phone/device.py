"""Phones, and how the cores of one are laid over those of this desktop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BACKGROUND_CORES = (
    2  # what a Pixel 2 leaves to the background (BOINC issues 2549 and 2594 on GitHub)
)
_RANGES = {
    "fast_cores": (1, 64),
    "slow_cores": (0, 64),
    "speed": (0.02, 1.0),
    "memory_mb": (32, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class PhoneModel:
    """The hardware of a phone."""

    name: str
    fast_cores: int  # big and middle cores, and little ones
    slow_cores: int
    speed: float  # share of a desktop core's time that the processes get, as a stand-in for a slower core
    memory_mb: int  # memory that is left for the processes, of ``total_mb``, in MB of 10^6 bytes
    slow_speed: float = 0.4  # speed of little cores, as a share of ``speed``
    fast_khz: int = 2_400_000
    slow_khz: int = 1_600_000
    total_mb: int = 8000
    api: int = 34  # Android's API level

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(
                    f"{name} of a phone must lie between {low:g} and {high:g}, not {getattr(self, name)}"
                )

    def with_knobs(self, **fields: float | None) -> PhoneModel:
        """Return this phone with single fields changed; None leaves one as it is."""
        changes = {name: value for name, value in fields.items() if value is not None}
        if not changes:
            return self
        name = f"{self.name}, changed"
        return dataclasses.replace(self, name=name, **changes)  # type: ignore[arg-type]


# The numbers of cores are those of common chips of each class (2 Cortex-A75 or -A76 and 6 Cortex-A55; 4 and 4; 1 + 4
# and 3). Clocks, speeds and memory are round numbers, not measurements of any phone.
_PHONES = (
    PhoneModel("budget", 2, 6, 0.25, 700, 0.4, 2_000_000, 1_300_000, 3000, 31),
    PhoneModel("mid", 4, 4, 0.45, 2000, 0.4, 2_400_000, 1_600_000, 6000),
    PhoneModel("flagship", 5, 3, 0.9, 5000, 0.35, 3_200_000, 2_000_000, 12_000, 36),
)
DEVICES: Mapping[str, PhoneModel] = {phone.name: phone for phone in _PHONES}


@dataclass(frozen=True, slots=True)
class CoreMap:
    """The cores of this desktop that stand for a phone's; the same ones for both kinds only on a single core."""

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
    """Lay a phone's cores over the usable ones of a desktop.

    Where the desktop has fewer, both kinds shrink in proportion, and at least one core of each kind is kept.
    """
    count = len(desktop)
    total = model.fast_cores + model.slow_cores
    fast = model.fast_cores
    if total > count:
        fast = max(1, min(count - (model.slow_cores > 0), round(count * fast / total)))
    slow = (
        desktop[fast : fast + model.slow_cores]
        if fast < count
        else desktop[-1:]
        if model.slow_cores
        else ()
    )
    return CoreMap(tuple(desktop[:fast]), tuple(slow))
