"""Decide which models stay in memory: examples and properties."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.engine.lifecycle.memory import (
    Resident,
    choose_evictions,
    expired_keys,
    next_expiry,
    trimming,
)


def resident(
    key: str,
    size: int = 10,
    last_used: float = 0.0,
    in_use: bool = False,
    keep_alive: float = 0.0,
):
    return Resident(key, size, last_used, in_use, keep_alive)


OLD = resident("old", 10, 1.0)
MIDDLE = resident("middle", 20, 2.0)
NEW = resident("new", 30, 3.0)
BUSY = resident("busy", 40, 0.0, in_use=True)


@pytest.mark.parametrize(
    ("residents", "needed", "budget", "chosen"),
    [
        ([], 10, 10, []),
        ([], 11, 10, None),
        ([OLD], 0, 10, []),
        ([NEW, OLD, MIDDLE], 0, 60, []),
        ([NEW, OLD, MIDDLE], 1, 60, ["old"]),
        ([NEW, OLD, MIDDLE], 10, 60, ["old"]),
        ([NEW, OLD, MIDDLE], 11, 60, ["old", "middle"]),
        ([NEW, OLD, MIDDLE], 60, 60, ["old", "middle", "new"]),
        ([NEW, OLD, MIDDLE], 61, 60, None),
        ([BUSY, NEW], 10, 50, ["new"]),
        ([BUSY, NEW], 11, 50, None),
        ([BUSY], 1, 40, None),
        ([OLD, MIDDLE], 0, 5, ["old", "middle"]),  # a budget that is already exceeded
    ],
)
def test_the_least_recently_used_are_evicted(residents, needed, budget, chosen):
    assert choose_evictions(residents, needed, budget) == chosen


SIZES = st.integers(0, 100)
TIMES = st.integers(0, 20).map(float)
RESIDENTS = st.lists(
    st.builds(
        Resident,
        st.uuids(),
        SIZES,
        TIMES,
        st.booleans(),
        st.sampled_from([0.0, 1.0, 5.0]),
    ),
    max_size=8,
    unique_by=lambda one: one.key,
)


@given(RESIDENTS, SIZES, st.integers(0, 300))
def test_the_fewest_least_recently_used_idle_models_are_evicted(
    residents, needed, budget
):
    chosen = choose_evictions(residents, needed, budget)
    idle = sorted(
        (one for one in residents if not one.in_use), key=lambda one: one.last_used
    )
    held = sum(one.size for one in residents)
    if chosen is None:
        assert held - sum(one.size for one in idle) + needed > budget
        return
    assert chosen == [one.key for one in idle[: len(chosen)]]
    freed = [one.size for one in idle[: len(chosen)]]
    assert held - sum(freed) + needed <= budget
    assert not chosen or held - sum(freed[:-1]) + needed > budget


@pytest.mark.parametrize(
    ("residents", "now", "gone", "upcoming"),
    [
        ([], 5.0, [], None),
        ([resident("kept", keep_alive=0.0)], 1e9, [], None),
        ([resident("a", last_used=2.0, keep_alive=3.0)], 4.9, [], 5.0),
        ([resident("a", last_used=2.0, keep_alive=3.0)], 5.0, ["a"], 5.0),
        ([resident("a", last_used=2.0, keep_alive=3.0, in_use=True)], 100.0, [], 103.0),
        (
            [
                resident("slow", keep_alive=9.0),
                resident("fast", keep_alive=2.0),
                resident("kept"),
            ],
            3.0,
            ["fast"],
            2.0,
        ),
    ],
)
def test_idle_models_expire(residents, now, gone, upcoming):
    assert expired_keys(residents, now) == gone
    assert next_expiry(residents, now) == upcoming


@given(RESIDENTS, TIMES)
def test_an_idle_model_expires_at_the_announced_time(residents, now):
    upcoming = next_expiry(residents, now)
    assert (upcoming is None) == all(one.keep_alive == 0 for one in residents)
    by_key = {one.key: one for one in residents}
    assert not any(
        by_key[key].in_use or by_key[key].keep_alive == 0
        for key in expired_keys(residents, now)
    )
    if upcoming is None or upcoming > now:
        assert expired_keys(residents, now) == []
    if upcoming is not None and not any(one.in_use for one in residents):
        assert expired_keys(residents, upcoming)


class Glibc:
    """A fake libc that records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.calls.append((pad,))
        return 1


class Bionic:
    """Android's libc, which supports M_PURGE_ALL from Android 14 on."""

    def __init__(self, known: int) -> None:
        self.known = known
        self.calls: list[int] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append(parameter)
        return int(parameter == self.known)


def test_heaps_shrink_on_release_and_keep_their_reserve_afterwards():
    library = Glibc()
    with trimming(library):
        assert library.calls == [(-3, 32 << 20), (-1, 0)]
    assert library.calls[2:] == [
        (-3, 32 << 20),
        (-1, 0),
        (0,),
        (-3, 32 << 20),
        (-1, 64 << 20),
    ]


@pytest.mark.parametrize(
    ("known", "calls"),
    [
        (-104, [-104]),
        (-101, [-104, -101]),
    ],
)
def test_android_is_told_to_purge(known, calls):
    library = Bionic(known)
    with trimming(library):
        pass
    assert library.calls == calls


def test_a_library_without_these_functions_is_skipped():
    with trimming(object()):
        pass


def anonymous_bytes() -> int:
    """Return this process's memory apart from mapped files."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    )
    return int(line.split()[1]) * 1024


reads_memory = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists()
    or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="reads memory from /proc and trims glibc's heap",
)


@pytest.mark.alone
@reads_memory
def test_memory_freed_inside_a_thread_is_released():
    """``malloc_trim`` does not reach blocks that glibc keeps in a living thread's heap."""

    def fill() -> list[bytearray]:
        return [bytearray(b"1") * (6 << 20) for _ in range(8)]

    with ThreadPoolExecutor(1) as thread:
        with trimming():
            thread.submit(fill).result().clear()  # warm up glibc and Python
        before = anonymous_bytes()
        blocks = thread.submit(fill).result()
        assert anonymous_bytes() - before > 40 << 20
        with trimming():
            blocks.clear()
        assert anonymous_bytes() - before < 4 << 20


@pytest.mark.alone
@reads_memory
def test_a_thread_releases_memory_after_a_large_reservation():
    budget = ByteBudget(64 << 20)

    def decode() -> int:
        reservation = budget.acquire(48 << 20, lambda: None)
        pixels = [bytearray(b"1") * (6 << 20) for _ in range(8)]
        most = anonymous_bytes()
        pixels.clear()
        budget.release(reservation)
        return most

    with ThreadPoolExecutor(1) as thread:
        thread.submit(decode).result()
        before = anonymous_bytes()
        assert thread.submit(decode).result() - before > 40 << 20
        assert anonymous_bytes() - before < 4 << 20
