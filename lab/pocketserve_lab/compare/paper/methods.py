"""The paragraph on methods: the exact protocol of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.messages import plural
from pocketserve_lab.compare.paper.tables import ComparisonResult
from pocketserve_lab.compare.report import data_summary
from pocketserve_lab.compare.session import (
    ANSWERS_AT_A_TIME,
    THROUGHPUT_ROUNDS,
    THROUGHPUT_S,
    TURN_S,
    TURN_SAMPLES,
)
from pocketserve_lab.compare.significance.verdicts import AGREEMENT_BOUND, LEAST_LOSS
from pocketserve_lab.compare.statistics import LEAST_FOR_INTERVAL
from pocketserve_lab.compare.worker import WARM_S


def methods_text(
    result: ComparisonResult, environment: Mapping[str, Any], seconds: float
) -> str:
    """Return the methods of a comparison in Markdown."""
    parts = [
        f"# Methods: {result['model']}",
        _subject(result, environment),
        _timing(result, seconds),
        _answers(result),
        _decisions(result),
        _remarks(result),
        "Files: `table.csv` has every figure unrounded, `samples.csv` every timed run, "
        "`result.json` everything, `environment.json` the device and the software.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _subject(result: ComparisonResult, environment: Mapping[str, Any]) -> str:
    """Describe the versions, the device and the software."""
    versions = []
    for name, facts in result["versions"].items():
        threads = plural(facts["threads"], "thread")
        versions.append(f"{name} ({facts['runtime']}, {facts['device']}, {threads})")
    cpu = environment["cpu"].get("model name", environment["machine"])
    cores = plural(environment["cores"] or 1, "core")
    commit = environment["commit"] or "not from a Git checkout"
    return (
        f"We compared {plural(len(versions), 'version')} of {result['model']} "
        f"({result['task']}): {', '.join(versions)}. The device was {cpu} with {cores} "
        f"and {environment['system']}, with Python {environment['python']} and "
        f"Pocketserve {result['pocketserve']} (commit {commit}). The data were "
        f"{data_summary(result['data'])}; the reference version was "
        f"{result['reference']}."
    )


def _timing(result: ComparisonResult, seconds: float) -> str:
    """Describe how times were measured."""
    turns = plural(result["recommendation"]["turns"], "turn")
    return (
        "Each version ran in a process of its own and was loaded once before. After all "
        f"samples were answered once ({ANSWERS_AT_A_TIME} at a time), the versions took "
        f"turns of up to {TURN_S * 1e3:g} ms and {TURN_SAMPLES} runs in rotating order, "
        f"for {seconds:g} s in total and at least {LEAST_FOR_INTERVAL} turns where four "
        f"times that time allowed; this gave {turns}. The first {WARM_S * 1e3:g} ms "
        "of a turn do not count. p50 is the geometric mean of the turns' medians, with "
        "a 95 % interval by Student's t on their logarithms. Speed-ups are geometric "
        "means of the ratios of turns in the same round, with simultaneous 95 % "
        "intervals (t, Bonferroni over the versions). Throughput is the median of "
        f"{THROUGHPUT_ROUNDS} turns of {THROUGHPUT_S:g} s with several clients."
    )


def _answers(result: ComparisonResult) -> str:
    """Describe how answers were judged."""
    if result["data"]["labelled"]:
        return (
            "Accuracies have Wilson's 95 % interval, other scores Hall's. Differences "
            "of accuracy were tested by McNemar's exact test, with Tango's 95 % score "
            "interval; other scores by a paired permutation test, where also the "
            "interval must exclude 0, and changes below "
            f"{LEAST_LOSS:.1%} count as none. {_MULTIPLE}"
        )
    margin = result["margin"]
    bound = AGREEMENT_BOUND if margin is None else 1 - margin
    return (
        "Without labels, a version's answers were compared with the reference's: the "
        "share of equal answers has Wilson's 95 % interval, and was tested against a "
        f"bound of {bound:.1%} by the exact "
        f"binomial test. {_MULTIPLE}"
    )


_MULTIPLE = (
    "The p values of several versions are adjusted by Holm's method. The loss that the "
    "data would show has a power of 80 % at the spread or the share of changed answers "
    "seen, at the significance that Holm's first step demands; scores that all "
    "differ equally cannot show one."
)


def _decisions(result: ComparisonResult) -> str:
    """State the rule, and the margin's test."""
    text = f"Rule of the recommendation: {result['recommendation']['rule']}"
    if result["margin"] is None:
        return text
    return (
        f"{text} The margin was {result['margin']:.2%}: a version is non-inferior if "
        "the one-sided test of a larger loss (Tango's score, or t, for scores from 0 to "
        "1 at least Tango's) has p < 0.025, adjusted by Holm's method."
    )


def _remarks(result: ComparisonResult) -> str:
    """Mention repeats, versions left out and a loaded device."""
    remarks = []
    if "repeats" in result:
        number = result["repeats"]["number"]
        remarks.append(
            f"The protocol ran {number} times; tables and figures show the first run, "
            "`result.json` the spread."
        )
    if result["skipped"]:
        remarks.append(f"Not compared: {', '.join(result['skipped'])}.")
    warning = result["recommendation"]["load_warning"]
    if warning:
        remarks.append(warning)
    return " ".join(remarks)
