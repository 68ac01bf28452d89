"""Which models stay in memory, as tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.memory import Resident, choose_evictions, expired, next_expiry, return_free_memory


def resident(key: str, size: int = 10, last_used: float = 0.0, in_use: bool = False, keep_alive: float = 0.0):
    return Resident(key, size, last_used, in_use, keep_alive)


OLD, MIDDLE, NEW = resident("old", 10, 1.0), resident("middle", 20, 2.0), resident("new", 30, 3.0)
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
def test_the_least_recently_used_make_room(residents, needed, budget, chosen):
    assert choose_evictions(residents, needed, budget) == chosen


SIZES = st.integers(0, 100)
TIMES = st.integers(0, 20).map(float)
RESIDENTS = st.lists(
    st.builds(Resident, st.uuids(), SIZES, TIMES, st.booleans(), st.sampled_from([0.0, 1.0, 5.0])),
    max_size=8,
    unique_by=lambda one: one.key,
)


@given(RESIDENTS, SIZES, st.integers(0, 300))
def test_what_is_chosen_is_the_shortest_start_of_the_idle_ones_in_order_of_use(residents, needed, budget):
    chosen = choose_evictions(residents, needed, budget)
    idle = sorted((one for one in residents if not one.in_use), key=lambda one: one.last_used)
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
            [resident("slow", keep_alive=9.0), resident("fast", keep_alive=2.0), resident("kept")],
            3.0,
            ["fast"],
            2.0,
        ),
    ],
)
def test_who_has_been_idle_for_long_enough_expires(residents, now, gone, upcoming):
    assert expired(residents, now) == gone
    assert next_expiry(residents, now) == upcoming


@given(RESIDENTS, TIMES)
def test_nothing_expires_before_the_announced_time_and_an_idle_one_does_then(residents, now):
    upcoming = next_expiry(residents, now)
    assert (upcoming is None) == all(one.keep_alive == 0 for one in residents)
    by_key = {one.key: one for one in residents}
    assert not any(by_key[key].in_use or by_key[key].keep_alive == 0 for key in expired(residents, now))
    if upcoming is None or upcoming > now:
        assert expired(residents, now) == []
    if upcoming is not None and not any(one.in_use for one in residents):
        assert expired(residents, upcoming)


def test_giving_memory_back_works_on_this_system():
    return_free_memory()
