"""The table of a comparison as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.recommend import two_digits
from pocketserve_lab.compare.report import (
    score_with_interval,
    verdict,
    with_interval,
)
from pocketserve_lab.compare.statistics import Estimate, time_ratio

COLUMNS = (
    "Version",
    "File",
    "Run p50 (ms)",
    "Speed-up",
    "Same answers",
    "Score",
    "Difference",
    "Worse?",
)
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}

ComparisonResult = Mapping[str, Any]


def numbers_csv(result: ComparisonResult) -> str:
    """Return every figure unrounded, a line for each version."""
    rows = []
    for name in result["versions"]:
        rows.append(numbers_of(result, name))
    return csv_text(list(rows[0]), [list(row.values()) for row in rows])


def numbers_of(result: ComparisonResult, name: str) -> dict[str, Any]:
    """Return a version's figures by column; None where there is none."""
    facts = result["versions"][name]
    test = facts["test"]
    return {
        "version": name,
        "format": facts["format"],
        "file_bytes": facts["file_bytes"],
        **_times(facts, "run_ms"),
        **_times(facts, "answer_ms"),
        **_ends("speedup", speed_up(result, name)),
        "answers_per_s": facts["throughput"]["answers_per_s"],
        "cpu_s": facts["cpu_s"],
        "load_ms": facts["load_ms"],
        "first_answer_ms": facts["first_answer_ms"],
        "private_bytes": facts["memory_bytes"]["private"],
        "peak_bytes": facts["memory_bytes"]["peak"],
        **_ends("same", _share(facts["agreement"])),
        "metric": (facts["accuracy"] or {}).get("metric"),
        **_ends("score", _estimate(facts["accuracy"])),
        "test": test.get("name"),
        **_ends("difference", _estimate(test.get("difference"))),
        "p": test.get("p"),
        "adjusted_p": test.get("adjusted_p"),
        "provable_loss": test.get("provable_loss"),
        "worse": test["worse"],
        "within_margin": (test.get("margin") or {}).get("is_within"),
    }


def _times(facts: Mapping[str, Any], key: str) -> dict[str, float | None]:
    """Return the percentiles of a time, the median with its interval."""
    percentiles = facts[key]
    name = key.removesuffix("_ms")
    columns = _ends(f"{name}_p50_ms", _estimate(percentiles["p50"]))
    columns[f"{name}_p90_ms"] = percentiles["p90"]["value"]
    columns[f"{name}_p99_ms"] = percentiles["p99"]["value"]
    return columns


def _ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return the columns of an estimate."""
    if estimate is None:
        estimate = Estimate(None, None, None)  # type: ignore[arg-type]
    value, low, high = estimate
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _estimate(figures: Mapping[str, Any] | None) -> Estimate | None:
    if figures is None:
        return None
    return Estimate(figures["value"], figures["low"], figures["high"])


def _share(agreement: Mapping[str, Any] | None) -> Estimate | None:
    return None if agreement is None else _estimate(agreement["share"])


def speed_up(result: ComparisonResult, name: str) -> Estimate:
    """Return how many times as fast as the reference a version is.

    The intervals of all versions hold together.
    """
    versions = result["versions"]
    times = _turn_means(versions[name])
    reference = _turn_means(versions[result["reference"]])
    return time_ratio(reference, times, max(1, len(versions) - 1))


def _turn_means(facts: Mapping[str, Any]) -> list[float]:
    return list(map(fmean, facts["samples"]["run_ms"]))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return lines of CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()


def samples_csv(runs: Sequence[ComparisonResult]) -> str:
    """Return each timed run: a line for each sample."""
    rows = []
    for number, run in enumerate(runs, 1):
        for name, facts in run["versions"].items():
            rows += _sample_rows(number, name, facts["samples"])
    header = ("repeat", "version", "turn", "place", "run_ms", "answer_ms")
    return csv_text(header, rows)


def _sample_rows(
    repeat: int, name: str, samples: Mapping[str, Any]
) -> list[tuple[int, str, int, int, float, float]]:
    """Return the lines of one version; run and answer belong together."""
    rows = []
    turns = zip(samples["run_ms"], samples["answer_ms"], strict=True)
    for turn, (runs, answers) in enumerate(turns, 1):
        for place, (run, answer) in enumerate(zip(runs, answers, strict=False), 1):
            rows.append((repeat, name, turn, place, run, answer))
    return rows


def markdown_table(result: ComparisonResult) -> str:
    """Return the table for people in Markdown."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for row in _rows(result):
        lines.append(_line([cell.replace("|", r"\|") for cell in row]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def latex_table(result: ComparisonResult) -> str:
    """Return the table for people as a LaTeX ``tabular`` with booktabs' rules."""
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(COLUMNS) - 1)}}}",
        r"\toprule",
        _latex_line(COLUMNS),
        r"\midrule",
        *map(_latex_line, _rows(result)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    """Return a text that LaTeX prints as it is."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def _rows(result: ComparisonResult) -> list[list[str]]:
    return [_row(result, name) for name in result["versions"]]


def _row(result: ComparisonResult, name: str) -> list[str]:
    """Return a version's cells in the order of :data:`COLUMNS`."""
    facts = result["versions"][name]
    is_reference = name == result["reference"]
    share = _share(facts["agreement"])
    return [
        name,
        human_bytes(facts["file_bytes"]),
        with_interval(facts["run_ms"]["p50"]),
        "1" if is_reference else _factor(speed_up(result, name)),
        "reference" if is_reference else _percent(share, ".1%"),
        score_with_interval(facts["accuracy"]),
        "-" if is_reference else _difference(facts),
        "" if is_reference else verdict(facts["test"]),
    ]


def _factor(ratio: Estimate) -> str:
    """Format a speed-up; without an interval it isn't named."""
    if ratio.low is None or ratio.high is None:
        return "too few turns"
    ends = f"{two_digits(ratio.low)} to {two_digits(ratio.high)}"
    return f"{two_digits(ratio.value)} ({ends})"


def _difference(facts: Mapping[str, Any]) -> str:
    """Format the change of the score, with its interval."""
    difference = _estimate(facts["test"].get("difference"))
    accuracy = facts["accuracy"]
    is_share = accuracy is not None and accuracy["more_is_better"]
    return _percent(difference, "+.1%" if is_share else "+.3g")


def _percent(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return "-"
    text = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({estimate.low:{form}} to {estimate.high:{form}})"
