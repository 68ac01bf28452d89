"""Write the table of tested model families in ``docs/generated/families.md``.

Usage: python tools/family_table.py [--check]

The rows are ``FAMILIES`` of each ``tests/families/test_*.py``. With ``--check`` nothing is written, and the exit code
is 1 if the table is out of date.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "generated" / "families.md"
START, END = "<!-- families -->\n", "<!-- /families -->\n"


def main(arguments: Sequence[str]) -> int:
    """Write or check the table; return the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    updated = with_table(page, table(families()))
    if updated == page:
        return 0
    if "--check" in arguments:
        print(
            f"{PAGE.relative_to(ROOT)} is out of date: run python tools/family_table.py",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(updated, encoding="utf-8")
    return 0


def families() -> Iterator[Any]:
    """Yield the rows of all test modules, without importing frameworks."""
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    for path in sorted((ROOT / "tests" / "families").glob("test_*.py")):
        module = importlib.import_module(f"families.{path.stem}")
        # Modules of shared parts, such as processors, have no families of their own.
        yield from getattr(module, "FAMILIES", ())


def table(rows: Iterator[Any]) -> str:
    """Return a Markdown table of libraries and tasks."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        name = f"{row.name} ({row.note})" if row.note else row.name
        groups.setdefault((row.library, row.task, tuple(row.formats)), []).append(name)
    lines = ["| library | task | format | families |", "|---|---|---|---|"]
    for (library, task, formats), names in sorted(groups.items()):
        lines.append(
            f"| {library} | `{task}` | {', '.join(formats)} | {', '.join(names)} |"
        )
    return "\n".join(lines) + "\n"


def with_table(page: str, text: str) -> str:
    """Return the page with the table between its markers."""
    before, found, rest = page.partition(START)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(
            f"{PAGE.name} has no markers {START.strip()} and {END.strip()}"
        )
    return f"{before}{START}\n{text}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
