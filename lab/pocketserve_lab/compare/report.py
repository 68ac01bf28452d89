"""A comparison as a table for the terminal.

The page and the picture share its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

HEADER = (
    "VERSION",
    "FILE",
    "RUN p50 ms",
    "p90",
    "p99",
    "ANSWER p50 ms",
    "ANSWERS/s",
    "CPU ms",
    "LOAD ms",
    "FIRST ms",
    "MEMORY",
    "PEAK",
    "SAME",
    "SCORE",
    "WORSE?",
)


def table_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each version, in the order of :data:`HEADER`.

    The recommended version is marked with a ``*``.
    """
    recommended = result["recommendation"]["version"]
    rows = []
    for name, facts in result["versions"].items():
        title = f"{name} *" if name == recommended else name
        rows.append([title, *_cells(facts, name == result["reference"])])
    return rows


def _cells(facts: Mapping[str, Any], is_reference: bool) -> list[str]:
    memory = facts["memory_bytes"]
    agreement, worse = "reference", ""
    if not is_reference:
        agreement = _agreement(facts["agreement"])
        worse = verdict(facts["test"])
    return [
        human_bytes(facts["file_bytes"]),
        *_time_cells(facts),
        _size(memory["private"]),
        _size(memory["peak"]),
        agreement,
        score_text(facts["accuracy"]),
        worse,
    ]


def _time_cells(facts: Mapping[str, Any]) -> list[str]:
    run = facts["run_ms"]
    return [
        with_interval(run["p50"]),
        number(run["p90"]["value"]),
        number(run["p99"]["value"]),
        number(facts["answer_ms"]["p50"]["value"]),
        number(facts["throughput"]["answers_per_s"]),
        number(facts["cpu_s"] * 1e3),
        number(facts["load_ms"]),
        number(facts["first_answer_ms"]),
    ]


def _size(size: int | None) -> str:
    return "?" if size is None else human_bytes(size)


def number(value: float) -> str:
    """Format a number with three significant digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.2f}"
    if value >= 0.1:
        return f"{value:.3f}"
    return f"{value:.4f}"


def with_interval(estimate: Mapping[str, Any]) -> str:
    """Format a number with its 95 % interval, if any."""
    value = number(estimate["value"])
    if estimate["low"] is None:
        return f"{value} (no interval)"
    return f"{value} ({number(estimate['low'])}-{number(estimate['high'])})"


def _agreement(agreement: Mapping[str, Any] | None) -> str:
    if agreement is None:
        return "-"
    share = f"{agreement['share']['value']:.0%}"
    largest = agreement["largest_difference"]
    if largest is None:
        return f"{share}, other count"
    return f"{share}, ±{largest:.1g}"


def score_text(accuracy: Mapping[str, Any] | None) -> str:
    """Format the score of labelled data with its name."""
    if accuracy is None:
        return "-"
    value = accuracy["value"]
    text = f"{value:.1%}" if accuracy["more_is_better"] else f"{value:.4g}"
    return f"{text} {accuracy['metric']}"


def verdict(test: Mapping[str, Any]) -> str:
    """Return whether a version is measurably worse, with the test's p."""
    if test["worse"]:
        text = "YES"
    elif test.get("better"):
        text = "no, better"
    else:
        text = "no"
    if "p" in test:
        text += f" (p = {test.get('adjusted_p', test['p']):.2g})"
    margin = test.get("margin")
    if margin is not None:
        relation = "within" if margin.get("is_within") else "NOT SHOWN within"
        text += f", {relation} {margin['margin']:.2%}"
    return text


def print_report(result: Mapping[str, Any]) -> None:
    """Print the table, the versions left out, and the recommendation."""
    _print_head(result)
    print_wide_table(HEADER, table_rows(result))
    print_text(f"\n{LEGEND}")
    print_text(interval_warning(result))
    for name, facts in result["versions"].items():
        print_text(judgement(name, facts, is_reference=name == result["reference"]))
        if facts["device"] != "cpu":
            print_text(f"{name}: runs on {facts['device']} ({facts['runtime']})")
    print_skipped(result["skipped"])
    _print_spread(result)
    print_text(f"\n{result['recommendation']['sentences']}")
    print_text(f"Rule: {result['recommendation']['rule']}")


