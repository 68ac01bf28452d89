"""Select and schedule tests, and print the table of tests that did and didn't run."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from places import ROOT, STATE, find_assets
from selection import BIG, HOW, KINDS, MARKS, NOT_QUICK, THOROUGH, Kind

MAX_PROCESSES = 4
TESTS_MISSING = 6
"""Exit code of a run that skipped mandatory tests; pytest's own codes end at 5."""

TEST_FOLDERS = (ROOT / "tests", ROOT / "lab" / "tests")
"""Folders that contain the entries of ``selection.py``."""

EVERYTHING = Kind(frozenset())

# Random cases are the same in every run, and none fails because the machine was busy.
settings.register_profile(
    "pocketserve",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pocketserve")

_not_run: Counter[str] = Counter()


# for weights of models that tests build with frameworks


def _seed_frameworks() -> None:
    """Reseed the random numbers of the frameworks that are loaded."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Reseed before a fixture, so that its models don't depend on earlier tests."""
    _seed_frameworks()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Reseed before a test."""
    _seed_frameworks()


# Selection


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--for KIND`` and ``--no-skips``."""
    parser.addoption(
        "--for",
        dest="kind",
        choices=list(KINDS),
        help="leave out what such a run does without",
    )
    parser.addoption(
        "--no-skips", action="store_true", help="fail if any test is skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and let servers started by tests receive signals."""
    if threading.current_thread() is threading.main_thread():
        _hear_signals()
    for name, needs in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {needs}")


def _hear_signals() -> None:
    """Handle signals that the suite inherited as ignored.

    A script runs a suite in the background with Ctrl-C ignored, and ``nohup`` with the
    hangup ignored. Child processes inherit ignored signals but not handled ones; the
    suite itself still survives a hangup.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def _kind(config: pytest.Config) -> Kind:
    return KINDS.get(config.getoption("kind") or "", EVERYTHING)


def _without(config: pytest.Config) -> frozenset[str]:
    """Return the marks that are left out."""
    return _kind(config).without | ({"assets"} if find_assets() is None else set())


def _left_out(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(mark) for mark in _without(item.config)):
        return True
    return _not_chosen(item) or _had(item)


def _not_chosen(item: pytest.Item) -> bool:
    """Return whether the test belongs to another kind of run: other folders, or the
    quick one.
    """
    kind = _kind(item.config)
    if kind.only and not _lies_in(item.path, kind.only):
        return True
    if kind.quick is None:
        return False
    return kind.quick != _is_quick(item)


def _is_quick(item: pytest.Item) -> bool:
    """Return whether ``make test`` runs the test, rather than ``make test-core``."""
    if any(item.get_closest_marker(mark) for mark in NOT_QUICK):
        return False
    return not _lies_in(item.path, THOROUGH)


def _had(item: pytest.Item) -> bool:
    """Return whether ``make test`` or ``make test-core`` has run the test, with the
    same result.
    """
    return _lies_in(item.path, _kind(item.config).had) and not any(
        item.get_closest_marker(mark) for mark in BIG
    )


@functools.cache
def _lies_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(
        path.is_relative_to(folder / place)
        for folder in TEST_FOLDERS
        for place in places
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import files whose tests all run elsewhere."""
    kind = _kind(config)
    if not collection_path.match("test_*.py"):
        return None
    if kind.only and not _lies_in(collection_path, kind.only):
        return True
    if kind.quick and _lies_in(collection_path, THOROUGH):
        _not_run["in make test-core (whole files)"] += 1
        return True
    return None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect the tests that the run leaves out."""
    missing = [item for item in items if _left_out(item)]
    if missing:
        config.hook.pytest_deselected(items=missing)
        left_out = set(missing)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """Leave out a file that needs a missing framework, with its mark as the reason."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        mark = str(report.longrepr[2]).removeprefix("Skipped: ")
        if mark in _without(collector.config):
            _not_run[f"{mark} (whole files)"] += 1
            report.outcome = "passed"
            report.longrepr = None
            report.result = []
    return report


# Processes that share the tests (pytest-xdist), and their order


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use a process per core for ``-n auto``; more than four would need too much
    memory.
    """
    usable = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    return min(usable, MAX_PROCESSES)


class Turns:
    """Runs tests side by side, except those that need the whole machine.

    It is a lock that is shared or exclusive. A waiting test locks the gate, so that
    later tests queue behind one that waits to run alone. File locks end with their
    process, so that a crash blocks nobody.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self._gate, self._work = (
            os.open(folder / name, flags) for name in ("gate.lock", "work.lock")
        )

    def close(self) -> None:
        """Close the files."""
        os.close(self._gate)
        os.close(self._work)

    @contextmanager
    def taken(self, alone: bool) -> Iterator[None]:
        """Wait for a test's turn and keep it until the block ends."""
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._work, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._work, fcntl.LOCK_UN)


TURNS = pytest.StashKey[Turns]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Wait for the test's turn.

    Its fixtures are part of it.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    if TURNS not in item.config.stash:
        item.config.stash[TURNS] = turns = Turns(STATE)
        item.config.add_cleanup(turns.close)
    with item.config.stash[TURNS].taken(
        alone=item.get_closest_marker("alone") is not None
    ):
        return (yield)


# The table of tests that did and didn't run: nothing is skipped silently


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count deselected tests by their reason."""
    for item in items:
        _not_run[_reason(item)] += 1


def _reason(item: pytest.Item) -> str:
    """Return the reason: an option of pytest, another run, or marks."""
    if not _left_out(item):
        return "not chosen"
    if _had(item):
        return "the same in make test or test-core"
    marks = [
        mark for mark in MARKS if mark not in HOW and item.get_closest_marker(mark)
    ]
    missing = [mark for mark in marks if mark in _without(item.config)]
    if not missing and _kind(item.config).quick is not None:
        if _is_quick(item):
            return "in make test"
        return "in make test-core"
    return ", ".join(marks) or "not chosen"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report deselected tests to the first process; a skipped mandatory test is a
    failure.
    """
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = dict(_not_run)
    ended_by_itself = session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    )
    if ended_by_itself and _tests_are_missing(session):
        session.exitstatus = TESTS_MISSING


def _tests_are_missing(session: pytest.Session) -> bool:
    """Return whether ``-x`` ended the run early, or a mandatory test was skipped."""
    if session.shouldfail or session.shouldstop:
        return True
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", ()) if reporter is not None else ()
    if session.config.getoption("no_skips") and skipped:
        return True
    kind = _kind(session.config)
    return any(_had_to_run(kind, ROOT / report.fspath) for report in skipped)


def _had_to_run(kind: Kind, path: Path) -> bool:
    """Return whether nothing in a file may be skipped."""
    return kind.complete or _lies_in(path, kind.only_here)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Keep one process's counts: all of them deselect the same."""
    _not_run.clear()
    _not_run.update(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    terminalreporter.section("what was run")
    run = sum(
        len(terminalreporter.stats.get(kind, ()))
        for kind in ("passed", "failed", "error")
    )
    terminalreporter.write_line(f"{'run':32}{run:6}")
    for marks, count in sorted(_not_run.items()):
        reason = "  (the folder of test models was not found)"
        if find_assets() or "assets" not in marks:
            reason = ""
        terminalreporter.write_line(f"{'not run: ' + marks:32}{count:6}{reason}")
