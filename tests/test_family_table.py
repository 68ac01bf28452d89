"""Check the table of model families in ``docs/generated/families.md``."""

from __future__ import annotations

import subprocess
import sys

from places import ROOT

TOOL = ROOT / "tools" / "family_table.py"


def test_the_table_is_up_to_date() -> None:
    """It is generated from the rows of the tests, which import no framework."""
    command = [sys.executable, str(TOOL), "--check"]

    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )

    assert process.returncode == 0, process.stderr
