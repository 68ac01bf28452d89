"""Measure how hard the documentation is to read.

    python tools/text_measures.py            a line a page: sentences, words in a sentence, long words, long sentences
    python tools/text_measures.py PAGE…      the long sentences of these pages, with their lines

Tables, headings and blocks of code are left out. A piece of code in a sentence, and a number, count as a word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG_SENTENCE = 30
"""Words that a reader holds at once; from the next one on a sentence counts as long."""
LONG_WORD = 10
"""Letters; a word of so many, or more, counts as long."""
GENERATED = frozenset(
    {
        "docs/generated/benchmark-results.md",
        "docs/generated/compression.md",
        "docs/generated/conversions.md",
        "docs/generated/evidence.md",
        "docs/generated/families.md",
        "docs/generated/language-clients.md",
        "docs/generated/other-engines.md",
        "docs/generated/own-models.md",
        "docs/generated/settings.md",
        "docs/generated/zoo.md",
    }
)
"""Tools write these pages; their sentences stand in the tools."""

_LEFT_OUT = re.compile(
    r"^```.*?^```[^\n]*$|^(?:#|\||<|!\[)[^\n]*$|`[^`\n]*\n?[^`\n]*`",
    re.MULTILINE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*|\d[\d.,:]*")
_END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+|\f|\n\s*\n|\n\s*(?:[-*]|\d+\.) ")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page: its first line and its words."""

    line: int
    words: tuple[str, ...]


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page in Markdown."""
    text = _LEFT_OUT.sub(_blank, text)
    text = re.sub(r"\]\([^)]*\)", lambda match: "\n" * match[0].count("\n"), text)
    start = 0
    for end in [*_END.finditer(text), None]:
        part = text[start : end.start() if end else None]
        if words := tuple(_WORD.findall(part)):
            first = start + len(part) - len(part.lstrip())
            yield Sentence(text.count("\n", 0, first) + 1, words)
        if end:
            start = end.end()


def _blank(match: re.Match[str]) -> str:
    """Return the replacement of a removed piece."""
    in_sentence = match[0][0] == "`" and match[0][:3] != "```"
    return ("Code" if in_sentence else "\f") + "\n" * match[0].count("\n")


def pages(root: Path) -> list[Path]:
    """Return the README and the pages that people wrote."""
    patterns = ("README.md", "docs/*.md", "docs/recipes/*.md")
    found = [page for pattern in patterns for page in sorted(root.glob(pattern))]
    return [page for page in found if str(page.relative_to(root)) not in GENERATED]


def measure(root: Path) -> dict[str, int]:
    """Return the number of long sentences of each page."""
    texts = {
        page.relative_to(root): page.read_text(encoding="utf-8") for page in pages(root)
    }
    return {
        f"long sentences in {name}": len(_long(text)) for name, text in texts.items()
    }


def _long(text: str) -> list[Sentence]:
    return [
        sentence for sentence in sentences(text) if len(sentence.words) > LONG_SENTENCE
    ]


def main(names: list[str]) -> int:
    """Print all measures, or some pages' long sentences."""
    for name in names:
        for sentence in _long(Path(name).read_text(encoding="utf-8")):
            print(
                f"{name}:{sentence.line}: {len(sentence.words)} words: {' '.join(sentence.words)}"
            )
    for page in pages(ROOT) if not names else ():
        text = page.read_text(encoding="utf-8")
        lengths = [len(sentence.words) for sentence in sentences(text)]
        words = [word for sentence in sentences(text) for word in sentence.words]
        long = sum(len(word) >= LONG_WORD for word in words) / len(words)
        print(
            f"{page.relative_to(ROOT)!s:26} {len(lengths):4} sentences of {len(words) / len(lengths):4.1f} words, "
            f"{len(_long(text)):2} long; {long:4.1%} long words"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
