"""Run the long attacks, and write a table of their results.

``make soak`` calls this in the environment with every framework. It takes hours; nothing else should run meanwhile.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
CHOSEN = (
    *(
        "tests/attacks",
        "tests/live/test_mutations.py",
        "tests/live/test_answers_soak.py",
    ),
    *("tests/live/test_folder_soak.py", "tests/live/test_mixed_requests_soak.py"),
    *("tests/socket/test_socket_soak.py", "tests/engine/test_soak.py"),
)


def main(options: list[str]) -> int:
    """Run the tests marked ``soak``, and print their table."""
    BUILD.mkdir(exist_ok=True)
    rows = BUILD / "soak.jsonl"
    rows.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "POCKETSERVE_SOAK": "full",
        "POCKETSERVE_SOAK_TABLE": str(rows),
    }
    script = str(ROOT / "tools/run_tests.py")
    command = [sys.executable, script, "soak", "-m", "soak", "-q", *CHOSEN, *options]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    table = _table(rows)
    (BUILD / "soak.md").write_text(table, encoding="utf-8")
    print(table)
    return code


def _table(rows: Path) -> str:
    """The rows as Markdown, under the day and the machine."""
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    cells = "".join(
        f"| {what} | {figure} |\n" for what, figure in map(json.loads, lines)
    )
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"`make soak`, {day}, {machine}:\n\n| attack | figure |\n|---|---|\n{cells}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
