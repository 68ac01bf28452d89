"""Recommend a version by a stated rule, in two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, geometric_mean
from typing import Any

from pocketserve.messages import plural
from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.statistics import Estimate, least_provable_loss, time_ratio

SAME_SPEED, SAME_SPEED_IN_NOISE = 1.1, 1.25
"""Versions whose run takes up to so many times the fastest one's count as equally fast, and the smaller file is better:
always, and where chance explains the rest."""

RULE = (
    "the fastest version that is not measurably worse than the reference (p < 0.05, paired), by the geometric mean of "
    f"its turns' times; of versions within {SAME_SPEED - 1:.0%} of it, or {SAME_SPEED_IN_NOISE - 1:.0%} where that may "
    "be chance, the smallest file."
)


def recommend(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``version``, the other choices, the rule and the two ``sentences``.

    Args:
        result: as :func:`pocketserve_lab.compare.session.compare_versions` makes it.
    """
    versions = result["versions"]
    good = {
        name: facts for name, facts in versions.items() if not facts["test"]["worse"]
    }
    if not good:
        return {
            "version": None,
            "rule": RULE,
            "sentences": "No version answers as it should. Nothing is recommended.",
        }
    times = {
        name: [fmean(turn) for turn in facts["samples"]["run_ms"]]
        for name, facts in good.items()
    }
    fastest = min(good, key=lambda name: geometric_mean(times[name]))
    ratios = {name: time_ratio(times[name], times[fastest]) for name in good}
    equal = [
        name for name, ratio in ratios.items() if ratio.value <= _same_speed(ratio)
    ]
    best = min(
        equal,
        key=lambda name: (good[name]["file_bytes"], name != result["default"], name),
    )
    choices = {
        "version": best,
        "fastest": fastest,
        "smallest": min(good, key=lambda name: (good[name]["file_bytes"], name)),
        "most_accurate": _most_accurate(versions, best),
        "equally_fast": equal,
        "rule": RULE,
    }
    return {**choices, "sentences": _sentences(result, choices, times)}


def _same_speed(ratio: Estimate) -> float:
    return SAME_SPEED_IN_NOISE if ratio.low is None or ratio.low <= 1.0 else SAME_SPEED


def _most_accurate(versions: Mapping[str, Any], best: str) -> str | None:
    """Return the version with the best score, of equal ones the recommended one; None where there is no truth."""
    scores = {
        name: facts["accuracy"]["value"]
        * (1 if facts["accuracy"]["more_is_better"] else -1)
        for name, facts in versions.items()
        if facts["accuracy"] is not None
    }
    return max(scores, key=lambda name: (scores[name], name == best), default=None)


def _sentences(
    result: Mapping[str, Any],
    choices: Mapping[str, Any],
    times: Mapping[str, list[float]],
) -> str:
    versions, best, default = result["versions"], choices["version"], result["default"]
    facts, fastest = versions[best], choices["fastest"]
    speed = f"its run takes {geometric_mean(times[best]):.3g} ms on average"
    if best == default:
        first = f"Keep {best}, the default version: {speed}"
        if best != fastest:
            first += f", {_against(time_ratio(times[fastest], times[best]))} {fastest}, whose file is not smaller"
        elif len(times) > 1:
            first += ", and none that answers as well is faster"
        return f"{first}. {_second_sentence(result, choices)}"
    first = f"Serve {best}: {speed}"
    if default in times:
        first += f", {_against(time_ratio(times[default], times[best]))} {default}, the default version"
    if facts["file_bytes"] < versions.get(default, facts)["file_bytes"]:
        first += f", with {human_bytes(facts['file_bytes'])} instead of {human_bytes(versions[default]['file_bytes'])}"
    if default not in times:
        reason = "is measurably worse" if default in versions else "was not compared"
        first += f"; {default}, the default version, {reason}"
    return f"{first}. {_second_sentence(result, choices)}"


def _against(ratio: Estimate) -> str:
    """Return how many times as fast a version is, or how many times as long it takes, with the interval."""
    ends = None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    if f"{ratio.value:.2g}" == "1":
        return "about as fast as"
    if ratio.value >= 1:
        interval = f" ({ends[0]:.2g} to {ends[1]:.2g})" if ends else ""
        return f"{ratio.value:.2g} times{interval} as fast as"
    interval = f" ({1 / ends[1]:.2g} to {1 / ends[0]:.2g})" if ends else ""
    return f"{1 / ratio.value:.2g} times{interval} as long as"


def _second_sentence(result: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    versions, best, reference = (
        result["versions"],
        choices["version"],
        result["reference"],
    )
    facts = versions[best]
    test, is_reference = facts["test"], best == reference
    if is_reference:
        head = "It is the reference itself"
    elif facts["accuracy"] is not None:
        relation = "measurably better" if test.get("better") else "not measurably worse"
        head = f"It is {relation} than {reference} (p = {test['p']:.2g})"
    else:
        head = (
            f"Its answers are not measurably others than {reference}'s ({test['text']})"
        )
    number = (facts["accuracy"] or facts["agreement"])["samples"]
    if not result["data"]["samples"]:
        count = plural(number, "made-up input")
    elif facts["accuracy"] is not None:
        count = plural(number, "labelled sample")
    else:
        count = plural(number, "sample") + " without labels"
    accurate = choices["most_accurate"]
    extra = f", the most accurate is {accurate}" if accurate not in (None, best) else ""
    smallest = (
        f", the smallest is {choices['smallest']}"
        if choices["smallest"] != best
        else ""
    )
    if test["name"].startswith("McNemar"):
        return f"{head}{smallest}{extra}, and {count} {_provable(number)}."
    return f"{head}{smallest}{extra}; {count}{'' if is_reference else ': ' + test['text']}."


def _provable(number: int) -> str:
    """Return the least loss that so many samples could have shown."""
    least = least_provable_loss()
    if number < least:
        return f"cannot show a loss, which takes {least}"
    return f"can show a loss from {least / number:.1%} on"
