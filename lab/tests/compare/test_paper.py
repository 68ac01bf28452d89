"""Write the tables of a report, and combine repeated runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pocketserve_lab.compare.paper.environment import commit_of
from pocketserve_lab.compare.paper.folder import without_paths
from pocketserve_lab.compare.paper.repeats import combine_runs
from pocketserve_lab.compare.paper.tables import escape_latex, latex_table


def estimate(value: float) -> dict[str, Any]:
    """Return a value without an interval."""
    return {
        "value": value,
        "low": None,
        "high": None,
    }


def run(run_ms: float, recommended: str | None, *names: str) -> dict[str, Any]:
    """Return a result in which all versions have the same figures."""
    facts = {
        "file_bytes": 1000,
        "run_ms": {"p50": estimate(run_ms)},
        "samples": {"run_ms": [[run_ms]] * 3, "answer_ms": [[run_ms]] * 3},
        "memory_bytes": {"private": None},
        "agreement": {"share": estimate(1.0)},
        "accuracy": None,
        "test": {"worse": False, "text": "", "p": 1.0},
    }
    return {
        "folder": "/home/me/models/m",
        "reference": names[0],
        "data": {
            "origin": "/home/me/data",
            "samples": ["/home/me/data/a.png", "b.png"],
        },
        "versions": dict.fromkeys(names, facts),
        "recommendation": {"version": recommended, "sentences": "Serve a."},
    }


def test_repeated_runs_have_a_spread() -> None:
    """A version that failed in a run counts in the rest; the first run's stay."""
    result = combine_runs(
        [
            run(2.0, "a", "a", "b"),
            run(1.0, "b", "a"),
            run(4.0, "a", "a"),
        ]
    )
    spread = result["repeats"]["spread"]
    assert spread["a"]["run_p50_ms"] == {
        "values": [2.0, 1.0, 4.0],
        "low": 1.0,
        "high": 4.0,
    }
    assert spread["b"]["run_p50_ms"]["values"] == [2.0]
    assert spread["a"]["private_bytes"] is None
    assert result["recommendation"]["sentences"] == (
        "Serve a. 2 of 3 runs recommend a, whose p50 was 1 to 4 ms; "
        "the other figures are those of the first run."
    )
    assert "repeats" not in combine_runs([run(2.0, "a", "a")])
    nothing = combine_runs([run(2.0, None, "a"), run(1.0, "a", "a")])
    assert "1 of 2 runs recommend none;" in nothing["recommendation"]["sentences"]


def test_a_published_result_has_no_local_path() -> None:
    """Repeated runs neither."""
    public = without_paths(combine_runs([run(2.0, "a", "a"), run(1.0, "a", "a")]))
    assert "/home" not in str(public)
    assert public["data"] == {"origin": "data", "samples": ["a.png", "b.png"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/my drivers/libnpu.so", "libnpu.so"),
        ("/home/me/models/m/a b.onnx: damaged", "a b.onnx: damaged"),
        (
            "no file '/data/x y/b.so', see /usr/lib/c.so: no",
            "no file 'b.so', see c.so: no",
        ),
        ("cannot open (/srv/a/b)", "cannot open (b)"),
        (
            "2 tokens/s, 1/2 of https://a.example/b/c",
            "2 tokens/s, 1/2 of https://a.example/b/c",
        ),
    ],
)
def test_options_and_reasons_have_no_local_path(text: str, expected: str) -> None:
    result = run(2.0, "a", "a")
    options = {"options": {"delegate": text, "threads": 2}}
    result["versions"] = {"a": {**result["versions"]["a"], **options}}
    result["skipped"] = {"b": text}
    public = without_paths(result)
    assert public["versions"]["a"]["options"] == {"delegate": expected, "threads": 2}
    assert public["skipped"] == {"b": expected}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8_v2 & 5%", r"int8\_v2 \& 5\%"),
        ("a\\b", r"a\textbackslash{}b"),
        ("{$#^~}", r"\{\$\#\textasciicircum{}\textasciitilde{}\}"),
    ],
)
def test_latex_prints_names_as_they_are(text: str, expected: str) -> None:
    assert escape_latex(text) == expected


def test_a_speed_up_of_few_turns_is_not_named() -> None:
    """Three turns show no factor."""
    table = latex_table(run(2.0, "a", "a", "b_1"))
    assert r"b\_1 & 1.0 kB & 2.00 (no interval) & too few turns & 100.0\%" in table
    assert table.count(r" \\") == 3


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, timeout=60)


def test_the_commit_is_that_of_a_tracked_package_only(tmp_path: Path) -> None:
    """A stranger's checkout isn't named, and none of its programs run."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "readme").write_text("theirs")
    git(tmp_path, "add", "readme")
    git(tmp_path, "commit", "--quiet", "--message", "Theirs")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert commit_of(package) is None
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "--quiet", "--message", "Ours")
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    program.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(program))
    commit = commit_of(package)
    assert commit is not None
    assert len(commit) == 40
    assert not ran.exists()
