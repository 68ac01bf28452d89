"""Recommend a version by a stated rule, in two sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from pocketserve.messages import plural
from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.statistics import (
    LEAST_FOR_INTERVAL,
    Estimate,
    time_ratio,
)
from pocketserve_lab.measurement import load_warning

SAME_SPEED = 1.1
SAME_SPEED_IN_NOISE = 1.25
"""Versions up to so much slower than the fastest are as fast; the smaller file wins.

The second limit applies where chance may explain the rest.
"""

RULE = (
    "the fastest version that is not measurably worse than the reference "
    "(p < 0.05, paired, adjusted for the number of versions by Holm), by the geometric "
    f"mean of its turns' times; of versions within {SAME_SPEED - 1:.0%} of it, or "
    f"{SAME_SPEED_IN_NOISE - 1:.0%} where that may be chance, the smallest file."
)
MARGIN_RULE = RULE.replace(
    "is not measurably worse than the reference (p < 0.05, paired, ",
    "is shown to lose less than the margin (one-sided p < 0.025, paired, ",
)


NOTHING: dict[str, Any] = {
    "version": None,
    "rule": RULE,
    "sentences": "No version answers as it should. Nothing is recommended.",
}


def recommend(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``version``, the other choices, the rule and the two ``sentences``.

    Args:
        result: as :func:`pocketserve_lab.compare.session.compare_versions` makes it.
    """
    good = _good_versions(result)
    conditions = _conditions(result)
    if not good:
        return {**NOTHING, **conditions}
    choices = {**_choices(result, good), **conditions}
    times = {name: _turn_means(facts) for name, facts in good.items()}
    sentences = _sentences(result, choices, times)
    if choices["load_warning"]:
        sentences += f" {choices['load_warning']}"
    return {**choices, "sentences": sentences}


