"""Phones, and how the cores of one are laid over those of this desktop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class PhoneModel:
    """What a phone has.

    Attributes:
        name: what it is called.
        fast_cores, slow_cores: big and middle cores, and little ones.
        speed: share of a desktop core's time that the processes get, as a stand-in for a slower core; 0 to 1.
        slow_speed: the same on little cores, as a share of ``speed``.
        memory_mb: memory that is left for the processes on the phone, in MB of 10^6 bytes; what they hold counts.
        fast_khz, slow_khz: top clocks that ``cpuinfo_max_freq`` shows.
        total_mb: memory that the phone is sold with.
        api: Android's API level, as ``getprop`` tells it.
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
        for name, low, high in _RANGES:
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} of a phone must lie between {low:g} and {high:g}, not {getattr(self, name)}")

    def with_knobs(self, **given: float | None) -> PhoneModel:
        """This phone with single fields changed; None leaves one as it is.

        Raises:
            ValueError: a value is out of range.
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        changed = dataclasses.replace(self, name=f"{self.name}, changed" if chosen else self.name, **chosen)  # type: ignore[arg-type]
        return changed


_RANGES = (
    ("fast_cores", 1, 64),
    ("slow_cores", 0, 64),
    ("speed", 0.02, 1.0),
    ("slow_speed", 0.02, 1.0),
    ("memory_mb", 32, 1_000_000),
)

DEVICES: Mapping[str, PhoneModel] = MappingProxyType(
    {
        # The numbers of cores are those of common chips of each class (2 Cortex-A75 or -A76 and 6 Cortex-A55; 4 and 4;
        # 1 + 4 and 3). Clocks, speeds and memory are round numbers, not measurements of any phone.
        "budget": PhoneModel(
            "budget", 2, 6, 0.25, 700, 0.4, fast_khz=2_000_000, slow_khz=1_300_000, total_mb=3000, api=31
        ),
        "mid": PhoneModel("mid", 4, 4, 0.45, 2000, 0.4, fast_khz=2_400_000, slow_khz=1_600_000, total_mb=6000),
        "flagship": PhoneModel(
            "flagship", 5, 3, 0.9, 5000, 0.35, fast_khz=3_200_000, slow_khz=2_000_000, total_mb=12_000, api=36
        ),
    }
)


@dataclass(frozen=True, slots=True)
class CoreMap:
    """Which cores of this desktop stand for those of the phone.

    Attributes:
        fast, slow: core numbers. They are apart where the desktop has two cores or more.
        shared: whether fast and slow cores are the same ones, told apart by the duty cycle alone.
    """

    fast: tuple[int, ...]
    slow: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Return whether some core stands for both kinds."""
        return bool(set(self.fast) & set(self.slow))

    @property
    def all(self) -> tuple[int, ...]:
        """Every core that the phone uses in the foreground."""
        return tuple(sorted({*self.fast, *self.slow}))

    @property
    def background(self) -> tuple[int, ...]:
        """The cores that are left to an app in the background: the slow ones, at most two of them."""
        return (self.slow or self.fast)[:BACKGROUND_CORES]


BACKGROUND_CORES = 2
"""What a Pixel 2 leaves to the background (BOINC issues 2549 and 2594 on GitHub)."""


def map_cores(model: PhoneModel, desktop: Sequence[int]) -> CoreMap:
    """Lay a phone's cores over a desktop's.

    A phone has more cores than many a desktop: then both kinds shrink in proportion, and at least one core of each
    kind that the phone has is kept. On a desktop with a single core, it stands for both.

    Args:
        desktop: the numbers of the cores that may be used, at least one.
    """
    have = len(desktop)
    both = model.fast_cores + model.slow_cores
    if both <= have:
        fast = model.fast_cores
    else:
        fast = max(1, min(have - (model.slow_cores > 0), round(have * model.fast_cores / both)))
    slow = min(model.slow_cores, have - fast)
    if model.slow_cores and slow < 1:
        return CoreMap(tuple(desktop[:fast]), tuple(desktop[-1:]))
    return CoreMap(tuple(desktop[:fast]), tuple(desktop[fast : fast + slow]))
