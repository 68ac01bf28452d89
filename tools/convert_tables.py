"""Write the tables of docs/convert.md, and of conversions and own models.

``python tools/convert_tables.py [FILE]`` first merges the outcomes that ``make
test-convert`` or ``make test-own-models`` has added to a file; ``--check`` only compares
the tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pocketserve_lab.convert.converter import (
    KINDS,
    QUANTIZE_MODES,
    TENSOR_KINDS,
)
from pocketserve_lab.convert.environments import ENVIRONMENTS
from pocketserve_lab.convert.plan import SOURCE_ORDER, TITLES
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.verify import BOUNDS

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "convert.md"
RESULTS = ROOT / "docs" / "generated" / "conversions.md"
OUTCOMES = ROOT / "lab" / "tests" / "convert" / "outcomes.json"
OWN_RESULTS = ROOT / "docs" / "generated" / "own-models.md"
OWN_OUTCOMES = ROOT / "lab" / "tests" / "convert" / "own_outcomes.json"
OWN_COLUMNS = ("right", "fixed", "refused", "wrong", "not run")
_CELL = re.compile(r"(\w+)-from-(\w+)-to-(\w+)-(\w+)")
_NO_WAY = ("no converter makes ", "it is ")
_GOOD = ("agrees", "written")


def guide_tables() -> dict[str, str]:
    """Return the guide's tables by the start of their headers."""
    ways = (
        [
            ", ".join(TITLES[source] for source in converter.sources),
            f"`{converter.kind}`",
            ", ".join(f"`{mode}`" for mode in converter.quantize),
            converter.name,
            f"`{name}`"
            if (name := converter.environment or converter.fallback)
            else "none: runs on the device",
        ]
        for converter in converters()
    )
    bounds = (
        [f"`{mode}`", f"{bound.error:g} of their size", f"{100 * bound.agreement:g} %"]
        for mode, bound in BOUNDS.items()
    )
    return {
        "from | to": _table(
            ("from", "to", "`--quantize`", "converter", "environment"), ways
        ),
        "`--quantize` | outputs": _table(
            (
                "`--quantize`",
                "outputs differ by at most",
                "classifiers: same best class",
            ),
            bounds,
        ),
    }


def result_tables() -> dict[str, str]:
    """Return the tables of outcomes and environments by the start of their headers."""
    outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    modes = [f"`{mode}`" for mode in QUANTIZE_MODES]
    environments = (
        [
            f"`{environment.name}`",
            environment.purpose,
            " ".join(f"`{package}`" for package in environment.packages),
            f"{environment.disk / 1e9:.1f} GB",
        ]
        for environment in ENVIRONMENTS.values()
    )
    return {
        "tried": _table(("tried", "to", *modes), _matrix(outcomes)),
        "rejected": _table(("rejected", "from", "to", "message"), _refusals(outcomes)),
        "environment": _table(("environment", "for", "packages", "disk"), environments),
    }


def own_tables() -> dict[str, str]:
    """Return the tables of own models by the start of their headers."""
    recorded = json.loads(OWN_OUTCOMES.read_text(encoding="utf-8"))
    rows = []
    refusals = []
    for name, entry in recorded.items():
        counts = dict.fromkeys(OWN_COLUMNS, 0)
        counts["not run"] = entry["paths"] - len(entry["outcomes"])
        for way, outcome in entry["outcomes"].items():
            counts[_own_column(outcome)] += 1
            if outcome.startswith("refused: "):
                sentence = outcome.removeprefix("refused: ").replace("|", "/")
                refusals.append([f"`{name}`", f"`{way}`", sentence])
        numbers = [str(counts[column]) for column in OWN_COLUMNS]
        rows.append([f"`{name}`", entry["family"], TITLES[entry["source"]], *numbers])
    head = ("model", "kind of model", "from", *OWN_COLUMNS)
    return {
        "model | kind of model": _table(head, rows),
        "refused | to": _table(("refused", "to", "message"), refusals),
    }


def _own_column(outcome: str) -> str:
    """Return the column that counts an outcome."""
    if ", fixed: " in outcome:
        return "fixed"
    if outcome.startswith("refused: "):
        return "refused"
    return "right" if outcome in ("right", "written") else "wrong"