def _good_versions(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions whose answers allow a recommendation."""
    good = {}
    for name, facts in result["versions"].items():
        is_reference = name == result["reference"]
        if _is_good(facts["test"], result.get("margin"), is_reference=is_reference):
            good[name] = facts
    return good


def _conditions(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much was measured, on which device, and the rule."""
    return {
        "turns": turn_count(result["versions"]),
        "load_warning": load_warning(result["device"]["load"]).strip(),
        "rule": RULE if result.get("margin") is None else MARGIN_RULE,
    }


def _choices(result: Mapping[str, Any], good: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recommended version and those that excel in one figure."""
    times = {name: _turn_means(facts) for name, facts in good.items()}
    fastest = min(good, key=lambda name: geometric_mean(times[name]))
    equal = _equally_fast(times, fastest)
    sizes = {name: facts["file_bytes"] for name, facts in good.items()}
    best = min(equal, key=lambda name: (sizes[name], name != result["default"], name))
    return {
        "version": best,
        "fastest": fastest,
        "smallest": min(good, key=lambda name: (sizes[name], name)),
        "most_accurate": _most_accurate(result["versions"], best),
        "equally_fast": equal,
    }


def _is_good(
    test: Mapping[str, Any], margin: float | None, *, is_reference: bool
) -> bool:
    """Return whether a version's answers allow a recommendation."""
    if margin is None or is_reference:
        return not test["worse"]
    margin_test = test.get("margin") or {}
    return bool(margin_test.get("is_within")) and not test["worse"]


def turn_count(versions: Mapping[str, Any]) -> int:
    """Return the timed turns that each version had."""
    return min(len(facts["samples"]["run_ms"]) for facts in versions.values())


def _turn_means(facts: Mapping[str, Any]) -> list[float]:
    return list(map(fmean, facts["samples"]["run_ms"]))


def _equally_fast(times: Mapping[str, list[float]], fastest: str) -> list[str]:
    """Return the versions as fast as the fastest one."""
    equal = []
    for name in times:
        ratio = time_ratio(times[name], times[fastest], max(1, len(times) - 1))
        if ratio.value <= _same_speed(ratio):
            equal.append(name)
    return equal


def _same_speed(ratio: Estimate) -> float:
    if ratio.low is None or ratio.low <= 1.0:
        return SAME_SPEED_IN_NOISE
    return SAME_SPEED


def _most_accurate(versions: Mapping[str, Any], best: str) -> str | None:
    """Return the version with the best score; None without labels.

    A tie goes to the recommended one.
    """
    scores = {}
    for name, facts in versions.items():
        accuracy = facts["accuracy"]
        if accuracy is None:
            continue
        sign = 1 if accuracy["more_is_better"] else -1
        scores[name] = sign * accuracy["value"]
    return max(scores, key=lambda name: (scores[name], name == best), default=None)


def _sentences(
    result: Mapping[str, Any],
    choices: Mapping[str, Any],
    times: Mapping[str, list[float]],
) -> str:
    if choices["version"] == result["default"]:
        first = _keep_sentence(choices, times)
    else:
        first = _serve_sentence(result, choices["version"], times)
    return f"{first}. {_second_sentence(result, choices)}"


def _keep_sentence(choices: Mapping[str, Any], times: Mapping[str, list[float]]) -> str:
    best, fastest = choices["version"], choices["fastest"]
    text = f"Keep {best}, the default version: {_speed(times[best])}"
    if best != fastest:
        against = _against(times, fastest, best)
        return f"{text}, {against}; the file of {fastest} is not smaller"
    if len(times) > 1:
        return f"{text}, and none that answers as well is faster"
    return text


def _serve_sentence(
    result: Mapping[str, Any], best: str, times: Mapping[str, list[float]]
) -> str:
    versions, default = result["versions"], result["default"]
    text = f"Serve {best}: {_speed(times[best])}"
    if default in times:
        against = _against(times, default, best)
        text += f", {against}; {default} is the default version"
    if default in versions:
        text += _saving(versions[best]["file_bytes"], versions[default]["file_bytes"])
    if default not in times:
        text += f"; {default}, the default version, {_absence(default, versions)}"
    return text


def _absence(default: str, versions: Mapping[str, Any]) -> str:
    """Return why the default version is not among the choices."""
    if default not in versions:
        return "was not compared"
    if versions[default]["test"]["worse"]:
        return "is measurably worse"
    return "may lose more than the margin"


def _saving(size: int, default_size: int) -> str:
    """Return by how much a file is smaller; empty if it is not."""
    if size >= default_size:
        return ""
    return f", and needs {human_bytes(default_size)} instead of {human_bytes(size)}"


def _speed(times: Sequence[float]) -> str:
    turns = plural(len(times), "turn")
    mean = two_digits(geometric_mean(times))
    return f"its run takes {mean} ms on average of {turns}"


def two_digits(value: float) -> str:
    """Format a number with two significant digits and no exponent."""
    rounded = float(f"{value:.2g}")
    if rounded >= 10:
        return f"{rounded:,.0f}"
    return f"{rounded:.10f}".rstrip("0").rstrip(".")


def _against(times: Mapping[str, list[float]], rival: str, best: str) -> str:
    """Compare the times of the best version with another's in words.

    The intervals of all versions hold together, so also that of the fastest one.
    """
    ratio = time_ratio(times[rival], times[best], max(1, len(times) - 1))
    is_faster = ratio.value >= 1
    if not is_faster:
        ratio = _inverse(ratio)
    turns = plural(len(times[best]), "turn")
    if ratio.low is None or ratio.high is None:
        return _without_interval(is_faster, rival, turns)
    figures = f"{two_digits(ratio.low)} to {two_digits(ratio.high)}"
    relation = "as fast as" if is_faster else "as long as"
    if ratio.low <= 1:
        return (
            f"not measurably different from {rival} "
            f"({two_digits(ratio.value)} times {relation} it; {figures})"
        )
    return (
        f"at least {two_digits(ratio.low)} times {relation} {rival} "
        f"({two_digits(ratio.value)}; 95% interval {figures})"
    )


def _inverse(ratio: Estimate) -> Estimate:
    if ratio.low is None or ratio.high is None:
        return Estimate(1 / ratio.value, None, None)
    return Estimate(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)


def _without_interval(is_faster: bool, rival: str, turns: str) -> str:
    relation = "faster" if is_faster else "slower"
    return (
        f"{relation} than {rival} by an unknown factor, as {turns} of the "
        f"{LEAST_FOR_INTERVAL} needed were measured"
    )


def _second_sentence(result: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    best, reference = choices["version"], result["reference"]
    facts = result["versions"][best]
    head = _quality(facts, reference, is_reference=best == reference)
    if choices["smallest"] != best:
        head += f", the smallest is {choices['smallest']}"
    if choices["most_accurate"] not in (None, best):
        head += f", the most accurate is {choices['most_accurate']}"
    number = (facts["accuracy"] or facts["agreement"])["samples"]
    count = _sample_count(number, facts, has_data=bool(result["data"]["samples"]))
    if best == reference:
        return f"{head}; {count}."
    return f"{head}; {count}: {facts['test']['text']}."


def _quality(facts: Mapping[str, Any], reference: str, *, is_reference: bool) -> str:
    """Return how good a version's answers are against the reference's."""
    if is_reference:
        return "It is the reference itself"
    test = facts["test"]
    margin = test.get("margin")
    if margin is not None and margin["is_within"]:
        p = margin["adjusted_p"]
        return (
            f"It is shown to lose less than {margin['margin']:.2%} against {reference} "
            f"(one-sided p = {p:.2g})"
        )
    if facts["accuracy"] is None:
        return f"Its answers are not measurably below the bound against {reference}'s"
    relation = "measurably better" if test.get("better") else "not measurably worse"
    return f"It is {relation} than {reference} (p = {_p(test):.2g})"


def _p(test: Mapping[str, Any]) -> float:
    p: float = test.get("adjusted_p", test["p"])
    return p


def _sample_count(number: int, facts: Mapping[str, Any], *, has_data: bool) -> str:
    if not has_data:
        return plural(number, "random input")
    if facts["accuracy"] is not None:
        return plural(number, "labelled sample")
    return f"{plural(number, 'sample')} without labels"
