"""Subtitles of any text can be read back."""

from __future__ import annotations

import pytest

from pocketserve.tasks.speech.subtitles import SRT, VTT, Cue, subtitles


@pytest.mark.parametrize("kind", [SRT, VTT])
@pytest.mark.parametrize("text", ["a --> b", "a ---> b", "a\n\nb"])
def test_no_text_ends_its_cue(kind: str, text: str) -> None:
    lines = subtitles([Cue(0.0, 1.0, text)], kind).strip().splitlines()
    assert sum("-->" in line for line in lines) == 1
    assert lines[-2].endswith("1,000" if kind == SRT else "1.000")
