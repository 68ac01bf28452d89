"""A comparison as a table for the terminal, and as the rows that the page and the picture show, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.doctor.missing_framework import missing_command
from pocketserve.messages import plural
from pocketserve.terminal.output import (
    human_bytes,
    print_text,
    print_wide_table,
    printable,
)
from pocketserve_lab.compare.statistics import LEAST_FOR_INTERVAL
from pocketserve_lab.measurement import load_warning

HEADER = (
    *(
        "VERSION",
        "FILE",
        "RUN p50 ms",
        "p90",
        "p99",
        "ANSWER p50 ms",
        "ANSWERS/s",
        "CPU ms",
        "LOAD ms",
    ),
    *("FIRST ms", "MEMORY", "PEAK", "SAME", "SCORE", "WORSE?"),
)


def table_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of cells for each version, as :data:`HEADER` names them; the recommended one has a ``*``."""
    recommended = result["recommendation"]["version"]
    return [
        [
            name + (" *" if name == recommended else ""),
            *_cells(facts, name == result["reference"]),
        ]
        for name, facts in result["versions"].items()
    ]


def _cells(facts: Mapping[str, Any], is_reference: bool) -> list[str]:
    run, memory = facts["run_ms"], facts["memory_bytes"]
    return [
        human_bytes(facts["file_bytes"]),
        with_interval(run["p50"]),
        number(run["p90"]["value"]),
        number(run["p99"]["value"]),
        number(facts["answer_ms"]["p50"]["value"]),
        number(facts["throughput"]["answers_per_s"]),
        number(facts["cpu_s"] * 1e3),
        number(facts["load_ms"]),
        number(facts["first_answer_ms"]),
        *(
            "?" if memory[kind] is None else human_bytes(memory[kind])
            for kind in ("private", "peak")
        ),
        "reference" if is_reference else _agreement(facts["agreement"]),
        score_text(facts["accuracy"]),
        "" if is_reference else verdict(facts["test"]),
    ]


def number(value: float) -> str:
    """Return a number with three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if value >= 1 else 3 if value >= 0.1 else 4}f}"


def with_interval(estimate: Mapping[str, Any]) -> str:
    """Return a number with its 95 % interval, where it has one."""
    if estimate["low"] is None:
        return f"{number(estimate['value'])} (no interval)"
    return f"{number(estimate['value'])} ({number(estimate['low'])}-{number(estimate['high'])})"


def _agreement(agreement: Mapping[str, Any] | None) -> str:
    if agreement is None:
        return "-"
    largest = agreement["largest_difference"]
    return f"{agreement['share']['value']:.0%}, " + (
        "other count" if largest is None else f"±{largest:.1g}"
    )


def score_text(accuracy: Mapping[str, Any] | None) -> str:
    """Return the score of labelled data with its name."""
    if accuracy is None:
        return "-"
    value = accuracy["value"]
    text = f"{value:.1%}" if accuracy["more_is_better"] else f"{value:.4g}"
    return f"{text} {accuracy['metric']}"


def verdict(test: Mapping[str, Any]) -> str:
    """Return whether a version is measurably worse, with the test's p."""
    p = f" (p = {test['p']:.2g})" if "p" in test else ""
    return (
        "YES" if test["worse"] else "no, better" if test.get("better") else "no"
    ) + p


def print_report(result: Mapping[str, Any]) -> None:
    """Print the table, what was left out and why, and the recommendation."""
    data, device = result["data"], result["device"]
    samples = len(data["samples"])
    content = (
        f"{plural(samples, 'sample')}, {data['labelled']} with a label"
        if samples
        else "random numbers"
    )
    origin = f", {data['origin']}" if samples else ""
    print_text(printable(f"{result['model']}, {result['task']}; {content}{origin}"))
    print(
        printable(
            f"{device['machine']}, {plural(device['cores'], 'core')}, {device['system']}"
        ),
        end="\n\n",
    )
    if warning := load_warning(device["load"]):
        print_text(warning)
    print_wide_table(HEADER, table_rows(result))
    print_text(f"\n{LEGEND}")
    print_text(interval_warning(result))
    for name, facts in result["versions"].items():
        print_text(judgement(name, facts, is_reference=name == result["reference"]))
        if facts["device"] != "cpu":
            print_text(f"{name}: runs on {facts['device']} ({facts['runtime']})")
    print_skipped(result["skipped"])
    print_text(f"\n{result['recommendation']['sentences']}")
    print_text(f"Rule: {result['recommendation']['rule']}")


LEGEND = (
    "RUN is the model alone, with the 95 % interval of its median; ANSWER has the decoding of the data, too. "
    "ANSWERS/s is with several callers at a time; CPU is what an answer costs the battery; MEMORY is private, without "
    "what the process held before the model was loaded, and PEAK the most that was resident."
)


def judgement(name: str, facts: Mapping[str, Any], *, is_reference: bool) -> str:
    """Return what is known of a version's answers beside the table: intervals, further figures, the test."""
    parts = []
    if (accuracy := facts["accuracy"]) is not None:
        parts.append(score_with_interval(accuracy))
        parts += [f"{key} {value:.4g}" for key, value in accuracy["figures"].items()]
    if not is_reference and facts["test"]["text"]:
        parts.append(f"{facts['test'].get('name', 'test')}: {facts['test']['text']}")
    return f"{name}: {'; '.join(parts)}" if parts else ""


def score_with_interval(accuracy: Mapping[str, Any] | None) -> str:
    """Return the score of labelled data with its name, and its 95 % interval where it has one."""
    if accuracy is None or accuracy["low"] is None:
        return score_text(accuracy)
    form = "{:.1%}" if accuracy["more_is_better"] else "{:.4g}"
    return f"{score_text(accuracy)} ({form.format(accuracy['low'])} to {form.format(accuracy['high'])})"


def interval_warning(result: Mapping[str, Any]) -> str:
    """Return a sentence where the times have no interval; empty otherwise."""
    if all(
        facts["run_ms"]["p50"]["low"] is not None
        for facts in result["versions"].values()
    ):
        return ""
    return (
        f"Times without an interval come from fewer than {LEAST_FOR_INTERVAL} turns: chance may explain their "
        "differences. Give more --seconds."
    )


def print_skipped(skipped: Mapping[str, str]) -> None:
    """Print which versions were left out, and why: those that wait for the same framework on one line."""
    if skipped:
        print("\nNot compared:")
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        command = missing_command(reason)
        reasons.setdefault(
            f"waiting for a framework: {command}" if command else reason, []
        ).append(name)
    for reason, names in reasons.items():
        print_text(printable(f"  {', '.join(names)}: {reason}"), indent=" " * 4)


def figures_of(accuracy: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the further figures of an accuracy as names and texts."""
    return [(name, f"{value:.4g}") for name, value in accuracy["figures"].items()]
