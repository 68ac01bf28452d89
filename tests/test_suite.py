"""Test the suite's selection and scheduling of tests."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import ROOT
from selection import BIG, DOCS, HOW, KINDS, MARKS, THOROUGH
from suite import TEST_FOLDERS, TESTS_MISSING, Turns, _had_to_run, _left_out

TIMEOUT_S = 120.0
FLAKY_HEADING = "flaky: passed when run again alone; mend or delete"


def test_every_mark_is_documented() -> None:
    """The table of tests/README.md has each mark once."""
    rows = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "tests/README.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows == list(MARKS)


def test_kinds_leave_out_existing_marks() -> None:
    """Only a kind without servers may leave out marks for the way tests run."""
    for name, kind in KINDS.items():
        assert kind.without <= set(MARKS), name
        places = (*kind.had, *kind.only, *kind.only_here, *THOROUGH)
        for place in places:
            folders = [folder for folder in TEST_FOLDERS if (folder / place).exists()]
            assert len(folders) == 1, (name, place)
    for name in ("dev", "quick", "core"):
        assert KINDS[name].without == BIG
        assert not KINDS[name].had
    assert not BIG & set(HOW)


def test_the_makefile_names_kinds() -> None:
    """Each target uses an existing kind, and the script that repeats failures."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    kinds = re.findall(r"tools/run_tests\.py ([\w-]+)", makefile)
    assert sorted(kinds) == sorted(KINDS.keys() - {"dev", "soak", "newest", "arm64"})
    assert "-m pytest" not in makefile
    assert "not (" not in makefile
    for tool in ("soak", "newest_python", "arm64"):
        assert "run_tests" in (ROOT / "tools" / f"{tool}.py").read_text("utf-8"), tool


def test_the_landing_script_runs_all_tests() -> None:
    """It runs each part of ``make test-all``, the checkers and the demo."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [parts] = re.findall(r"^test-all: (.*)$", makefile, re.MULTILINE)
    [steps] = re.findall(
        r"^steps=\((.*)\)", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE
    )
    assert steps.split() == ["check", "docs", "demo", *parts.split()]


@pytest.mark.parametrize("failing", ["", "docs"], ids=["all pass", "one fails"])
def test_the_landing_script_prints_seconds_and_flaky_tests(
    tmp_path: Path, failing: str
) -> None:
    """It stops at a failing step and still prints them."""
    make = f'#!/bin/sh\necho "$1: test_a.py::test_it" >> "$FLAKY_TESTS_FILE"\n[ "$1" != "{failing}" ]\n'
    (tmp_path / "make").write_text(make)
    (tmp_path / "make").chmod(0o755)
    code, output = run_command(
        str(ROOT / ".ci/run"), PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    )
    [steps] = re.findall(
        r"^steps=\((.*)\)", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE
    )
    run = steps.split()[: 2 if failing else None]
    lines = [
        re.sub(r"^ *\d+ ", "", line).strip() for line in output.splitlines() if line
    ]
    rows = [f"{step}: {'FAILED' if step == failing else 'passed'}" for step in run]
    flaky = [f"{step}: test_a.py::test_it" for step in run]
    assert lines == ["seconds of each step", *rows, "total", FLAKY_HEADING, *flaky]
    assert (code == 0) == (not failing)


def test_every_test_is_in_a_kind() -> None:
    """Either ``make test-all`` or a target named after its mark runs it.

    Assets may be missing; the summary says so.
    """
    alone = set(MARKS) - {
        *("assets", "convert", "families", "long", "own_models", "triton", "ray")
    }
    some = [
        set(marks)
        for number in (0, 1, 2)
        for marks in itertools.combinations(alone, number)
    ]
    needs = [
        {"convert"},
        {"own_models"},
        {"triton", "live"},
        {"ray", "live"},
        {"families", "live"},
        {"long", "soak"},
        *some,
    ]
    kinds = KINDS.keys() - {"dev", "docs", "lab", "newest", "arm64"}
    for place in {
        *KINDS["all"].had,
        *KINDS["tflite-runtime"].had,
        *THOROUGH,
        "http/test_http.py",
    }:
        for marks in needs:
            runs = [kind for kind in kinds if not _left_out(item(kind, place, marks))]
            assert runs, (place, marks)


def test_quick_and_core_share_the_tests_of_one_environment() -> None:
    """A test that needs no more runs in exactly one of them."""
    for place in (*THOROUGH, *DOCS, "http/test_http.py"):
        for marks in (
            {},
            {"live"},
            {"alone"},
            {"thorough", "live"},
            {"onnx"},
        ):
            runs = []
            for kind in ("quick", "core"):
                if not _left_out(item(kind, place, set(marks))):
                    runs.append(kind)
            assert len(runs) == 1, (place, marks)
    assert not _left_out(item("quick", "http/test_http.py", {"live"}))
    assert _left_out(item("quick", "http/test_http.py", {"alone"}))


def test_targets_of_one_area_run_only_its_tests() -> None:
    assert not _left_out(item("docs", "test_docs.py", set()))
    assert _left_out(item("docs", "http/test_http.py", set()))
    assert not _left_out(item("lab", "compare/test_judge.py", set()))
    assert _left_out(item("lab", "test_docs.py", set()))


def item(kind: str, place: str, marks: set[str]) -> Any:
    """Imitate a test as seen by the selection."""
    config = SimpleNamespace(getoption=lambda _name: kind)
    return SimpleNamespace(
        config=config,
        path=TEST_FOLDERS[0] / place,
        get_closest_marker=lambda mark: mark in marks or None,
    )


def test_tests_that_other_runs_rely_on_may_not_be_skipped() -> None:
    """``all`` has every test but those of ``make test``: missing packages are noticed."""
    assert KINDS["all"].complete
    for name in ("quick", "core"):
        assert KINDS[name].only_here == KINDS["all"].had
        assert _had_to_run(KINDS[name], TEST_FOLDERS[0] / "tasks/test_wordpiece.py")
        assert not _had_to_run(KINDS[name], TEST_FOLDERS[0] / "doctor/test_doctor.py")


def test_deselected_tests_are_reported_by_mark(tmp_path: Path) -> None:
    """A file whose framework is missing is deselected, too; a skip fails a complete
    run.
    """
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("suite",)')
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_small(): pass\n"
        "@pytest.mark.torch\ndef test_large(): pass\n"
        "def test_other(): pytest.skip('this system cannot')\n"
    )
    (tmp_path / "test_file.py").write_text(
        "import pytest\npytest.importorskip('no_such_module', reason='torch')\n"
    )
    done = {
        kind: run_suite(tmp_path, "--for", kind, "-m", "not soak")
        for kind in ("quick", "tflite-runtime")
    }
    for _, said in done.values():
        assert re.search(r"^not run: torch +1$", said, re.MULTILINE)
        assert re.search(r"^not run: torch \(whole files\) +1$", said, re.MULTILINE)
        assert "1 passed, 1 skipped, 1 deselected" in said
    assert [code for code, _ in done.values()] == [0, TESTS_MISSING]
    code, said = run_suite(tmp_path)
    assert code == 0
    assert "2 passed, 2 skipped" in said


def run_suite(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the small suite of a folder.

    Return the exit code and the output.
    """
    return run_command(
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *options_for(folder),
        *arguments,
    )