def _print_spread(result: Mapping[str, Any]) -> None:
    """Print the least and the largest figures of repeated runs."""
    repeats = result.get("repeats")
    if repeats is None:
        return
    print_text(f"\nSpread over {plural(repeats['number'], 'run')}:")
    print_wide_table(("VERSION", "RUN p50 ms", "SCORE", "MEMORY"), spread_rows(repeats))


def spread_rows(repeats: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each version, from its least to its largest figures."""
    rows = []
    for name, figures in repeats["spread"].items():
        times = _span(figures["run_p50_ms"], number)
        scores = _span(figures["score"], "{:.4g}".format)
        rows.append([name, times, scores, _span(figures["private_bytes"], human_bytes)])
    return rows


def _span(figure: Mapping[str, Any] | None, form: Callable[..., str]) -> str:
    if figure is None:
        return "-"
    return f"{form(figure['low'])} to {form(figure['high'])}"


def _print_head(result: Mapping[str, Any]) -> None:
    """Print the model, the data and the device."""
    device = result["device"]
    content = data_summary(result["data"])
    print_text(printable(f"{result['model']}, {result['task']}; {content}"))
    cores = plural(device["cores"], "core")
    print(printable(f"{device['machine']}, {cores}, {device['system']}"), end="\n\n")


def data_summary(data: Mapping[str, Any]) -> str:
    """Describe the data: samples, labels and origin."""
    if not data["samples"]:
        return "random numbers"
    samples = plural(len(data["samples"]), "sample")
    return f"{samples}, {data['labelled']} with a label, {data['origin']}"


LEGEND = (
    "RUN is the model alone, with the 95 % interval of the geometric mean of its "
    "turns' medians; p90 and p99 describe all runs measured. ANSWER includes "
    "decoding the data. ANSWERS/s is with several clients at a time; CPU is the "
    "processor time of an answer, which the battery pays; MEMORY is private, without "
    "the memory used before the model was loaded, and PEAK the most that was resident."
)


def judgement(name: str, facts: Mapping[str, Any], *, is_reference: bool) -> str:
    """Return a line on a version's answers."""
    parts = []
    accuracy = facts["accuracy"]
    if accuracy is not None:
        parts.append(score_with_interval(accuracy))
        parts += [f"{key} {text}" for key, text in figures_of(accuracy)]
    test = facts["test"]
    if not is_reference and test["text"]:
        parts.append(f"{test.get('name', 'test')}: {test['text']}")
    if not parts:
        return ""
    return f"{name}: {'; '.join(parts)}"


def score_with_interval(accuracy: Mapping[str, Any] | None) -> str:
    """Format a score with its name and interval."""
    text = score_text(accuracy)
    if accuracy is None or accuracy["low"] is None:
        return text
    form = "{:.1%}" if accuracy["more_is_better"] else "{:.4g}"
    low = form.format(accuracy["low"])
    high = form.format(accuracy["high"])
    return f"{text} ({low} to {high})"


def interval_warning(result: Mapping[str, Any]) -> str:
    """Return a warning if a time has no interval."""
    versions = result["versions"].values()
    if all(facts["run_ms"]["p50"]["low"] is not None for facts in versions):
        return ""
    return (
        f"Times without an interval come from fewer than {LEAST_FOR_INTERVAL} turns: "
        "chance may explain their differences. Give more --seconds."
    )


def print_skipped(skipped: Mapping[str, str]) -> None:
    """Print the versions left out, with the reason.

    Versions that need the same framework share a line.
    """
    if skipped:
        print("\nNot compared:")
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        command = missing_command(reason)
        if command:
            reason = f"waiting for a framework: {command}"
        names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        print_text(printable(f"  {', '.join(names)}: {reason}"), indent=" " * 4)


def figures_of(accuracy: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the further figures of an accuracy as names and texts."""
    return [(name, f"{value:.4g}") for name, value in accuracy["figures"].items()]
