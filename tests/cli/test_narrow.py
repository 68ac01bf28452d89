"""Output on a phone's terminal of 45 columns breaks no words."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.cli import main

COLUMNS = 45
Run = Callable[..., str]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run a command on a narrow terminal; return its output."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("POCKETSERVE_MODELS_DIR", raising=False)

    def printed(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return printed


def test_help_in_a_pager_fits_the_terminal() -> None:
    master, terminal = os.openpty()
    try:
        size = struct.pack("HHHH", 40, COLUMNS, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        environment = {key: os.environ[key] for key in os.environ if key != "COLUMNS"}
        done = subprocess.run(
            [sys.executable, "-m", "pocketserve", "bench", "--help"],
            env=environment,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            timeout=120,
        )
    finally:
        os.close(master)
        os.close(terminal)
    assert done.returncode == 0
    assert too_long(done.stdout) == []


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / "petals" / "petals.tflite", folder / "m.tflite")
    (folder / "task.py").write_text("x = 1\n")
    (folder / "helper.py").write_text("y = 1\n")
    return folder


def too_long(text: str) -> list[str]:
    """Return lines that the terminal would break inside a word.

    Single words, such as paths, don't count.
    """
    return [
        line
        for line in text.splitlines()
        if len(line) > COLUMNS and " " in line.strip()
    ]


def test_the_consent_question_fits_the_terminal(run: Run, own: Path) -> None:
    text = run("trust", own, "--yes")
    *others, last = text.splitlines()
    assert too_long("\n".join(others)) == []
    # A command stays on one line, to be copied.
    assert last.startswith("Trusted. `pocketserve trust --revoke ")
    lines = text.splitlines()
    title = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("task.py: asked, ")
    )
    assert " ".join(lines[title + 1].split()).startswith("prepares inputs and answers")
    text = run("trust", "--list")
    assert too_long(text) == []
    assert text.splitlines()[0].startswith("own: 20")
    assert text.splitlines()[1] == f"    {own / 'task.py'}"
    text = run("trust", "--revoke", own)
    assert too_long(text) == []
    assert str(own / "helper.py") in text


@pytest.mark.parametrize("is_termux", [False, True])
def test_a_saved_picture_fits_the_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_termux: bool
) -> None:
    if is_termux:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "termux-open").write_text("#!/bin/sh\n")
        (tmp_path / "bin" / "termux-open").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    target = tmp_path / "it is out.png"
    text = run(
        "predict",
        "--local",
        MODELS / "digits",
        MODELS / "digits/samples/7.png",
        "--save",
        target,
    )
    look = f"Look at it: termux-open {shlex.quote(str(target))}"
    assert (look in text.splitlines()) == is_termux
    rest = "\n".join(line for line in text.splitlines() if line != look)
    assert " ".join(rest.split()).endswith(
        f"The picture with the answer drawn on it is in {target}"
    )


@pytest.mark.parametrize(
    ("columns", "begin"),
    [
        (45, r"\d\d:\d\d:\d\d WARNING"),
        (80, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING"),
    ],
)
def test_the_log_omits_the_date_on_a_narrow_terminal(
    columns: int, begin: str, tmp_path: Path
) -> None:
    code = (
        "from pocketserve.terminal.log_output import prepare_process\n"
        "from pocketserve.config import load_config\n"
        "prepare_process(load_config({'auth': False}))\n"
    )
    environment = {
        **os.environ,
        "COLUMNS": str(columns),
        "POCKETSERVE_STATE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stderr.splitlines()
    starts = [line for line in lines if not line.startswith(" ")]
    assert re.match(f"{begin} no token is", starts[-1])
    if columns == 45:
        assert len(lines) > len(starts)
        assert max(map(len, lines)) <= columns
