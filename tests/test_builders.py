"""Look for a module's building function before ``trust`` asks for consent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketserve.cli import main
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import format_named
from pocketserve.trust.builders import check_builder


def version(folder: Path, source: str, **options: Any) -> VersionEntry:
    """Return the version of a ``model.py``."""
    path = folder / "model.py"
    path.write_text(source)
    kind = format_named("torch")
    assert kind is not None
    return VersionEntry("torch", kind, path, options)


@pytest.mark.parametrize(
    "source",
    [
        "def build():\n    pass\n",
        "class build:\n    pass\n",
        "build = make\n",
        "from other import build\n",
        "from other import make as build\n",
        "from other import *\n",
        "if True:\n    def build(): pass\n",
        "try:\n    from a import build\nexcept ImportError:\n    build = None\n",
    ],
)
def test_a_function_that_may_exist_is_accepted(tmp_path: Path, source: str) -> None:
    check_builder(version(tmp_path, source))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def make():\n    build = 1\n",
        "import other\n",
        "class A:\n    def build(self): ...\n",
    ],
)
def test_a_missing_function_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelLoadError, match="has no function 'build'"):
        check_builder(version(tmp_path, source))


def test_another_name_is_suggested(tmp_path: Path) -> None:
    check_builder(version(tmp_path, "def make(): ...\n", function="make"))
    with pytest.raises(ModelLoadError, match="has no function 'make'"):
        check_builder(version(tmp_path, "def build(): ...\n", function="make"))


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is not Python"):
        check_builder(version(tmp_path, "def build(:\n"))


def test_the_command_refuses_before_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "net").mkdir()
    version(tmp_path / "net", "import torch\n")

    assert main(["trust", str(tmp_path / "net"), "--yes"]) == 1
    printed = capsys.readouterr()
    assert "has no function 'build'" in printed.err
    assert "Trusted" not in printed.out


def test_the_command_names_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "net").mkdir()
    version(tmp_path / "net", "def build(): ...\n")

    assert main(["trust", str(tmp_path / "net"), "--yes"]) == 0
    assert f"pocketserve init {tmp_path}/net --shape" in " ".join(
        capsys.readouterr().out.split()
    ).replace("- ", "-")
