"""Check the refusals of ``make release``, and its comparison of builds."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT
from pocketserve import __version__


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """Import the script."""
    spec = importlib.util.spec_from_file_location(
        "release_tool", ROOT / "tools" / "release.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository with a changelog only."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text(
        "# Changes\n\n## Unreleased\n\n## 1.2.30 - 2026-01-01\n"
    )
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(
        folder,
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@localhost",
        "commit",
        "-qm",
        "Begin",
    )
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)


def test_a_dirty_clone_is_refused(tool: ModuleType, clone: Path) -> None:
    """It has a changed or a new file."""
    tool.check(clone, "1.2.30")
    (clone / "new.txt").write_text("x")
    with pytest.raises(tool.ReleaseError, match=r"first: new\.txt$"):
        tool.check(clone, "1.2.30")
    (clone / "new.txt").unlink()
    (clone / "CHANGELOG.md").write_text("## 1.2.30\n\nmore\n")
    with pytest.raises(tool.ReleaseError, match=r"first: CHANGELOG\.md$"):
        tool.check(clone, "1.2.30")


def test_a_folder_that_is_not_a_clone_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unpacked source distribution has no commit to release."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(tool.ReleaseError, match="made in a clone"):
        tool.check(tmp_path, "1.2.30")


@pytest.mark.parametrize("version", ["1.2.3", "1.2.31", "1x2x30", "Unrel"])
def test_a_version_without_changes_is_refused(
    version: str, tool: ModuleType, clone: Path
) -> None:
    """A version that begins alike doesn't count."""
    with pytest.raises(tool.ReleaseError, match=f"no entry '## {version}'"):
        tool.check(clone, version)


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {__version__} - " in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )


def test_the_last_commit_is_exported(
    tool: ModuleType, clone: Path, tmp_path: Path
) -> None:
    """The export contains exactly the committed files."""
    (clone / "CHANGELOG.md").write_text("changed")
    (clone / "new.txt").write_text("x")
    copy = tool.export(clone, tmp_path / "copy")
    assert [path.name for path in copy.iterdir()] == ["CHANGELOG.md"]
    assert "1.2.30" in (copy / "CHANGELOG.md").read_text()


def test_a_release_pins_its_own_version(tool: ModuleType, tmp_path: Path) -> None:
    """A clone's parts have no version."""
    for folder in tool.DISTRIBUTIONS:
        (tmp_path / folder).mkdir(exist_ok=True)
        text = (ROOT / folder / "pyproject.toml").read_text("utf-8")
        (tmp_path / folder / "pyproject.toml").write_text(text)
    tool.pin(tmp_path, "1.2.3")
    siblings = {}
    for folder in tool.DISTRIBUTIONS:
        project = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())
        needs = project["project"]["dependencies"]
        siblings[folder] = [need for need in needs if need.startswith("pocketserve")]
    assert siblings == {
        "client": [],
        ".": ["pocketserve-client==1.2.3"],
        "lab": ["pocketserve==1.2.3", "pocketserve-client==1.2.3"],
    }


def test_differences_of_builds_are_found(tool: ModuleType, tmp_path: Path) -> None:
    """A byte of equal length differs, and a file is missing from one build."""
    first = tmp_path / "1"
    second = tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "same").write_bytes(b"same")
        (folder / "other").write_bytes(folder.name.encode())
    (second / "more").write_bytes(b"")
    assert tool.differences(first, second) == ["more", "other"]


def test_a_packed_folder_is_reproducible(tool: ModuleType, tmp_path: Path) -> None:
    """Dates and modes of files don't matter."""
    for number, mode in (("1", 0o600), ("2", 0o755)):
        (tmp_path / number / "site" / "a").mkdir(parents=True)
        for name in ("a/x", "b"):
            file = tmp_path / number / "site" / name
            file.write_text("text " * 100)
            file.chmod(mode)
        tool.pack(tmp_path / number / "site", tmp_path / number / "docs.zip")
    assert (tmp_path / "1/docs.zip").read_bytes() == (
        tmp_path / "2/docs.zip"
    ).read_bytes()


def test_checksums_can_be_checked(tool: ModuleType, tmp_path: Path) -> None:
    """sha256sum itself checks them."""
    (tmp_path / "a.txt").write_text("a")
    tool.write_sums(tmp_path)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert tool.requirements("flask")[0] == "blinker"
    assert "werkzeug" in tool.requirements("flask")
