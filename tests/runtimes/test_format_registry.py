"""List the formats, and explain how to install a missing framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketserve.runtimes.registry import (
    FORMATS,
    format_named,
    look_again,
    missing_framework,
)


@pytest.fixture(autouse=True)
def _fresh():
    look_again()
    yield
    look_again()


def test_names_are_unique() -> None:
    assert len({kind.name for kind in FORMATS}) == len(FORMATS)


def test_a_missing_package_names_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind in FORMATS:
        if kind.packages:
            text = missing_framework(kind)
            assert text is not None
            assert "pip install 'pocketserve[" in text
            assert "Termux" in text


def test_missing_node_packages_name_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCKETSERVE_TFJS_MODULES", str(tmp_path))
    kind = format_named("tfjs")
    assert kind is not None
    text = missing_framework(kind)
    assert text is not None
    assert f"npm install --prefix {tmp_path} @tensorflow/tfjs@" in text
