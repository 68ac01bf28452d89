"""Measure readability of code and pages; fail if a count rises.

``make check`` runs it. ``--lower`` writes counts that fell to ``code_measures.json``.
Lines are printed and have no limit. A new page must have no long sentence
(``text_measures.py PAGE`` shows them).
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import plain_measures
import text_measures

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "client/pocketserve_client",
    "client/pocketserve_wire",
    "server/pocketserve",
    "lab/pocketserve_lab",
    "lab/pocketserve_scale",
    "lab/pocketserve_simulate",
)
LIMITS = Path(__file__).with_suffix(".json")
PLAIN_LIMITS = plain_measures.LIMITS

# Names that say that something happened instead of naming the value.
_VAGUE = """
    asked begun broken built called caught chosen counted done forgotten found given gone got grown heard held hidden
    kept known lent looked lost made meant mine named needed noted offered ours owed passed put reached refused said
    seen shown spent taken theirs told touched tried turned waited wanted watched wished woken worn
    both either everyone everything here how it its neither nobody nothing one ones others same that them then there
    these they this those us we what when where which who whom whose why
"""
VAGUE_NAMES = frozenset(_VAGUE.split())
QUESTION_WORDS = frozenset(
    {"How", "Let", "One", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
)
# Names that a registry requires in each of its modules: one meaning, many definitions.
INTERFACES = frozenset(
    {"FORMAT", "TASK", "add_parser", "convert", "create", "fits", "main", "run"}
)


def measure(root: Path) -> dict[str, int]:
    """Return the counts over the packages; lower is better."""
    counts: Counter[str] = Counter()
    definitions: Counter[str] = Counter()
    largest = 0
    for package in PACKAGES:
        files = sorted((root / package).rglob("*.py"))
        for file in files:
            source = file.read_text(encoding="utf-8")
            counts["lines"] += source.count("\n")
            counts.update(_of_source(ast.parse(source), definitions))
        folders = Counter(file.parent for file in files if file.name != "__init__.py")
        largest = max([largest, *folders.values()])
    counts["loose modules"] = _loose_modules(root / "server/pocketserve")
    counts["modules in the largest folder"] = largest
    repeated = sum(number > 1 for number in definitions.values())
    counts["public names with several definitions"] = repeated
    return dict(sorted(counts.items()))


def _loose_modules(package: Path) -> int:
    """Return the number of modules directly in a package."""
    special = ("__init__.py", "__main__.py")
    return sum(file.name not in special for file in package.glob("*.py"))


def _of_source(tree: ast.Module, places: Counter[str]) -> Counter[str]:
    """Return a module's counts, and add its public names."""
    definitions = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions.append(node)
    places.update({d.name for d in definitions if d.name[0] != "_"} - INTERFACES)
    vague = sum(name.strip("_") in VAGUE_NAMES for name in _bound_names(tree))
    questions = sum(_first_word(text) in QUESTION_WORDS for text in _docstrings(tree))
    return Counter(
        {"vague names": vague, "docstrings that begin with a question word": questions}
    )


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that the source binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield text


def _first_word(text: str) -> str:
    return text.split()[0].strip(",:.")


def main() -> int:
    """Print the counts and limits; fail if a count rose."""
    stored = json.loads(LIMITS.read_text(encoding="utf-8"))
    sentences = text_measures.measure(ROOT)
    counts = measure(ROOT) | sentences
    limits = dict.fromkeys(sentences, 0) | stored
    for name, count in counts.items():
        if count or name not in sentences:
            limit = ""
            if name in limits:
                limit = f" (at most {limits[name]})"
            print(f"{count:7} {name}{limit}")
    if "--lower" in sys.argv[1:]:
        _lower(stored, counts)
    increased = [name for name, limit in limits.items() if counts.get(name, 0) > limit]
    for name in increased:
        print(f"{name}: the count rose; see Names in CONTRIBUTING.md", file=sys.stderr)
    increases = _plain_increases()
    for increase in increases:
        print(f"{increase}; see Plain code in CONTRIBUTING.md", file=sys.stderr)
    return bool(increased or increases)


def _lower(stored: dict[str, int], counts: dict[str, int]) -> None:
    """Record the counts that fell."""
    lower = {}
    for name, limit in stored.items():
        lower[name] = min(counts.get(name, 0), limit)
    LIMITS.write_text(json.dumps(lower, indent=2) + "\n", encoding="utf-8")


def _plain_increases() -> list[str]:
    """Return the increases of the measures by area."""
    values = plain_measures.all_values(ROOT)
    limits = plain_measures.read_limits(PLAIN_LIMITS)
    increases = plain_measures.find_increases(values, limits)
    if "--lower" in sys.argv[1:] and not increases:
        plain_measures.record(values, PLAIN_LIMITS)
    return increases


if __name__ == "__main__":
    sys.exit(main())
