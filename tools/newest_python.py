"""Run core tests on the Python that Termux has today.

Usage: .venv/bin/python tools/newest_python.py [--folder FOLDER] [--mirror URL] [-- PYTEST-ARGUMENTS]

The Python comes from Debian's next release, for this machine's processor. It is only
unpacked into ``.newest-python/``, and its own loader starts it, so that this system's C
library doesn't matter.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from android_toolchain import ToolchainError, say
from debian_root import (
    CORE_WHEELS,
    LIBRARIES,
    ROOT,
    describe,
    fetch_root,
    fetch_wheels,
    option_parser,
    ready_python,
    run_python,
    write_commands,
    write_script,
)

FOLDER_VARIABLE = "POCKETSERVE_NEWEST_PYTHON"
RELEASE, PYTHON = "forky", "3.14"
"""Termux went from 3.13 to 3.14 in July 2026."""

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
WHEELS = (
    *CORE_WHEELS,
    *(
        "segno",
        "scikit-learn",
        "srptools",
        "sentencepiece",
        "tokenizers",
        "zxing-cpp",
        "hatchling",
    ),
    "gunicorn",
    "pytest-xdist",
    "openapi-spec-validator",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the Python and run the tests; returns their exit code."""
    parser = option_parser(
        f"Run the tests on Python {PYTHON}.", FOLDER_VARIABLE, ".newest-python"
    )
    parser.add_argument("tests", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    try:
        python = ready_python(options, __file__, f"Python {PYTHON}", make_python)
    except ToolchainError as error:
        print(f"newest_python: {error}", file=sys.stderr)
        return 1
    say(f"the tests on {describe(python)}:")
    return run_python(
        python, str(ROOT / "tools/run_tests.py"), "newest", *options.tests
    ).returncode


def make_python(folder: Path, mirror: str) -> Path:
    """Fetch and unpack everything; returns the Python.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    root = folder / "root"
    python = root / "usr/bin/python3"  # beside its library, where it looks for it
    architecture = (
        subprocess.run(
            ["dpkg-deb", "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        .stdout.partition("(")[2]
        .partition(")")[0]
    )
    if architecture not in MACHINES:
        raise ToolchainError(
            f"there are no wheels for {architecture or 'this processor'}, only for {', '.join(MACHINES)}"
        )
    say(f"putting Python {PYTHON} of Debian {RELEASE} together in {folder} …")
    fetch_root(root, mirror, RELEASE, architecture, (f"python{PYTHON}", *LIBRARIES))
    site = root / "usr/lib/python3/dist-packages"
    fetch_wheels(site, PYTHON, MACHINES[architecture], WHEELS)
    write_commands(site)
    write_script(python, _start(python, root))
    write_script(python.with_name("pocketserve"), [str(python), "-m", "pocketserve"])
    return python


def _start(python: Path, root: Path) -> list[str]:
    """Return the command with its own loader and libraries."""
    loader = next(iter(sorted(root.glob("usr/lib*/ld-linux-*.so.*"))), None)
    libraries = next(iter(sorted((root / "usr/lib").glob("*-linux-gnu"))), None)
    if loader is None or libraries is None:
        raise ToolchainError("the C library that was unpacked has no loader")
    words = [
        loader,
        "--library-path",
        libraries,
        "--argv0",
        python,
        root / f"usr/bin/python{PYTHON}",
    ]
    return [str(word) for word in words]


if __name__ == "__main__":
    sys.exit(main())
