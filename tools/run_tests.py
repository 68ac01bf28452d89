"""Run one kind of tests, then failed ones again, alone.

Usage: .venv/bin/python tools/run_tests.py KIND [PYTEST-ARGUMENTS]

A test that fails among others and passes alone is flaky. The run passes then, and lists such tests at its very end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAKY_HEADING = "flaky: passed when run again alone; mend or delete"
LIST_VARIABLE = "FLAKY_TESTS_FILE"
"""Names a file that gets a line for each flaky test: ``KIND: TEST``."""

TESTS_FAILED = 1
"""The exit code of pytest if tests failed and nothing else went wrong."""

# A test that is now skipped or missing has not passed.
AGAIN = ("--last-failed", "--last-failed-no-failures=none", "--no-skips")
ONE_PROCESS = ("-n", "0")


def main(arguments: Sequence[str]) -> int:
    """Run the tests; return the exit code."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    kind, *options = arguments
    # A cache for this run only: others must not replace the list of failed tests.
    with tempfile.TemporaryDirectory(prefix="pocketserve-pytest-") as cache:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-o",
            f"cache_dir={cache}",
            f"--for={kind}",
            *options,
        ]
        code = run(command)
        failed = failed_tests(Path(cache))
        if code != TESTS_FAILED or not can_run_again(failed):
            return code
        print(f"\n{len(failed)} failed; running them again, alone", flush=True)
        command += AGAIN
        if importlib.util.find_spec("xdist"):
            command += ONE_PROCESS
        code = run(command)
        failed_again = failed_tests(Path(cache))
    if code == 0 and failed_again:
        code = TESTS_FAILED
    if code in (0, TESTS_FAILED):
        report(kind, failed, failed_again)
    return code


def run(command: Sequence[str]) -> int:
    """Run a command, pass on signals, and return its exit code."""
    process = subprocess.Popen(command, cwd=ROOT)
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has signalled pytest, too, which first ends its servers.
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def failed_tests(cache: Path) -> list[str]:
    """Return the ids of the tests that failed, from pytest's cache."""
    file = cache / "v" / "cache" / "lastfailed"
    if not file.exists():
        return []
    return sorted(json.loads(file.read_text(encoding="utf-8")))


def can_run_again(failed: Sequence[str]) -> bool:
    """Return whether the failed tests can be run alone."""
    if not failed:
        return False
    return all("::" in test for test in failed)


def report(kind: str, failed: Sequence[str], failed_again: Sequence[str]) -> None:
    """Print the tests that failed twice, then the flaky ones."""
    flaky = [test for test in failed if test not in failed_again]
    if failed_again:
        print("\nfailed again, alone")
        for test in failed_again:
            print(f"  {test}")
    if flaky:
        print(f"\n{FLAKY_HEADING}")
        for test in flaky:
            print(f"  {test}")
        record(kind, flaky)
    sys.stdout.flush()


def record(kind: str, flaky: Sequence[str]) -> None:
    """Append the flaky tests to the file that the environment names."""
    file = os.environ.get(LIST_VARIABLE)
    if not file:
        return
    with open(file, "a", encoding="utf-8") as lines:
        for test in flaky:
            lines.write(f"{kind}: {test}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
