"""Print a comparison on a narrow terminal."""

from __future__ import annotations

import pytest

from pocketserve.terminal.output import print_text, print_wide_table
from pocketserve_lab.compare.report import print_skipped, with_interval

HEADER = ("VERSION", *(f"FIGURE {number}" for number in range(12)))
ROWS = [
    [name, *(f"{number}.000 ms" for number in range(12))]
    for name in ("tflite", "tflite-int8 *")
]


def test_a_wide_table_is_printed_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part fits and has the versions; a wide terminal gets one table."""
    monkeypatch.setenv("COLUMNS", "80")
    print_wide_table(HEADER, ROWS)
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    assert sum(line.startswith("tflite ") for line in printed) > 1
    assert " ".join(printed).split().count("11.000") == 2
    monkeypatch.setenv("COLUMNS", "300")
    print_wide_table(HEADER, ROWS)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_sentences_break_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names can't control the terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    print_text("keep tflite-int8 " * 6 + "\x1b[2J")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 40
    assert "\x1b" not in printed
    assert printed.split().count("tflite-int8") == 6


def test_a_time_without_an_interval_is_marked() -> None:
    """A width of 0 would look like certainty."""
    assert (
        with_interval(
            {
                "value": 2.0,
                "low": None,
                "high": None,
            }
        )
        == "2.00 (no interval)"
    )


def test_versions_that_lack_one_framework_share_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Versions omitted for another reason have their own."""
    lack = "no framework for {} models is installed: pip install 'pocketserve[torch]'; in Termux: pkg install x"
    print_skipped(
        {
            "torch": lack.format("torch"),
            "pt2": lack.format("pt2"),
            "onnx": "in quarantine: damaged",
        }
    )
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Not compared:",
        "  torch, pt2: waiting for a framework: pip install 'pocketserve[torch]'",
        "  onnx: in quarantine: damaged",
    ]
    print_skipped({})
    assert capsys.readouterr().out == ""
