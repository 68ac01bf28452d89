"""Call several functions in turns, and keep their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

TurnResult = TypeVar("TurnResult")

MIN_ROUNDS: Final = 3


def take_turns(
    calls: Mapping[str, Callable[[], TurnResult]],
    seconds: float,
    rounds: int,
    progress: Callable[[float], None],
) -> dict[str, list[TurnResult]]:
    """Return the results of each call, in an order that rotates.

    Args:
        seconds: no round begins after this time, except for the first three.
        rounds: at most.
        progress: called with the completed share of the work, 0 to 1.
    """
    results: dict[str, list[TurnResult]] = {}
    for name in calls:
        results[name] = []
    order = list(calls)
    began = time.monotonic()
    for number in range(rounds):
        elapsed = time.monotonic() - began
        share = elapsed / seconds
        if share >= 1 and number >= MIN_ROUNDS:
            break
        progress(min(1.0, share))
        for name in order:
            result = calls[name]()
            results[name].append(result)
        order = order[1:] + order[:1]
    return results
