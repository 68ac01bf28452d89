"""Subtitles in SubRip's form and in WebVTT.

Sources: W3C, WebVTT; SubRip has no specification, and its times have a comma.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

SRT: Final = "srt"
VTT: Final = "vtt"


class Cue(NamedTuple):
    """A text with its time in seconds."""

    start: float
    end: float
    text: str


def subtitles(cues: Iterable[Cue], kind: str) -> str:
    """Return a file of subtitles.

    Args:
        kind: ``srt`` or ``vtt``.
    """
    parts = []
    if kind == VTT:
        parts.append("WEBVTT\n\n")
    for number, cue in enumerate(cues, 1):
        if kind == SRT:
            parts.append(f"{number}\n")
        start, end = _time(cue.start, kind), _time(cue.end, kind)
        parts.append(f"{start} --> {end}\n{_cue_text(cue.text, kind)}\n\n")
    return "".join(parts)


def _time(seconds: float, kind: str) -> str:
    total_ms = round(seconds * 1000)
    total_s, ms = divmod(total_ms, 1000)
    total_minutes, s = divmod(total_s, 60)
    hours, minutes = divmod(total_minutes, 60)
    mark = "," if kind == SRT else "."
    return f"{hours:02}:{minutes:02}:{s:02}{mark}{ms:03}"


def _cue_text(text: str, kind: str) -> str:
    """Return a cue's text; an arrow or an empty line would end it."""
    line = re.sub(r"-{2,}>", "->", " ".join(text.split()))
    if kind == VTT:
        line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return line
