"""Write the tables of docs/convert.md that follow from the code; with ``--check`` only compare them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pocketserve.convert.environments import ENVIRONMENTS
from pocketserve.convert.plan import TITLES
from pocketserve.convert.registry import converters

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "convert.md"


def tables() -> dict[str, str]:
    """Return the tables in Markdown by the word that begins their first row."""
    ways = (
        [
            ", ".join(TITLES[source] for source in converter.sources),
            f"`{converter.kind}`",
            ", ".join(f"`{mode}`" for mode in converter.quantize),
            converter.name,
            f"`{name}`" if (name := converter.environment or converter.fallback) else "none: runs on the device",
        ]
        for converter in converters()
    )
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
        "from": _table(("from", "to", "`--quantize`", "converter", "environment"), ways),
        "environment": _table(("environment", "for", "packages", "disk"), environments),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("| ---", "|---").replace("--- |", "---|") for line in lines)


def with_tables(text: str) -> str:
    """Return a document with its tables as the code has them."""
    for word, table in tables().items():
        text, count = re.subn(rf"(?m)^\| {word} \|.*\n(?:\|.*\n)+", lambda _, table=table: table, text)  # type: ignore[misc]
        assert count == 1, word
    return text


def main() -> int:
    """Rewrite the document, or with ``--check`` return 1 if it is not as the code is."""
    text = DOCUMENT.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(with_tables(text) != text)
    DOCUMENT.write_text(with_tables(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
