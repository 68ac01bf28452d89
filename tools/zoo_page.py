"""The tables of docs/generated/zoo.md, made of the zoo's results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from zoo_results import PATHS, Architecture, ConversionPath, Results

from pocketserve_lab.convert.plan import TITLES
from pocketserve_lab.convert.verify import BOUNDS

BEGIN = "<!-- From here on, tools/zoo.py writes this page from zoo.jsonl. -->\n"
STATES = ("ok", "refused", "failed")
LIBRARIES = {"torchvision": "torchvision", "keras": "keras.applications"}


def with_tables(text: str, results: Results) -> str:
    """Return a page with everything after the mark as the results have it.

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
    names = [
        item.name for item in results.architectures if item.library == path.library
    ]
    lines = [
        results.conversions[name, path.name]
        for name in names
        if (name, path.name) in results.conversions
    ]
    counts = Counter(line["state"] for line in lines)
    good = [line for line in lines if line["state"] == "ok"]
    classes = [line["same_class"] for line in good if line["same_class"] is not None]
    ratios = [
        result / original
        for original, result in (line["p50_ms"] for line in good if line.get("p50_ms"))
    ]
    return [
        title_of(path),
        f"{counts['ok'] / len(lines):.0%} of {len(lines)}" if lines else "",
        *(str(counts[state]) for state in STATES),
        str(len(names) - len(lines)),
        f"{max(line['error'] for line in good):.1e} (bound {BOUNDS[path.quantize].error:g})"
        if good
        else "",
        f"{min(classes):.0%}" if classes else "",
        f"{median(ratios):.2f} ({len(ratios)})" if ratios else "not measured",
    ]


def title_of(path: ConversionPath) -> str:
    """Return what people call a path."""
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
    return f"{line['error']:.0e}" if line["state"] == "ok" else str(line["state"])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "".join(f"{line}\n" for line in lines)
