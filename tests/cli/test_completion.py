"""Tests of ``pocketserve completion``, in Python and in bash."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pocketserve.cli import COMMANDS, main
from pocketserve.cli.completion import SCRIPTS
from pocketserve.cli.installed import LAB_COMMANDS


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch) -> None:
    """Set up three models and hide the user's servers."""
    for name in ("diabetes", "digits", "petals"):
        (tmp_path / "three" / name).mkdir(parents=True)
        (tmp_path / "three" / name / "model.toml").touch()
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(tmp_path / "three"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("''", [*COMMANDS, *LAB_COMMANDS, "help"]),
        ("stat", ["status"]),
        ("--u", ["--url"]),
        ("--", ["--debug", "--help", "--json", "--token-file", "--url", "--version"]),
        ("--url http://x --json relo", ["reload"]),
        ("--token-file ''", []),
        ("help pre", ["predict"]),
        ("unknown ''", []),
        ("predict ''", ["diabetes", "digits", "petals"]),
        ("run --top-k 3 di", ["diabetes", "digits"]),
        ("predict --url=http://127.0.0.1:1 pe", ["petals"]),
        ("predict --url http : //127.0.0.1 : 1 pe", ["petals"]),  # as bash splits it
        ("predict --top-k ''", []),
        ("predict digits ''", []),  # files
        ("ps --w", ["--watch"]),
        ("serve --load digits pe", ["petals"]),
        ("serve --low-power ''", ["auto", "off", "on"]),
        ("reload digits pe", ["petals"]),
        ("rename pe", ["petals"]),
        ("mv petals pe", []),
        ("service ''", ["install", "remove", "status"]),
        ("service nothing ''", ["install", "remove", "status"]),
        ("service install --kind s", ["systemd"]),
        ("service status --", ["--help", "--json", "--kind"]),
        ("completion z", ["zsh"]),
    ],
)
def test_the_possible_next_words(capsys, line, expected) -> None:
    assert main(["completion", "bash", "words", *shlex.split(line)]) == 0
    assert capsys.readouterr().out.split() == sorted(expected)


def test_names_come_from_the_models_folder(capsys, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "models"
    for name in (
        "flowers.tflite",
        "flowers.onnx",
        "notes.txt",
        ".hidden.onnx",
        "code/run.py",
        "nets/7/model.onnx",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(folder))
    assert main(["completion", "fish", "words", "predict", ""]) == 0
    assert capsys.readouterr().out.split() == ["flowers", "nets"]
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(folder / "flowers.tflite"))
    assert main(["completion", "fish", "words", "predict", ""]) == 0
    assert capsys.readouterr().out.split() == ["flowers"]


# Every machine that runs the tests has bash.
@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell)])
def test_shells_accept_the_script(tmp_path, shell) -> None:
    program = tmp_path / "bin/pocketserve"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pocketserve "$@"\n')
    program.chmod(0o755)
    load = f'PATH={program.parent}:$PATH; eval "$(pocketserve completion {shell})"\n'
    ask = {
        "bash": load
        + "COMP_WORDS=(pocketserve predict p) COMP_CWORD=2; _pocketserve; echo ${COMPREPLY[@]}",
        "zsh": "compdef() { :; }; compadd() { echo $words_found };"
        + load
        + "words=(pocketserve predict p) CURRENT=3; _pocketserve",
        "fish": f"set PATH {program.parent} $PATH; pocketserve completion fish | source; "
        "complete -C 'pocketserve predict p'",
    }[shell]
    done = subprocess.run(
        [shell, "-c", ask],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("petals\n", "")