def _matrix(outcomes: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield how many models agree for each format and kind."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for name, outcome in outcomes.items():
        cells.setdefault(_parts(name)[1:], []).append(outcome)
    for source in SOURCE_ORDER:
        for kind in TENSOR_KINDS:
            row = []
            for mode in QUANTIZE_MODES:
                row.append(_count(cells.get((source, kind, mode), [])))
            if any(row):
                yield [TITLES[source], f"`{kind}`", *row]


def _count(outcomes: Sequence[str]) -> str:
    if not outcomes:
        return "not run"
    if all(outcome.startswith(_NO_WAY) for outcome in outcomes):
        return ""
    return f"{sum(outcome in _GOOD for outcome in outcomes)}/{len(outcomes)}"


def _refusals(outcomes: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield a row for each refusal of an existing converter."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, outcome in sorted(outcomes.items(), key=lambda item: _place(item[0])):
        if outcome not in _GOOD and not outcome.startswith(_NO_WAY):
            model, source, kind, mode = _parts(name)
            sentence = re.sub(
                r"\d\.\d*(?:e[+-]?\d+)? of their size", "… of their size", outcome
            )
            rows.setdefault((model, source, kind, sentence), []).append(f"`{mode}`")
    for (model, source, kind, sentence), modes in rows.items():
        yield [
            f"`{model}`",
            TITLES[source],
            f"`{kind}` {', '.join(modes)}",
            sentence.replace("|", "/"),
        ]


def _parts(name: str) -> tuple[str, ...]:
    """Split a cell into model, format, kind and mode."""
    match = _CELL.fullmatch(name)
    assert match is not None, name
    return match.groups()


def _place(name: str) -> tuple[str, int, int, int]:
    model, source, kind, mode = _parts(name)
    return (
        model,
        SOURCE_ORDER.index(source),
        list(KINDS).index(kind),
        QUANTIZE_MODES.index(mode),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(line)} |\n".replace("| ---", "|---").replace("--- |", "---|")
        for line in lines
    )


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return the page with up-to-date tables."""
    for words, table in tables.items():
        pattern = rf"(?m)^\| {re.escape(words)}.*\n(?:\|.*\n)+"
        text, count = re.subn(pattern, lambda _, table=table: table, text)  # type: ignore[misc]
        assert count == 1, words
    return text


def take_over_own(rows: Sequence[Sequence[str]]) -> None:
    """Merge a run's outcomes of own models into the earlier ones."""
    recorded = json.loads(OWN_OUTCOMES.read_text(encoding="utf-8"))
    for name, way, outcome in rows:
        recorded[name]["outcomes"][way] = outcome
    content = json.dumps(recorded, indent=0, ensure_ascii=False)
    OWN_OUTCOMES.write_text(content + "\n", encoding="utf-8")


def take_over(results: Path) -> None:
    """Merge a run's outcomes into the earlier ones."""
    lines = results.read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0])
    if len(first) == len(("model", "way", "outcome")):
        take_over_own(list(map(json.loads, lines)))
        return
    outcomes = {
        **json.loads(OUTCOMES.read_text(encoding="utf-8")),
        **dict(map(json.loads, lines)),
    }
    ordered = {name: outcomes[name] for name in sorted(outcomes, key=_place)}
    OUTCOMES.write_text(
        json.dumps(ordered, indent=0, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def main() -> int:
    """Rewrite the pages, or check them with ``--check``."""
    only_check = "--check" in sys.argv[1:]
    if not only_check:
        for name in sys.argv[1:]:
            take_over(Path(name))
    is_outdated = False
    pages = (
        (GUIDE, guide_tables()),
        (RESULTS, result_tables()),
        (OWN_RESULTS, own_tables()),
    )
    for page, tables in pages:
        text = page.read_text(encoding="utf-8")
        updated = with_tables(text, tables)
        if only_check:
            is_outdated = is_outdated or updated != text
        else:
            page.write_text(updated, encoding="utf-8")
    return int(is_outdated)


if __name__ == "__main__":
    sys.exit(main())
