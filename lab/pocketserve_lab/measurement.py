"""Measurement: calls that take turns, the choice between settings by their times, and other work on the cores."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pocketserve.messages import plural

Key = TypeVar("Key", int, str)
Calls = Mapping[Key, Callable[[], object]]

MIN_ROUNDS = 7  # fewer rounds tell nothing about the noise
MIN_GAIN = 0.03  # a smaller gain is not worth a change, however certain it is
MAX_CHANCE = 0.5  # the share of a gain that chance may explain
SIGMAS = 3.0  # standard errors that a gain must exceed: with a handful of candidates, luck alone gets to two


class Choice(NamedTuple):
    """The best of several settings."""

    current: int
    best: int  # the setting with the smallest median
    gain: float  # the share of the current setting's time that the best one saves, 0 to 1; the median over the rounds
    noise: float  # how far chance may have moved ``gain``, in the same unit
    times: Mapping[int, Sequence[float]]  # for each setting the time of each round

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
        """Return the setting that should be in force."""
        return self.best if self.changed else self.current


def choose(times: Mapping[int, Sequence[float]], current: int) -> Choice:
    """Compare settings.

    Args:
        times: for each setting the time of each round, any unit; the settings took turns in each round.
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
    spread = 1.4826 * statistics.median(
        abs(ratio - middle) for ratio in ratios
    )  # of a normal distribution
    error = (
        1.2533 * spread / len(ratios) ** 0.5
    )  # a median varies a quarter more than a mean
    return Choice(
        current,
        best,
        1 - middle,
        SIGMAS * error if len(ratios) >= MIN_ROUNDS else 1.0,
        times,
    )


def interleave(
    calls: Calls[Key],
    seconds: float,
    rounds: int,
    progress: Callable[[float], None],
    *,
    min_sample_s: float = 0.0,
) -> dict[Key, list[float]]:
    """Return milliseconds of a call, by key and round. All take turns, in an order that rotates.

    Args:
        seconds: no round begins after so long; one is made in any case.
        progress: called with the share of the work that is over, 0 to 1.
        min_sample_s: a sample is so many calls that it takes this long: the clock and the scheduler blur shorter ones.
    """
    began = time.monotonic()
    progress(0.0)
    repeats = dict.fromkeys(calls, 1)
    if min_sample_s:
        for key, call in calls.items():
            call()
            repeats[key] = max(
                1, int(min_sample_s / max(1e-6, min(_time(call, 1) for _ in range(3))))
            )
    times: dict[Key, list[float]] = {key: [] for key in calls}
    order = list(calls)
    for number in range(rounds):
        for key in order:
            times[key].append(_time(calls[key], repeats[key]) * 1e3)
        order = order[1:] + order[:1]
        share = (time.monotonic() - began) / seconds
        progress(min(1.0, max(share, (number + 1) / rounds)))
        if share >= 1:
            break
    return times


def _time(call: Callable[[], object], repeats: int) -> float:
    """Return seconds of a call."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def load_now() -> float | None:
    """Return how many processes wanted a core in the last minute, on average; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def load_warning(load: float | None) -> str:
    """Return a warning if other processes compete for the measured cores, else ""."""
    cores = os.cpu_count() or 1
    if load is None or load < cores:  # Android counts waiting drivers as well
        return ""
    return (
        f"The load was {load:.1f} on {plural(cores, 'core')}: other programs ran too, so that these times are not "
        "reliable. Stop them and measure again.\n\n"
    )
