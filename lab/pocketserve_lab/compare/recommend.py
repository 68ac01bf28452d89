"""Recommend a version by a stated rule, in two sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from pocketserve.messages import plural
from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.statistics import Estimate, least_provable_loss, time_ratio

SAME_SPEED = 1.1
SAME_SPEED_IN_NOISE = 1.25
"""Versions up to so much slower than the fastest are as fast; the smaller file wins.

The second limit applies where chance may explain the rest.
"""

RULE = (
    "the fastest version that is not measurably worse than the reference "
    "(p < 0.05, paired), by the geometric mean of its turns' times; of versions within "
    f"{SAME_SPEED - 1:.0%} of it, or {SAME_SPEED_IN_NOISE - 1:.0%} where that may "
    "be chance, the smallest file."
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
    versions = result["versions"]
    good = {}
    for name, facts in versions.items():
        if not facts["test"]["worse"]:
            good[name] = facts
    if not good:
        return dict(NOTHING)
    times = {name: _turn_means(facts) for name, facts in good.items()}
    fastest = min(good, key=lambda name: geometric_mean(times[name]))
    equal = _equally_fast(times, fastest)
    sizes = {name: facts["file_bytes"] for name, facts in good.items()}
    best = min(equal, key=lambda name: (sizes[name], name != result["default"], name))
    choices = {
        "version": best,
        "fastest": fastest,
        "smallest": min(good, key=lambda name: (sizes[name], name)),
        "most_accurate": _most_accurate(versions, best),
        "equally_fast": equal,
        "rule": RULE,
    }
    return {**choices, "sentences": _sentences(result, choices, times)}


def _turn_means(facts: Mapping[str, Any]) -> list[float]:
    return list(map(fmean, facts["samples"]["run_ms"]))


def _equally_fast(times: Mapping[str, list[float]], fastest: str) -> list[str]:
    """Return the versions as fast as the fastest one."""
    equal = []
    for name in times:
        ratio = time_ratio(times[name], times[fastest])
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
        against = _against(time_ratio(times[fastest], times[best]))
        return f"{text}, {against} {fastest}, whose file is not smaller"
    if len(times) > 1:
        return f"{text}, and none that answers as well is faster"
    return text


def _serve_sentence(
    result: Mapping[str, Any], best: str, times: Mapping[str, list[float]]
) -> str:
    versions, default = result["versions"], result["default"]
    text = f"Serve {best}: {_speed(times[best])}"
    if default in times:
        against = _against(time_ratio(times[default], times[best]))
        text += f", {against} {default}, the default version"
    if default in versions:
        text += _saving(versions[best]["file_bytes"], versions[default]["file_bytes"])
    if default not in times:
        text += f"; {default}, the default version, {_absence(default, versions)}"
    return text


def _absence(default: str, versions: Mapping[str, Any]) -> str:
    """Return why the default version is not among the choices."""
    return "is measurably worse" if default in versions else "was not compared"


def _saving(size: int, default_size: int) -> str:
    """Return by how much a file is smaller; empty if it is not."""
    if size >= default_size:
        return ""
    return f", with {human_bytes(size)} instead of {human_bytes(default_size)}"


def _speed(times: Sequence[float]) -> str:
    return f"its run takes {geometric_mean(times):.3g} ms on average"


def _against(ratio: Estimate) -> str:
    """Return a ratio of times in words, with its interval."""
    value, low, high = ratio
    if f"{value:.2g}" == "1":
        return "about as fast as"
    relation = "as fast as"
    if value < 1:
        relation = "as long as"
        value = 1 / value
        if low is not None and high is not None:
            low, high = 1 / high, 1 / low
    interval = ""
    if low is not None and high is not None:
        interval = f" ({low:.2g} to {high:.2g})"
    return f"{value:.2g} times{interval} {relation}"


def _second_sentence(result: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    best, reference = choices["version"], result["reference"]
    facts = result["versions"][best]
    test = facts["test"]
    head = _quality(facts, reference, is_reference=best == reference)
    if choices["smallest"] != best:
        head += f", the smallest is {choices['smallest']}"
    if choices["most_accurate"] not in (None, best):
        head += f", the most accurate is {choices['most_accurate']}"
    number = (facts["accuracy"] or facts["agreement"])["samples"]
    count = _sample_count(number, facts, has_data=bool(result["data"]["samples"]))
    if test["name"].startswith("McNemar"):
        return f"{head}, and {count} {_provable(number)}."
    if best == reference:
        return f"{head}; {count}."
    return f"{head}; {count}: {test['text']}."


def _quality(facts: Mapping[str, Any], reference: str, *, is_reference: bool) -> str:
    """Return how good a version's answers are against the reference's."""
    if is_reference:
        return "It is the reference itself"
    test = facts["test"]
    if facts["accuracy"] is None:
        text = test["text"]
        return f"Its answers do not measurably differ from {reference}'s ({text})"
    relation = "measurably better" if test.get("better") else "not measurably worse"
    return f"It is {relation} than {reference} (p = {test['p']:.2g})"


def _sample_count(number: int, facts: Mapping[str, Any], *, has_data: bool) -> str:
    if not has_data:
        return plural(number, "random input")
    if facts["accuracy"] is not None:
        return plural(number, "labelled sample")
    return f"{plural(number, 'sample')} without labels"


def _provable(number: int) -> str:
    """Return the smallest loss that so many samples can show."""
    least = least_provable_loss()
    if number < least:
        return f"cannot show a loss, which takes {least}"
    return f"can show a loss from {least / number:.1%} on"
