"""The tables of docs/generated/zoo.md, made of the zoo's results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from zoo_results import PATHS, Architecture, ConversionPath, Results

from pocketserve_lab.convert.plan import TITLES
from pocketserve_lab.convert.verify import BOUNDS

BEGIN = "<!-- From here on, tools/zoo.py writes this page from zoo.jsonl. -->\n"
STATES = ("ok", "refused", "failed")
LIBRARIES = {"torchvision": "torchvision", "keras": "keras.applications"}


def with_tables(text: str, results: Results) -> str:
    """Replace everything after the mark by the tables.

    Raises:
        ValueError: it has no such mark.
    """
    head, mark, _ = text.partition(BEGIN)
    if not mark:
        raise ValueError(f"the page has no line {BEGIN.strip()!r}")
    sections = (_summary(results), _reasons(results), _architectures(results))
    return head + mark + "".join(f"\n{section}" for section in sections)


def _summary(results: Results) -> str:
    rows = [_summary_row(path, results) for path in PATHS]
    tried = {name for name, _ in results.conversions}
    pairs = sum(
        path.library == item.library for path in PATHS for item in results.architectures
    )
    open_pairs = pairs - len(results.conversions)
    text = (
        f"Of {len(results.architectures)} architectures, {len(tried)} were tried by at least one path. "
        f"Of {pairs:,} pairs of an architecture and a path,\n"
        f"{len(results.conversions):,} are measured, and {open_pairs:,} are not yet."
    )
    if open_pairs:
        text += " The smallest architectures come first: a share of success is\nthat of the measured ones, not of all."
    text += "\n\n"
    head = (
        "path",
        "success",
        "ok",
        "refused",
        "failed",
        "not measured",
        "largest difference",
        "same class",
        "time",
    )
    return "## By path\n\n" + text + _table(head, rows)


def _summary_row(path: ConversionPath, results: Results) -> list[str]:
    number = 0
    lines = []
    for item in results.architectures:
        if item.library == path.library:
            number += 1
            line = results.conversions.get((item.name, path.name))
            if line is not None:
                lines.append(line)
    counts = Counter(line["state"] for line in lines)
    share = ""
    if lines:
        share = f"{counts['ok'] / len(lines):.0%} of {len(lines)}"
    good = [line for line in lines if line["state"] == "ok"]
    return [
        title_of(path),
        share,
        *(str(counts[state]) for state in STATES),
        str(number - len(lines)),
        *_quality_cells(path, good),
    ]


def _quality_cells(path: ConversionPath, good: Sequence[dict[str, Any]]) -> list[str]:
    """Return the largest error, the least share of equal classes, and the speed."""
    error = ""
    classes = ""
    speed = "not measured"
    if good:
        bound = BOUNDS[path.quantize].error
        error = f"{max(line['error'] for line in good):.1e} (bound {bound:g})"
    shares = [line["same_class"] for line in good if line["same_class"] is not None]
    if shares:
        classes = f"{min(shares):.0%}"
    ratios = []
    for line in good:
        if line.get("p50_ms"):
            original, result = line["p50_ms"]
            ratios.append(result / original)
    if ratios:
        speed = f"{median(ratios):.2f} ({len(ratios)})"
    return [error, classes, speed]


def title_of(path: ConversionPath) -> str:
    """Return a path's title."""
    quantize = "" if path.quantize == "none" else f", {path.quantize}"
    return f"{TITLES[path.source]} → {TITLES[path.kind]}{quantize}"


def _reasons(results: Results) -> str:
    titles = {path.name: title_of(path) for path in PATHS}
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, path), line in results.conversions.items():
        if line["state"] != "ok":
            groups[titles[path], line["state"], line["reason"]].append(name)
    rows = [
        [title, state, _escaped(reason), f"{len(names)}: {', '.join(names)}"]
        for (title, state, reason), names in sorted(
            groups.items(), key=lambda item: (item[0][0], -len(item[1]))
        )
    ]
    heading = "## Reasons\n\n"
    return heading + (
        _table(("path", "", "reason", "architectures"), rows)
        if rows
        else "Nothing was refused.\n"
    )


def _architectures(results: Results) -> str:
    text = "## Architectures\n\n"
    for library, title in LIBRARIES.items():
        paths = [path for path in PATHS if path.library == library]
        items = [item for item in results.architectures if item.library == library]
        rows = [
            [
                item.name,
                item.task,
                f"{item.parameters / 1e6:.1f}",
                "×".join(map(str, item.shape)),
                *(_cell(item, path, results) for path in paths),
            ]
            for item in sorted(items, key=lambda item: (item.task, item.name))
        ]
        head = (
            "architecture",
            "task",
            "million parameters",
            "input",
            *(f"→ {TITLES[path.kind]}" for path in paths),
        )
        text += f"### {title}\n\n{_table(head, rows)}\n"
    return text.rstrip("\n") + "\n"


def _cell(architecture: Architecture, path: ConversionPath, results: Results) -> str:
    line = results.conversions.get((architecture.name, path.name))
    if line is None:
        return ""
    if line["state"] == "ok":
        return f"{line['error']:.0e}"
    return str(line["state"])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "".join(f"{line}\n" for line in lines)