def options_for(folder: Path) -> list[str]:
    """Return the options that isolate a small suite from this one."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = [
        "--rootdir",
        str(folder),
        "-c",
        str(folder / "pytest.ini"),
        "--strict-markers",
    ]
    return [*options, "-o", f"pythonpath={ROOT / 'tests'}", str(folder)]


def run_command(*command: str, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


# Failed tests run again (tools/run_tests.py)


class Suite:
    """A small suite whose tests may behave differently in their second run.

    Attributes:
        flaky_list: the file that gets a line for each flaky test.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "suite"
        self._folder.mkdir()
        self._runs = folder / "runs"
        self._runs.mkdir()
        self.flaky_list = folder / "flaky"
        (self._folder / "conftest.py").write_text('pytest_plugins = ("suite",)')

    def add(self, name: str, *outcomes: str) -> None:
        """Add a file with one test, ``test_NAME``.

        Args:
            outcomes: the statement of its first run, of its second, and so on.
        """
        source = f"""
from pathlib import Path
import pytest

OUTCOMES = {outcomes!r}

def test_{name}():
    counter = Path({str(self._runs / name)!r})
    runs = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("x" * (runs + 1))
    exec(OUTCOMES[runs])
"""
        (self._folder / f"test_{name}.py").write_text(source)

    def add_source(self, name: str, source: str) -> None:
        """Add a file with this source."""
        (self._folder / f"test_{name}.py").write_text(source)

    def runs(self, name: str) -> int:
        """Return the number of a test's runs."""
        counter = self._runs / name
        if counter.exists():
            return len(counter.read_text())
        return 0

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the suite by the script.

        Return the exit code and the output.
        """
        command = [
            sys.executable,
            str(ROOT / "tools/run_tests.py"),
            "quick",
            *options_for(self._folder),
            *arguments,
        ]
        return run_command(*command, FLAKY_TESTS_FILE=str(self.flaky_list))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


PASS = "pass"
FAIL = "raise ValueError('by chance')"
SKIP = "pytest.skip('not here')"


@pytest.mark.parametrize(
    "processes",
    [
        (),
        ("-n", "2", "--dist", "worksteal"),
    ],
    ids=["one process", "two processes"],
)
def test_a_test_that_passes_in_its_second_run_is_listed(
    suite: Suite, processes: tuple[str, ...]
) -> None:
    """The run passes, the list is its last output, and nothing else runs twice."""
    suite.add("good", PASS)
    suite.add("flaky", FAIL, PASS)
    code, output = suite.run(*processes)
    assert code == 0, output
    assert output.endswith(f"\n{FLAKY_HEADING}\n  test_flaky.py::test_flaky\n")
    assert suite.runs("good") == 1
    assert suite.runs("flaky") == 2
    assert suite.flaky_list.read_text() == "quick: test_flaky.py::test_flaky\n"


def test_a_test_that_fails_twice_fails_the_run(suite: Suite) -> None:
    """It isn't listed among the flaky ones."""
    suite.add("bad", FAIL, FAIL)
    suite.add("flaky", FAIL, PASS)
    code, output = suite.run()
    assert code == 1, output
    assert "failed again, alone\n  test_bad.py::test_bad\n" in output
    assert output.endswith(f"\n{FLAKY_HEADING}\n  test_flaky.py::test_flaky\n")


