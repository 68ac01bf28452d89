"""Fixtures that run commands of the models folder in this process."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pocketserve.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear variables for servers, settings and the hub."""
    for name in [
        name for name in os.environ if name.startswith(("POCKETSERVE_", "HF_"))
    ]:
        monkeypatch.delenv(name)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``pocketserve`` with these arguments.

    Return its exit code and output.
    """

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
