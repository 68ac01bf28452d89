"""Compare the page's libraries with the digests in ``vendor.json``."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from places import ROOT


def load_tool() -> ModuleType:
    """Import ``tools/vendor.py``."""
    spec = importlib.util.spec_from_file_location(
        "vendor_tool", ROOT / "tools" / "vendor.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def test_files_are_the_pinned_ones() -> None:
    assert tool.main(["--check"]) == 0


@pytest.mark.parametrize("fault", ["changed", "missing", "more"])
def test_a_difference_is_reported(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "vendor"
    shutil.copytree(tool.FOLDER, folder)
    file = folder / "lit-html" / "lit-html.js"
    if fault == "missing":
        file.unlink()
    elif fault == "more":
        file.with_name("more.js").write_text("export {}")
    else:
        file.write_bytes(file.read_bytes() + b"\n")
    assert tool.main(["--check", "--folder", str(folder)]) == 1
    assert "run tools/vendor.py" in capsys.readouterr().err


def test_another_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "lit-html-3.3.3.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(tool.VendorError, match="not the pinned archive"):
        tool._verify(archive, tool.packages()["lit-html"]["integrity"])


def test_every_library_has_its_licence() -> None:
    words = {"BSD-3-Clause": "BSD 3-Clause"}
    for name, package in tool.packages().items():
        text = (tool.FOLDER / name / "LICENSE").read_text("utf-8")
        assert words[package["licence"]] in text
        assert "dist" not in {
            part for file in package["files"].values() for part in Path(file).parts
        }
