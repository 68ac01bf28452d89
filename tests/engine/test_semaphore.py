"""Threads acquire no more slots than exist, and lose none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pocketserve.engine.scheduling.semaphore import Semaphore


def test_acquire_fails_without_free_slots():
    slots = Semaphore(2)
    assert slots.unused
    slots.acquire()
    slots.acquire()
    with pytest.raises(IndexError):
        slots.acquire()
    assert not slots.unused
    slots.release()
    slots.acquire()
    with pytest.raises(IndexError):
        slots.acquire()


def test_threads_lose_no_slot():
    slots = Semaphore(3)

    def work(_: int) -> int:
        taken = 0
        for _ in range(2000):
            try:
                slots.acquire()
            except IndexError:
                continue
            taken += 1
            assert not slots.unused
            slots.release()
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(work, range(4)))
    assert slots.unused
    assert sum(taken) >= 2000
