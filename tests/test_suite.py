"""How the suite itself chooses tests and shares them out."""

from __future__ import annotations

import fcntl
import itertools
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import ROOT
from selection import BIG, HOW, KINDS, MARKS
from suite import TESTS, Turns, _had_to_run, _left_out

TIMEOUT_S = 30.0


def test_every_mark_is_documented() -> None:
    """The table of tests/README.md has the marks, each once and no other."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "tests/README.md").read_text("utf-8"), re.MULTILINE)
    assert rows == list(MARKS)


def test_kinds_leave_out_marks_that_exist() -> None:
    """No kind leaves tests out for the way in which they run, except where no server can be started."""
    for name, kind in KINDS.items():
        assert kind.without <= set(MARKS), name
        assert [place for place in kind.had if not (ROOT / "tests" / place).exists()] == [], name
    assert KINDS["dev"].without == BIG and not BIG & set(HOW) and not KINDS["dev"].had


def test_the_makefile_names_kinds() -> None:
    """Each run of pytest there is of a kind that exists, and no list of marks stands beside it."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    kinds = set(re.findall(r"-m pytest --for ([\w-]+)", makefile))
    assert kinds == {"dev", "all", "browser", "convert", "tflite-runtime", "triton", "ray"}
    assert makefile.count("-m pytest") == 7 and "not (" not in makefile


def test_no_test_falls_between_the_kinds() -> None:
    """Wherever it lies and whatever it needs, ``make test-all`` runs it, or ``make test-browser``, or ``make
    test-convert`` where it needs the environments of converters, ``make soak`` what is ``long``, ``make
    test-triton`` or ``make test-ray``. Assets may be missing, which is told."""
    alone = set(MARKS) - {"assets", "convert", "long", "triton", "ray"}
    some = [set(marks) for number in (0, 1, 2) for marks in itertools.combinations(alone, number)]
    needs = [{"convert"}, {"triton", "live"}, {"ray", "live"}, {"long", "soak"}, *some]
    for place in {*KINDS["all"].had, *KINDS["tflite-runtime"].had, "http/test_http.py"}:
        for marks in needs:
            kinds = ("dev", "all", "tflite-runtime", "browser", "convert", "soak", "triton", "ray")
            runs = [kind for kind in kinds if not _left_out(item(kind, place, marks))]
            assert runs, (place, marks)


def item(kind: str, place: str, marks: set[str]) -> Any:
    """What the choice looks at in a test."""
    config = SimpleNamespace(getoption=lambda _name: kind)
    return SimpleNamespace(config=config, path=TESTS / place, get_closest_marker=lambda mark: mark in marks or None)


def test_what_other_runs_rely_on_may_not_be_skipped() -> None:
    """What ``all`` leaves out ``make test`` alone has; all else ``all`` has: no missing package goes unnoticed."""
    assert KINDS["dev"].only_here == KINDS["all"].had and KINDS["all"].complete
    assert _had_to_run(KINDS["dev"], TESTS / "tasks/test_wordpiece.py")
    assert not _had_to_run(KINDS["dev"], TESTS / "cli/test_cli_commands.py")


def test_what_a_run_does_without_is_left_out_and_told(tmp_path: Path) -> None:
    """By mark; a whole file whose framework is missing, too. Only a skip is a skip, and fails a complete run."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("suite",)')
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_small(): pass\n"
        "@pytest.mark.torch\ndef test_large(): pass\n"
        "@pytest.mark.alone\ndef test_alone(): pytest.skip('this system cannot')\n"
    )
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_module', reason='torch')\n")
    done = {kind: run_suite(tmp_path, "--for", kind, "-m", "not soak") for kind in ("dev", "tflite-runtime")}
    for _, said in done.values():
        assert re.search(r"^not run: torch +1$", said, re.MULTILINE)
        assert re.search(r"^not run: torch \(whole files\) +1$", said, re.MULTILINE)
        assert "1 passed, 1 skipped, 1 deselected" in said
    assert [code for code, _ in done.values()] == [0, 1]
    code, said = run_suite(tmp_path)
    assert code == 0 and "2 passed, 2 skipped" in said


def run_suite(folder: Path, *arguments: str) -> tuple[int, str]:
    """A suite of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), "--strict-markers"]
    options = ["-o", f"pythonpath={ROOT / 'tests'}", "-c", str(folder / "pytest.ini"), *arguments, str(folder)]
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_tests_run_side_by_side_and_one_alone(tmp_path: Path) -> None:
    """Who wants to be alone waits for those that run, and lets no newcomer overtake it."""
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
    """Whether somebody waits for a turn."""
    with (folder / "gate.lock").open("w") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
