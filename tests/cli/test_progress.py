"""Tests of the progress of long commands, on narrow terminals too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Iterator

import pytest

from pocketserve.terminal import progress as module
from pocketserve.terminal.progress import Progress


@contextlib.contextmanager
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard error a terminal of 45 columns.

    Yield its other end.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 45, 0, 0))
    with monkeypatch.context() as patch, open(theirs, "w", encoding="utf-8") as stream:
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def drawn(terminal: int, count: int) -> list[str]:
    """Read this number of redrawn lines, which may arrive in pieces."""
    text = b""
    while text.count(module.CLEAR_LINE.encode()) < count:
        assert select.select([terminal], [], [], 30)[0]
        text += os.read(terminal, 65536)
    return text.decode().split(module.CLEAR_LINE)[1:]


def test_a_bar_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with narrow_terminal(monkeypatch) as terminal:
        progress = Progress()
        for title in (
            "measuring",
            "x" * 36,
            "x" * 100,
        ):
            progress.show(title, 0.5)
        progress.end()
        lines = drawn(terminal, 4)
    assert max(map(len, lines)) < 45
    assert re.fullmatch(r"measuring \[#+ +\]  50%", lines[0])
    assert lines[1] == "x" * 36 + "  50%"
    assert lines[2] == "x" * 36 + "...  50%"
    assert lines[-1] == ""


def test_a_title_that_is_too_long_loses_its_last_clause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with narrow_terminal(monkeypatch) as terminal:
        progress = Progress()
        for name in ("mobilenet_v1", "m" * 60):
            progress.show(f"3 s, waiting for {name}, which may be loading", 0.5)
        progress.end()
        lines = drawn(terminal, 3)
    assert re.fullmatch(r"3 s, waiting for mobilenet_v1( \[.*\])?  50%", lines[0])
    assert lines[1] == "3 s, waiting for " + "m" * 19 + "...  50%"


def test_a_long_wait_shows_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECOND_S", 0.01)
    with (
        narrow_terminal(monkeypatch) as terminal,
        Progress().waiting("waiting for digits"),
    ):
        first, *_ = drawn(terminal, 2)  # while the block runs
    assert first == "0 s, waiting for digits"


def test_no_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress().waiting("waiting"):
        pass
    progress = Progress(lines=True)
    for share in (0.1, 0.2):
        progress.show("loading", share)
    progress.end()
    assert capsys.readouterr().err == "loading …\n"