def test_nothing_runs_again_without_failures(suite: Suite) -> None:
    suite.add("good", PASS)
    code, output = suite.run()
    assert (code, suite.runs("good")) == (0, 1)
    assert FLAKY_HEADING not in output
    assert not suite.flaky_list.exists()


def test_a_skip_in_the_second_run_is_not_a_pass(suite: Suite) -> None:
    suite.add("skipped", FAIL, SKIP)
    code, output = suite.run()
    assert code != 0
    assert FLAKY_HEADING not in output


def test_errors_of_fixtures_are_failures(suite: Suite) -> None:
    """A fixture whose setup or teardown fails once makes its test flaky."""
    fixture = "import pytest\nfrom pathlib import Path\nMARK = Path(__file__).with_suffix('.ran')\n"
    fixture += "def once():\n    if not MARK.exists():\n        MARK.touch()\n        raise ValueError\n"
    fixture += "@pytest.fixture\ndef used():\n    {start}\n    yield\n    {end}\ndef test_it(used): pass\n"
    suite.add_source("start", fixture.format(start="once()", end="pass"))
    suite.add_source("end", fixture.format(start="pass", end="once()"))
    code, output = suite.run()
    assert code == 0, output
    assert output.endswith(
        f"\n{FLAKY_HEADING}\n  test_end.py::test_it\n  test_start.py::test_it\n"
    )


@pytest.mark.parametrize(
    "processes",
    [
        (),
        ("-n", "2"),
    ],
    ids=["one process", "two processes"],
)
def test_a_file_that_cannot_be_collected_fails_the_run(
    suite: Suite, processes: tuple[str, ...]
) -> None:
    """This applies even if other tests are flaky."""
    suite.add("flaky", FAIL, PASS)
    suite.add_source("broken", "import no_such_module\n")
    code, output = suite.run(*processes)
    assert code != 0
    assert FLAKY_HEADING not in output


def test_a_run_without_tests_fails(suite: Suite) -> None:
    suite.add("good", PASS)
    code, output = suite.run("-k", "nothing")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED, output


def test_a_run_that_stopped_at_its_first_failure_is_not_repeated(suite: Suite) -> None:
    """Later tests have not run."""
    suite.add("a_flaky", FAIL, PASS)
    suite.add("good", PASS)
    code, output = suite.run("-x")
    assert code == TESTS_MISSING, output
    assert suite.runs("a_flaky") == 1
    assert suite.runs("good") == 0


def test_a_forbidden_skip_is_not_repeated(suite: Suite) -> None:
    suite.add("skipped", SKIP)
    suite.add("flaky", FAIL, PASS)
    code, output = suite.run("--no-skips")
    assert code == TESTS_MISSING and suite.runs("flaky") == 1, output


def test_an_internal_error_fails_the_run(suite: Suite) -> None:
    suite.add("flaky", FAIL, PASS)
    code, _ = suite.run("-p", "no_such_plugin")
    assert code not in (0, 1)
    assert suite.runs("flaky") == 0


def test_the_script_explains_its_usage() -> None:
    code, output = run_command(sys.executable, str(ROOT / "tools/run_tests.py"))
    assert code == 2
    assert "run_tests.py KIND" in output


# Scheduling


def test_tests_run_side_by_side_and_one_alone(tmp_path: Path) -> None:
    """The lone test waits for running ones, and later ones wait for it."""
    processes = [Turns(tmp_path) for _ in range(3)]
    order: list[str] = []

    def alone() -> None:
        with processes[1].taken(alone=True):
            order.append("alone")

    def newcomer() -> None:
        with processes[2].taken(alone=False):
            order.append("newcomer")

    with ThreadPoolExecutor(3) as pool:
        with processes[0].taken(alone=False):
            pool.submit(newcomer).result(TIMEOUT_S)
            waiting = pool.submit(alone)
            while not gate_is_held(tmp_path):
                assert not waiting.done()
            late = pool.submit(newcomer)
            order.append("first ends")
        waiting.result(TIMEOUT_S)
        late.result(TIMEOUT_S)
    for process in processes:
        process.close()
    assert order == ["newcomer", "first ends", "alone", "newcomer"]


def gate_is_held(folder: Path) -> bool:
    """Return whether a test is waiting for its turn."""
    with (folder / "gate.lock").open("w") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
