"""Words of this machine that no written file may contain."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

USER = "ada-lovelace"
"""Name of the user, and of the folder that is HOME, in tests of written files."""

WORDS = (USER, str(ROOT), f"{Path.home()}/", "site-packages", '.py"')


def leaked_word(path: Path, words: tuple[str, ...] = WORDS) -> str:
    """Return the first word in a file or folder; empty without one."""
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        for content in _contents(file):
            for word in words:
                if word.encode() in content:
                    return word
    return ""


def _contents(file: Path) -> Iterator[bytes]:
    """Yield a file's content, and those of an archive's files."""
    yield file.read_bytes()
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                yield archive.read(name)
