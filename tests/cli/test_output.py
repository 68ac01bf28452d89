"""Commands print safe and readable text, whatever the names in it."""

from __future__ import annotations

import io
import sys

import pytest

from pocketserve.cli import main
from pocketserve.cli.commands.inspect import _print_numbers
from pocketserve.terminal.output import (
    plain_output,
    print_facts,
    print_table,
    print_text,
    printable,
)

ODD = "a\x1b]0;x\x07\n\u2028\x9b1m\ud800é名"


def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """No control characters, forged lines or unprintable half characters."""
    print_table(["NAME", ODD], [[ODD, "1"], ["b", "2"]])
    print_facts([(ODD, ODD), ("none", "")])
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3 + 1 + 1
    assert all(char.isprintable() for line in lines for char in line)
    assert printable(ODD) == r"a\x1b]0;x\x07\n\u2028\x9b1m\ud800é名"
    assert lines[1].endswith("  1")
    assert lines[2].endswith("  2")
    assert len(lines[1]) == len(lines[2])


REASON = "no framework for it is installed: install one"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            100,
            [
                "MODEL  STATE        NOTE",
                f"digits UNAVAILABLE  {REASON}",
                "petals READY",
            ],
        ),
        (
            45,
            [
                "MODEL   STATE        NOTE",
                "digits  UNAVAILABLE  no framework for it is",
                " " * 21 + "installed: install one",
            ],
        ),
        (
            40,
            [
                "MODEL   STATE        NOTE",
                "digits  UNAVAILABLE",
                "    no framework for it is installed:",
                "    install one",
            ],
        ),
    ],
)
def test_the_last_column_wraps_on_a_narrow_terminal(
    capsys, monkeypatch, columns, expected
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(
        ["MODEL", "STATE", "NOTE"],
        [["digits", "UNAVAILABLE", REASON], ["petals", "READY", ""]],
    )
    lines = []
    for line in capsys.readouterr().out.splitlines():
        if columns == 100:
            lines.append(" ".join(line.split()))
        else:
            lines.append(line)
    expected = (
        [" ".join(line.split()) for line in expected]
        if columns == 100
        else [*expected, "petals  READY"]
    )
    assert lines == expected


def test_facts_wrap_below_their_values(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_facts([("name", "digits"), ("license", "one that needs more than a line")])
    assert capsys.readouterr().out.splitlines() == [
        "name     digits",
        "license  one that needs more",
        "         than a line",
    ]


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variable", "has_colour"),
    [
        ("", True),
        ("NO_COLOR", False),
        ("TERM", False),
    ],
)
def test_colour_requires_terminal_support(monkeypatch, variable, has_colour) -> None:
    for name, value in {
        "NO_COLOR": "",
        "TERM": "xterm",
        **({variable: "dumb"} if variable else {}),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with plain_output():
        print_table(["NAME", "STATE"], [["\x1b[7m", "READY"]])
        print_text("PROBLEM  here", mark="PROBLEM")
    text = terminal.getvalue()
    assert (
        "\x1b[1mSTATE\x1b[0m" in text and "\x1b[31mPROBLEM\x1b[0m  here" in text
    ) == has_colour
    assert (
        "\x1b" in text
    ) == has_colour and r"\x1b[7m" in text  # text from elsewhere stays text


def test_help_fits_a_narrow_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr("pocketserve.cli._width", lambda: 43)
    with pytest.raises(SystemExit):
        main(["stop", "--help"])
    assert (
        "\n  --debug\n        show where an error came from\n"
        in capsys.readouterr().out
    )
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "\n    stop         stop the running server\n" in capsys.readouterr().out


def test_no_line_ends_between_a_number_and_its_unit(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_text("it took 180 ms, of which 6.0 ms and 3 statements")
    assert (
        capsys.readouterr().out
        == "it took 180 ms, of\nwhich 6.0 ms and 3\nstatements\n"
    )


def test_without_a_terminal_there_is_no_colour(capsys, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    print_table(["NAME", "STATE"], [["a", "READY"]])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", [45, 100])
def test_usage_omits_options_and_fits(capsys, monkeypatch, columns) -> None:
    monkeypatch.setattr("pocketserve.cli.terminal_columns", lambda: columns)
    monkeypatch.setattr("pocketserve.cli._width", lambda: columns - 2)
    with pytest.raises(SystemExit):
        main(["serve", "--prot"])
    lines = capsys.readouterr().err.splitlines()
    usage = "usage: pocketserve serve [options] [MODELS_DIR]"
    assert "\n".join(lines[:-1]) == (
        usage if columns > 45 else usage.replace(" [o", "\n    [o")
    )
    assert lines[-1].startswith(
        "pocketserve serve: error: unrecognized arguments: --prot (did you mean "
    )


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([("x", "FP32", [-1, 3])], "input.json holds:\n  [[0.0, 0.0, 0.0]]\n"),
        ([("x", "BYTES", [])], 'input.json holds:\n  "text"\n'),
        ([("x", "INT8", [0])], "input.json holds:\n  [0]\n"),
        (
            [("x", "FP32", [1, 8]), ("h", "BOOL", [2, 1]), ("rate", "INT64", [])],
            "input.json holds (… is more of the same):\n"
            '  {"x": [[0.0, … 8 in all]], "h": [[false], … 2 in all], "rate": 0}\n',
        ),
    ],
)
def test_summarise_a_file_of_numbers(capsys, inputs, text) -> None:
    keys = ("name", "datatype", "shape")
    _print_numbers([dict(zip(keys, each, strict=True)) for each in inputs])
    assert capsys.readouterr().out == f"\n{text}"
