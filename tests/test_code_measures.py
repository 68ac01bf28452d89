"""Check ``tools/code_measures.py`` on a small tree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def measures() -> ModuleType:
    """Import the tool."""
    spec = importlib.util.spec_from_file_location(
        "code_measures", ROOT / "tools/code_measures.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "tools"))  # the tool imports the module beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return module


def write(root: Path, sources: dict[str, str]) -> None:
    """Write the sources below the server's package, with the packages that contain
    them.
    """
    for name, source in sources.items():
        file = root / "server/pocketserve" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)


def test_every_kind_of_binding_is_counted(measures: ModuleType, tmp_path: Path) -> None:
    source = "def f(wanted):\n    found, x = 1, 2\n    for it in []:\n        self._told = it\n    return found\n"
    write(tmp_path, {"a.py": source})
    assert measures.measure(tmp_path)["vague names"] == 4


def test_docstrings_that_begin_with_a_question_are_counted(
    measures: ModuleType, tmp_path: Path
) -> None:
    source = '"""What this is."""\nclass A:\n    """Whether: no."""\ndef f():\n    """Return what is there."""\n'
    write(tmp_path, {"a.py": source})
    assert measures.measure(tmp_path)["docstrings that begin with a question word"] == 2


def test_repeated_names_are_counted_unless_a_registry_requires_them(
    measures: ModuleType, tmp_path: Path
) -> None:
    source = "def create(): ...\ndef probe(): ...\ndef _own(): ...\n"
    write(tmp_path, {"a.py": source, "tasks/b.py": source})
    assert measures.measure(tmp_path)["public names with several definitions"] == 1


def test_folders_are_counted_without_their_package_files(
    measures: ModuleType, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {
            "__init__.py": "",
            "a.py": "x = 1\n",
            "tasks/__init__.py": "",
            "tasks/b.py": "",
            "tasks/c.py": "",
        },
    )
    counts = measures.measure(tmp_path)
    assert counts["loose modules"] == 1
    assert counts["modules in the largest folder"] == 2
    assert counts["lines"] == 1


def test_a_risen_count_fails(
    measures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text('{"vague names": 0}')
    monkeypatch.setattr(measures, "ROOT", tmp_path)
    monkeypatch.setattr(measures, "LIMITS", limits)
    monkeypatch.setattr(measures, "PLAIN_LIMITS", limits.with_name("plain.json"))
    limits.with_name("plain.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["code_measures.py"])
    write(tmp_path, {"a.py": "x = 1\n"})
    assert measures.main() == 0
    write(tmp_path, {"a.py": "found = 1\n"})
    assert measures.main() == 1
    assert "vague names: the count rose" in capsys.readouterr().err


WORDS = " ".join(["word"] * 29)
PAGE = f"""# A heading is no sentence, however {WORDS} {WORDS}

{WORDS} one. Short, here.
- {WORDS} `a piece of code is one word` more than enough of them

| a table {WORDS} {WORDS} |

```
a block {WORDS} {WORDS}
```
See [the page
of {WORDS} words](https://localhost/{"x/" * 40}) for more: version 1.5 ends nothing.
"""


def test_long_sentences_of_a_page_are_counted(
    measures: ModuleType, tmp_path: Path
) -> None:
    """They end at a full stop, an item or a paragraph.

    Links count by their text.
    """
    texts = measures.text_measures
    told = []
    for sentence in texts.sentences(PAGE):
        told.append((sentence.line, len(sentence.words)))
    assert told == [
        (3, 30),
        (3, 2),
        (4, 35),
        (11, 40),
    ]
    (tmp_path / "docs/generated").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs/generated/zoo.md").write_text(PAGE)  # generated
    assert texts.measure(tmp_path) == {"long sentences in README.md": 2}


def test_every_generated_page_exists(measures: ModuleType) -> None:
    """Each name that the measures exclude is a page."""
    assert [
        name for name in measures.text_measures.GENERATED if not (ROOT / name).is_file()
    ] == []


def plain_values(measures: ModuleType, root: Path) -> dict[str, float]:
    """Return the values of the only package below ``root``."""
    values: dict[str, float] = measures.plain_measures.measure(root)[
        "server/pocketserve/tasks"
    ]
    return values


def test_dense_lines_raise_the_measures_of_their_area(
    measures: ModuleType, tmp_path: Path
) -> None:
    write(
        tmp_path, {"tasks/__init__.py": "", "tasks/a.py": "def f(x):\n    return x\n"}
    )
    plain = plain_values(measures, tmp_path)
    write(
        tmp_path,
        {
            "tasks/a.py": "def f(x):\n    return [y if y else 0 for y in x if (z := y)]\n"
        },
    )
    dense = plain_values(measures, tmp_path)
    for name in (
        "nodes per line",
        "nodes per function, max",
        "compact expressions per 100 lines",
    ):
        assert dense[name] > plain[name]


def test_words_of_docstrings_and_comments_are_measured(
    measures: ModuleType, tmp_path: Path
) -> None:
    source = '"""Tell what this is."""\nx = 1  # what comes next\n' + "#" * 101 + "\n"
    write(tmp_path, {"tasks/__init__.py": "", "tasks/a.py": source})
    values = plain_values(measures, tmp_path)
    assert values["% of docstrings with 'what'"] == 100
    assert values["words per docstring"] == 4
    assert values["'what' per 1,000 words of comments"] == 333.3
    assert values["% of lines over 100 columns"] == 33.3


def test_classes_and_aliases_with_one_name_are_counted(
    measures: ModuleType, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {"a.py": "class _Job: ...\n", "b.py": "Job = dict[str, int]\nLIMITS = {1}\n"},
    )
    counts = measures.plain_measures.measure_distributions(tmp_path)
    assert counts["class names with several meanings in server"] == 1


def test_imports_of_the_command_line_are_counted_outside_of_it(
    measures: ModuleType, tmp_path: Path
) -> None:
    source = "from pocketserve.cli.output import say\n"
    write(tmp_path, {"cli/a.py": source, "compare/b.py": source})
    counts = measures.plain_measures.measure_distributions(tmp_path)
    assert counts["imports of the command line from below"] == 1


def test_a_value_may_rise_to_its_target_but_not_above_both(
    measures: ModuleType,
) -> None:
    plain = measures.plain_measures
    assert (
        plain.find_increases(
            {"a": {"nodes per line": 5.5}}, {"a": {"nodes per line": 4.0}}
        )
        == []
    )
    assert (
        plain.find_increases(
            {"a": {"nodes per line": 7.0}}, {"a": {"nodes per line": 7.0}}
        )
        == []
    )
    assert plain.find_increases(
        {"a": {"nodes per line": 7.2}}, {"a": {"nodes per line": 7.0}}
    ) == ["a: nodes per line: 7.2, at most 7.1"]
    assert plain.find_increases({"new": {"nodes per line": 5.6}}, {}) == [
        "new: nodes per line: 5.6, at most 5.5"
    ]
