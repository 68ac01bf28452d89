"""Tests of fast cores, available memory and threads per run."""

from __future__ import annotations

import pytest

from pocketserve.engine.device.cores import (
    CoreWatch,
    available_memory,
    count_fast,
    readable_memory,
    top_speed_khz,
    usable_cores,
)
from pocketserve.engine.device.power import PowerWatch

BIG = 3_000_000
MIDDLE = 2_400_000
LITTLE = 1_800_000


@pytest.mark.parametrize(
    ("speeds", "fast"),
    [
        ([], 1),
        ([BIG], 1),
        ([BIG] * 8, 8),
        ([LITTLE] * 4 + [MIDDLE] * 3 + [BIG], 4),
        ([LITTLE] * 4 + [BIG] * 4, 4),
        ([LITTLE] * 4, 4),  # a background app restricted to the little cores
        ([1000, 699, 700], 2),
        ([None] * 6, 6),
        ([None], 1),
        ([BIG, None, LITTLE], 3),  # a core of unknown speed counts as fast
    ],
)
def test_fast_cores_are_those_near_the_fastest(speeds, fast):
    assert count_fast(range(len(speeds)), lambda core: speeds[core]) == fast


@pytest.mark.parametrize(
    ("content", "speed"),
    [
        ("2400000\n", 2_400_000),
        ("<unknown>\n", None),
        (None, None),
    ],
)
def test_the_top_speed_is_read_from_the_system(tmp_path, content, speed):
    folder = tmp_path / "cpu3" / "cpufreq"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "cpuinfo_max_freq").write_text(content)
    assert top_speed_khz(3, tmp_path) == speed


def test_this_system_has_cores_and_memory():
    assert usable_cores()
    assert 1 <= count_fast(usable_cores()) <= len(usable_cores())
    assert available_memory() > 2**20


@pytest.mark.parametrize(
    ("content", "available"),
    [
        (
            "MemTotal:  7800000 kB\nMemFree: 90000 kB\nMemAvailable: 2000 kB\n",
            2000 * 1024,
        ),
        ("MemTotal: 7800000 kB\n", None),
        ("MemAvailable:\n", None),
        ("MemAvailable: much\n", None),
        (None, None),
    ],
)
def test_available_memory_is_read_only_from_meminfo(tmp_path, content, available):
    """Android denies ``/proc/stat``. ``/proc/meminfo`` may be missing or malformed."""
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    assert readable_memory(tmp_path / "meminfo") == available


@pytest.mark.parametrize(
    ("setting", "low", "expected"),
    [
        (4, "off", 4),
        (0, "off", 2),
        (4, "on", 2),
        (1, "on", 1),
    ],
)
def test_threads_per_run(setting: int, low: str, expected: int) -> None:
    """A setting has priority; low power halves every value."""
    # Cores of unknown speed.
    watch = CoreWatch(lambda: [10_000, 10_001], PowerWatch(low))
    assert watch.threads(setting) == expected
