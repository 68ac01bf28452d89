"""``pocketserve scale`` where there is nothing to scale, or no Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from places import MODELS
from pocketserve.cli import main


@pytest.fixture
def _ray_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the command can see before it needs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())


def test_without_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert main(["scale", str(MODELS)]) == 1
    assert (
        capsys.readouterr().err
        == "pocketserve: Ray is not installed; run: pip install 'pocketserve-lab[ray]'\n"
    )


@pytest.mark.usefixtures("_ray_is_there")
@pytest.mark.parametrize(
    ("options", "port", "sentence"),
    [
        (
            ["/nowhere"],
            "8470",
            "the models folder /nowhere cannot be read (No such file or directory)",
        ),
        (["EMPTY"], "8470", "EMPTY has no models; `pocketserve add` brings one there"),
        ([str(MODELS)], "0", "Ray needs a port; name one with POCKETSERVE_HTTP_PORT"),
        (
            [str(MODELS), "--address", "auto", "--haproxy"],
            "8470",
            "--haproxy is for a Ray of one's own",
        ),
    ],
    ids=["no folder", "no models", "any port", "HAProxy elsewhere"],
)
def test_one_that_cannot_start(
    options: list[str],
    port: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before Ray is started, which takes ten seconds."""
    monkeypatch.setenv("POCKETSERVE_HTTP_PORT", port)
    assert (
        main(["scale", *(option.replace("EMPTY", str(tmp_path)) for option in options)])
        == 1
    )
    assert sentence.replace("EMPTY", str(tmp_path)) in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("text", ["0", "3..2", "1..", "..2", "x", "1..99999", "-1"])
def test_numbers_of_replicas(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number, or two of which the first is not larger."""
    with pytest.raises(SystemExit) as end:
        main(["scale", str(MODELS), f"--replicas={text}"])
    assert (
        end.value.code == 2
        and "no number of replicas such as 2 or 1..4"
        in " ".join(capsys.readouterr().err.split())
    )
