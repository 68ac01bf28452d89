"""Measure how dense the code is and how plain its docstrings are, area by area.

    python tools/plain_measures.py           a table: one row per area, and the targets
    python tools/plain_measures.py AREA…     the densest functions of these areas
    python tools/plain_measures.py --record  record today's values, after code was deleted or moved between areas

``code_measures.py`` fails when a value rises above both its target and the one recorded in ``plain_measures.json``.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_suffix(".json")
PACKAGES = ("server/pocketserve", "lab/pocketserve_lab")
"""Packages whose subpackages are areas, beside the loose modules."""

OTHER_AREAS = (
    "client/pocketserve_client",
    "client/pocketserve_wire",
    "lab/pocketserve_scale",
    "lab/pocketserve_simulate",
    "lab/tests",
    "tests",
    "tools",
    "benchmarks",
)
DISTRIBUTIONS = {
    "client": ("client/pocketserve_client", "client/pocketserve_wire"),
    "lab": (
        "lab/pocketserve_lab",
        "lab/pocketserve_scale",
        "lab/pocketserve_simulate",
    ),
    "server": ("server/pocketserve",),
}
"""Folders by distribution."""

LONG_LINE = 100
COMPACT_NODES = (
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.IfExp,
    ast.NamedExpr,
)
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
COMMAND_LINE = "pocketserve.cli"
COMMANDS = "server/pocketserve/cli"
FRONT_DOOR = "server/pocketserve/__main__.py"
DECIMALS = 1
TOLERANCE = 1.02
"""The share of a recorded value that is accepted: means change a little with every commit."""

TARGETS = {
    "nodes per line": 5.5,
    "nodes per function, p90": 160.0,
    "nodes per function, max": 350.0,
    "compact expressions per 100 lines": 2.5,
    "% of lines over 100 columns": 2.0,
    "% of docstrings with 'what'": 1.0,
    "words per docstring": 9.5,
    "'what' per 1,000 words of comments": 1.0,
}


@dataclass
class Area:
    """The raw counts of one area."""

    lines: int = 0
    nodes: int = 0
    long_lines: int = 0
    compact: int = 0
    function_nodes: list[int] = field(default_factory=list)
    first_lines: list[str] = field(default_factory=list)
    comment_words: list[str] = field(default_factory=list)

    def add(self, source: str) -> None:
        """Count one module."""
        tree = ast.parse(source)
        lines = source.splitlines()
        self.lines += len(lines)
        self.long_lines += sum(len(line) > LONG_LINE for line in lines)
        for node in ast.walk(tree):
            self.nodes += 1
            if isinstance(node, COMPACT_NODES):
                self.compact += 1
            if isinstance(node, FUNCTION_NODES):
                self.function_nodes.append(count_nodes(node))
        self.first_lines += first_lines(tree)
        self.comment_words += comment_words(source)

    def values(self) -> dict[str, float]:
        """Return the measures by the names of :data:`TARGETS`."""
        sizes = sorted(self.function_nodes) or [0]
        words = sum(len(line.split()) for line in self.first_lines)
        with_what = sum(has_what(line) for line in self.first_lines)
        comment_whats = sum(word == "what" for word in self.comment_words)
        values = (
            self.nodes / max(1, self.lines),
            float(sizes[int(0.9 * (len(sizes) - 1))]),
            float(sizes[-1]),
            100 * self.compact / max(1, self.lines),
            100 * self.long_lines / max(1, self.lines),
            100 * with_what / max(1, len(self.first_lines)),
            words / max(1, len(self.first_lines)),
            1000 * comment_whats / max(1, len(self.comment_words)),
        )
        rounded = [round(value, DECIMALS) for value in values]
        return dict(zip(TARGETS, rounded, strict=True))


def count_nodes(tree: ast.AST) -> int:
    """Return the number of syntax-tree nodes."""
    return sum(1 for _ in ast.walk(tree))


def first_lines(tree: ast.Module) -> list[str]:
    """Return the first line of each docstring."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTION_NODES, ast.ClassDef, ast.Module)):
            docstring = ast.get_docstring(node)
            if docstring:
                lines.append(docstring.splitlines()[0])
    return lines


def has_what(text: str) -> bool:
    """Return whether a text contains the word "what"."""
    return re.search(r"\bwhat\b", text, re.IGNORECASE) is not None


def comment_words(source: str) -> list[str]:
    """Return the words of all comments, in lower case."""
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words += re.findall(r"[a-z']+", token.string.lower())
    return words


def area_names(root: Path) -> list[str]:
    """Return the areas: subpackages, the loose modules of packages, other folders."""
    names = []
    for package in PACKAGES:
        folders = sorted(file.parent for file in (root / package).glob("*/__init__.py"))
        names += [package, *(str(folder.relative_to(root)) for folder in folders)]
    return [*names, *(name for name in OTHER_AREAS if (root / name).is_dir())]


