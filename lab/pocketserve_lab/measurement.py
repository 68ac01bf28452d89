"""Interleaved measurements and the choice by their times."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pocketserve.messages import plural

Key = TypeVar("Key", int, str)
Result = TypeVar("Result")
Calls = Mapping[Key, Callable[[], object]]

MIN_ROUNDS = 7  # the noise of fewer rounds is unknown
MIN_GAIN = 0.03  # a smaller gain is not worth a change, however certain it is
MAX_CHANCE = 0.5  # the share of a gain that chance may explain

MAX_OVERTIME = 4.0  # times the seconds, until there are enough rounds
SIGMAS = 3.0
"""Standard errors that a gain must exceed.

With a handful of candidates, luck alone gets to two.
"""

MAD_TO_SIGMA = 1.4826  # a normal distribution's deviation over its median deviation
MEDIAN_TO_MEAN = 1.2533  # a median's standard error over a mean's


class Choice(NamedTuple):
    """The best of several settings.

    Attributes:
        best: the setting with the smallest median.
        gain: the share of the current setting's time that the best one saves, 0 to 1;
            the median over the rounds.
        noise: the part of ``gain`` that chance may explain.
        times: the time of each round, by setting.
    """

    current: int
    best: int
    gain: float
    noise: float
    times: Mapping[int, Sequence[float]]

    @property
    def changed(self) -> bool:
        """Return whether the best one should replace the current one."""
        return (
            self.best != self.current
            and self.gain >= MIN_GAIN
            and self.noise < MAX_CHANCE * self.gain
        )

    @property
    def recommended(self) -> int:
        """Return the setting to use."""
        if self.changed:
            return self.best
        return self.current


def choose(times: Mapping[int, Sequence[float]], current: int) -> Choice:
    """Choose the fastest setting.

    Args:
        times: the time of each round by setting, in any unit; the settings took turns
            in each round.
        current: the setting that stays unless another one is better beyond the noise.
    """
    best = min(
        times,
        key=lambda setting: (
            statistics.median(times[setting]),
            setting != current,
            setting,
        ),
    )
    ratios = [new / old for new, old in zip(times[best], times[current], strict=True)]
    middle = statistics.median(ratios)
    return Choice(current, best, 1 - middle, _noise(ratios, middle), times)


def _noise(ratios: Sequence[float], middle: float) -> float:
    """Return the part of a gain that chance may explain."""
    if len(ratios) < MIN_ROUNDS:
        return 1.0
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    error: float = MEDIAN_TO_MEAN * MAD_TO_SIGMA * deviation / len(ratios) ** 0.5
    return SIGMAS * error


def interleave(
    calls: Calls[Key],
    seconds: float,
    rounds: int,
    progress: Callable[[float], None],
    *,
    min_sample_s: float = 0.0,
    least_rounds: int = 1,
) -> dict[Key, list[float]]:
    """Return the milliseconds of a call, by key and round.

    All calls take turns, in an order that rotates.

    Args:
        seconds: no round begins after this time, except for the first.
        progress: called with the completed share of the work, 0 to 1.
        least_rounds: begin even later, up to :data:`MAX_OVERTIME` times as late.
        min_sample_s: a sample repeats its call for this long, since clock and scheduler
            blur shorter ones.
    """
    began = time.monotonic()
    progress(0.0)
    timed: dict[Key, Callable[[], float]] = {}
    for key, call in calls.items():
        repeats = 1
        if min_sample_s:
            repeats = _repeats_for(call, min_sample_s)
        timed[key] = partial(_milliseconds, call, repeats)
    return take_turns(
        timed, seconds, rounds, progress, least_rounds=least_rounds, began=began
    )


def take_turns(
    calls: Mapping[Key, Callable[[], Result]],
    seconds: float,
    rounds: int,
    progress: Callable[[float], None],
    *,
    least_rounds: int = 1,
    overtime: float = MAX_OVERTIME,
    began: float | None = None,
) -> dict[Key, list[Result]]:
    """Return the results of each call, by key and round, in an order that rotates.

    Args:
        seconds: no round begins after this time, except for the first.
        progress: called with the completed share of the work, 0 to 1.
        least_rounds: begin even later, up to ``overtime`` times as late.
        began: monotonic; now by default.
    """
    if began is None:
        began = time.monotonic()
    results: dict[Key, list[Result]] = {key: [] for key in calls}
    order = list(calls)
    for number in range(rounds):
        for key in order:
            results[key].append(calls[key]())
        order = order[1:] + order[:1]
        share = (time.monotonic() - began) / seconds
        progress(min(1.0, max(share, (number + 1) / rounds)))
        has_enough = number + 1 >= least_rounds or share >= overtime
        if share >= 1 and has_enough:
            break
    return results


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    return _time(call, repeats) * 1e3


def shared_start(items: Sequence[object], compared: Sequence[object]) -> int:
    """Return how many items two sequences begin with together."""
    count = 0
    for item, other in zip(items, compared, strict=False):
        if item != other:
            break
        count += 1
    return count


def _repeats_for(call: Callable[[], object], seconds: float) -> int:
    call()  # warm-up
    fastest = min(_time(call, 1) for _ in range(3))
    return max(1, int(seconds / max(1e-6, fastest)))


def _time(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def load_now() -> float | None:
    """Return the system's load, if it is known."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def load_warning(load: float | None) -> str:
    """Return a warning if other processes use the cores."""
    cores = os.cpu_count() or 1
    if load is None or load < cores:  # Android counts waiting drivers as well
        return ""
    return (
        f"The load was {load:.1f} on {plural(cores, 'core')}: other programs ran too, "
        "so that these times are not reliable. Stop them and measure again.\n\n"
    )
