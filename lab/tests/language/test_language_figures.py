"""Summarize the figures of language models, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.language.comparison import agreement_of, summary_of
from pocketserve_lab.language.subject import TimedAnswer
from pocketserve_lab.language.texts import TEXT, read_sample_text


def test_agreement_counts_whole_texts_and_their_starts() -> None:
    agreement = agreement_of(["abcd", "same", ""], ["abxy", "same", ""])
    assert agreement["same"] == pytest.approx(2 / 3)
    assert agreement["start"] == pytest.approx((0.5 + 1 + 1) / 3)


def test_a_summary_has_medians_and_samples() -> None:
    samples = [TimedAnswer(first, 10, 20, 0.5) for first in (1.0, 9.0, 3.0)]
    figures = summary_of(samples)
    assert figures["first_ms"] == 3.0
    assert figures["samples"][1] == {
        "first_ms": 9.0,
        "prompt_rate": 10,
        "rate": 20,
        "cpu_s": 0.5,
    }


def test_the_text_may_come_from_a_file(tmp_path: Path) -> None:
    assert read_sample_text(None) == TEXT
    path = tmp_path / "t.txt"
    path.write_text(" Some words. \n")
    assert read_sample_text(path) == "Some words."
    path.write_bytes(b"\xff\xff")
    with pytest.raises(CommandError, match="has no text"):
        read_sample_text(path)
    with pytest.raises(CommandError, match="cannot be read"):
        read_sample_text(tmp_path)
