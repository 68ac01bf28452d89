"""Slots: never more are acquired than there are, whoever acquires and releases at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pocketserve.engine.scheduling.semaphore import Semaphore


def test_no_more_are_taken_than_there_are():
    slots = Semaphore(2)
    assert slots.unused
    assert [slots.acquire() for _ in range(3)] == [True, True, False]
    assert not slots.unused
    slots.release()
    assert slots.acquire()
    assert not slots.acquire()


def test_none_is_lost_between_threads():
    slots = Semaphore(3)

    def work(_: int) -> int:
        taken = 0
        for _ in range(2000):
            if slots.acquire():
                taken += 1
                assert not slots.unused
                slots.release()
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(work, range(4)))
    assert slots.unused
    assert sum(taken) >= 2000
