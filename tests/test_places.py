"""Places: never more are taken than there are, whoever takes and gives at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pocketserve.engine.scheduling.semaphore import Semaphore


def test_no_more_are_taken_than_there_are():
    places = Semaphore(2)
    assert places.unused
    assert [places.take() for _ in range(3)] == [True, True, False]
    assert not places.unused
    places.give()
    assert places.take()
    assert not places.take()


def test_none_is_lost_between_threads():
    places = Semaphore(3)

    def work(_: int) -> int:
        taken = 0
        for _ in range(2000):
            if places.take():
                taken += 1
                assert not places.unused
                places.give()
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(work, range(4)))
    assert places.unused
    assert sum(taken) >= 2000