def files_of(root: Path, area: str) -> list[Path]:
    """Return the source files of an area."""
    folder = root / area
    return sorted(folder.glob("*.py") if area in PACKAGES else folder.rglob("*.py"))


def measure(root: Path) -> dict[str, dict[str, float]]:
    """Return the measures of each area."""
    measures = {}
    for name in area_names(root):
        area = Area()
        for file in files_of(root, name):
            area.add(file.read_text(encoding="utf-8"))
        measures[name] = area.values()
    return measures


def distribution_of(root: Path, file: Path) -> str:
    """Return a file's distribution; empty for tests and tools."""
    for distribution, folders in DISTRIBUTIONS.items():
        for folder in folders:
            if file.is_relative_to(root / folder):
                return distribution
    return ""


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each source file of a distribution, with the distribution's name."""
    for folder in ("server", "client", "lab"):
        for file in sorted((root / folder).rglob("*.py")):
            distribution = distribution_of(root, file)
            if distribution:
                yield distribution, file


def measure_distributions(root: Path) -> dict[str, int]:
    """Count lines, homonyms and imports of the command line."""
    counts: Counter[str] = Counter()
    homonyms: Counter[tuple[str, str]] = Counter()
    for distribution, file in source_files(root):
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        counts[f"lines of {distribution}"] += source.count("\n")
        for name in defined_types(tree):
            homonyms[distribution, name.strip("_")] += 1
        if file != root / FRONT_DOOR and not file.is_relative_to(root / COMMANDS):
            counts["imports of the command line from below"] += imports_command_line(
                tree
            )
    counts["imports of the command line from below"] += 0
    for distribution in DISTRIBUTIONS:
        repeated = [
            name
            for (owner, name), n in homonyms.items()
            if owner == distribution and n > 1
        ]
        counts[f"class names with several meanings in {distribution}"] = len(repeated)
    return dict(sorted(counts.items()))


def defined_types(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's classes and aliases."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and is_alias(node.value):
            for target in node.targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id[:1].isupper()
                    and not target.id.isupper()
                ):
                    yield target.id


def is_alias(value: ast.expr) -> bool:
    """Return whether an assigned value is a type."""
    return isinstance(value, ast.Subscript) or (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
    )


def imports_command_line(tree: ast.Module) -> int:
    """Count the imports of the command line."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        count += any(
            name == COMMAND_LINE or name.startswith(f"{COMMAND_LINE}.")
            for name in modules
        )
    return count


def read_limits(file: Path = LIMITS) -> dict[str, dict[str, float]]:
    """Return recorded values by area; ``all`` is for totals."""
    limits: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    return limits


def all_values(root: Path) -> dict[str, dict[str, float]]:
    """Return the values that are limited, in the form of :func:`read_limits`."""
    counts = measure_distributions(root)
    limited = {}
    for name, n in counts.items():
        if not name.startswith("lines of"):
            limited[name] = float(n)
    return {**measure(root), "all": limited}


def find_increases(
    values: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]
) -> list[str]:
    """Describe each value above its recorded value and target."""
    increases = []
    for area, measures in values.items():
        for name, value in measures.items():
            target = TARGETS.get(name, 0.0)
            recorded = limits.get(area, {}).get(name, 0.0)
            tolerance = 1.0
            if name in TARGETS:
                tolerance = TOLERANCE
            limit = max(target, round(recorded * tolerance, DECIMALS))
            if value > limit:
                increases.append(f"{area}: {name}: {value:g}, at most {limit:g}")
    return increases


def record(values: dict[str, dict[str, float]], file: Path = LIMITS) -> None:
    """Write down values; ``find_increases`` compares later ones with them."""
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def densest_functions(root: Path, area: str, number: int = 15) -> list[tuple[int, str]]:
    """Return the functions with the most syntax-tree nodes."""
    functions = []
    for file in files_of(root, area):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, FUNCTION_NODES):
                place = f"{file.relative_to(root)}:{node.lineno} {node.name}"
                functions.append((count_nodes(node), place))
    return sorted(functions, reverse=True)[:number]


def print_table(measures: dict[str, dict[str, float]]) -> None:
    """Print a row per area, and the targets last."""
    for number, name in enumerate(TARGETS, 1):
        print(f"({number}) {name}")
    rows: Iterable[tuple[str, dict[str, float]]] = [
        *measures.items(),
        ("target", TARGETS),
    ]
    print(
        f"{'':30}"
        + "".join(f"{f'({number})':>8}" for number in range(1, len(TARGETS) + 1))
    )
    for area, values in rows:
        print(f"{area:30}" + "".join(f"{values[name]:8.1f}" for name in TARGETS))


def main(areas: list[str]) -> int:
    """Print the table, or the densest functions of areas."""
    if areas == ["--record"]:
        record(all_values(ROOT))
        return 0
    for area in areas:
        for nodes, place in densest_functions(ROOT, area):
            print(f"{nodes:5} {place}")
    if not areas:
        print_table(measure(ROOT))
        for name, count in measure_distributions(ROOT).items():
            print(f"{count:7} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
