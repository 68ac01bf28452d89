"""Run ``pocketserve scale`` without models, or without Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from places import MODELS
from pocketserve.cli import main


@pytest.fixture
def _ray_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Ray is installed until the command imports it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())


def test_a_missing_ray_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names the installation."""
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
        (["EMPTY"], "8470", "EMPTY has no models; add one with `pocketserve add`"),
        ([str(MODELS)], "0", "Ray needs a port; name one with POCKETSERVE_HTTP_PORT"),
        (
            [str(MODELS), "--address", "auto", "--haproxy"],
            "8470",
            "--haproxy is for a new Ray",
        ),
    ],
    ids=["no folder", "no models", "any port", "HAProxy elsewhere"],
)
def test_a_broken_folder_is_refused_before_ray_starts(
    options: list[str],
    port: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ray takes ten seconds to start."""
    monkeypatch.setenv("POCKETSERVE_HTTP_PORT", port)
    assert (
        main(["scale", *(option.replace("EMPTY", str(tmp_path)) for option in options)])
        == 1
    )
    assert sentence.replace("EMPTY", str(tmp_path)) in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("text", ["0", "3..2", "1..", "..2", "x", "1..99999", "-1"])
def test_numbers_of_replicas_are_validated(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single number or an increasing range is valid."""
    with pytest.raises(SystemExit) as end:
        main(
            [
                "scale",
                str(MODELS),
                f"--replicas={text}",
            ]
        )
    assert end.value.code == 2
    assert "not a number of replicas such as 2 or 1..4" in " ".join(
        capsys.readouterr().err.split()
    )
