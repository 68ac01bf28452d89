"""Check the page's files: size, addresses and translations."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from places import ROOT

WEB = ROOT / "server" / "pocketserve" / "web"
LARGEST_GZIP_BYTES = 85_000
OWN = [
    path
    for path in sorted(WEB.rglob("*"))
    if path.is_file() and "vendor" not in path.relative_to(WEB).parts
]
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
IMPORT = re.compile(r'(?:from |import\()"([^"]+)"')
KEY = re.compile(
    r'\bt\((?:"([^"]+)"|\w+ \? "([^"]+)" : "([^"]+)"|chosen\.copied \? "([^"]+)" : "([^"]+)")'
)


LANGUAGES = ("en", "el")


def words(language: str) -> dict[str, str]:
    """Return the page's texts in a language."""
    source = (WEB / "words" / f"{language}.js").read_text("utf-8")
    table = source.partition("export default ")[2].partition(",\n};")[0]
    texts: dict[str, str] = json.loads(table + "}")
    return texts


def test_all_files_are_small() -> None:
    """What a visit transfers is measured in a browser.

    This bounds the whole.
    """
    served = []
    for path in WEB.rglob("*"):
        if path.is_file() and path.name not in ("LICENSE", "SHA256SUMS"):
            served.append(path)
    sizes = {path: len(gzip.compress(path.read_bytes(), 9)) for path in served}
    assert sum(sizes.values()) <= LARGEST_GZIP_BYTES, sizes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(WEB)))
def test_scripts_are_complete_and_safe(script: Path) -> None:
    """Imports exist, texts never become markup, and no other address is named."""
    source = script.read_text("utf-8")
    for name in IMPORT.findall(source):
        target = (
            WEB / name.removeprefix("/web/")
            if name.startswith("/web/")
            else script.parent / name
        )
        assert target.resolve().is_file(), name
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|style=",
        source,
    )
    assert set(re.findall(r"https?://[\w.]*\w", source)) <= {
        "http://127.0.0.1",
        "http://localhost",
    }
    assert source.startswith("// ")
    assert max(map(len, source.splitlines())) <= 300


@pytest.mark.node
def test_scripts_parse() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is missing: install nodejs, which checks the page's scripts")
    for script in SCRIPTS:
        done = subprocess.run(
            [node, "--check", str(script)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_the_page_names_only_its_own_files() -> None:
    page = (WEB / "index.html").read_text("utf-8")
    names = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert names
    assert all((WEB / name.removeprefix("/web/")).is_file() for name in names)
    assert "<style" not in page
    assert not re.search(r"\son\w+=|style=", page)
    assert not re.search(r"url\(|@import", (WEB / "page.css").read_text("utf-8"))


def test_each_text_is_in_both_languages() -> None:
    english, greek = (words(language) for language in LANGUAGES)
    used = {
        key
        for script in SCRIPTS
        for found in KEY.findall(script.read_text("utf-8"))
        for key in found
        if key
    }
    assert used <= set(english)
    assert len(used) > 60
    assert english.keys() == greek.keys()
    for key, text in english.items():
        assert bool(text) == bool(greek[key]), key
        names = []
        for each in (text, greek[key]):
            names.append(set(re.findall(r"\{\w+\}", each)))
        assert names[0] == names[1], key
        if key.startswith(("fault.", "media.")) and key.endswith(".title"):
            assert key.removesuffix("title") + "help" in english
