"""What commands print, whatever the names in it."""

from __future__ import annotations

import pytest

from pocketserve.cli.output import print_facts, print_table, printable

ODD = "a\x1b]0;x\x07\n\u2028\x9b1m\ud800é名"


def test_no_name_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by a control, nor by a line of its own, nor by half a character that cannot be printed."""
    print_table(["NAME", ODD], [[ODD, "1"], ["b", "2"]])
    print_facts([(ODD, ODD), ("none", "")])
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3 + 1 + 1
    assert all(char.isprintable() for line in lines for char in line)
    assert printable(ODD) == r"a\x1b]0;x\x07\n\u2028\x9b1m\ud800é名"
    assert lines[1].endswith("  1") and lines[2].endswith("  2") and len(lines[1]) == len(lines[2])
