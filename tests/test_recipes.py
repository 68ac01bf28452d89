"""Run each recipe, and the pages for hobbyists and researchers, from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import ROOT, start_server

FOLDER = ROOT / "docs" / "recipes"
BLOCK_TIMEOUT_S = 300.0
ANSWERS = {
    "photos": r"seven +0\.[89]",
    "sound": r"'label': 'tone'",
    "text": r"switch the light on 0\.",
    "table": r"(?s)setosa.*setosa.*virginica",
    "pytorch": r"value: 0\.7[0-9]*|0\.7[0-9]+",
    "keras": r"inside",
    "smaller": r"(?s)tflite-dynamic.*(Serve|Keep) tflite",
    "camera": r"frame 7: \d 0\.",
}
"""Patterns of each page's last answer."""
FIRST_PAGES = {
    "hobbyist": r"(?s)seven +0\.[89].*\nseven\n",
    "researcher": r"(?s)tflite-dynamic.*(Serve|Keep) tflite",
}
"""The same for pages beside the folder of recipes."""
NEEDS = {
    "photos": pytest.mark.onnx,
    "table": pytest.mark.onnx,
    "pytorch": pytest.mark.torch,
    "keras": pytest.mark.tensorflow,
}


@dataclass(frozen=True)
class Reader:
    """A user in a clone, with a server of ``mymodels`` in another terminal."""

    folder: Path
    environment: dict[str, str]

    def run(self, language: str, code: str) -> str:
        """Run one block; return its output."""
        shell = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            shell if language == "sh" else [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Start the server; the clone's files are links, so that nothing is written there."""
    folder = tmp_path_factory.mktemp("clone")
    state = tmp_path_factory.mktemp("server")
    for name in ("models", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "mymodels").mkdir()
    settings = {
        "POCKETSERVE_STATE_DIR": str(state),
        "POCKETSERVE_TOKEN_FILE": str(state / "token"),
    }
    running = start_server(state, folder / "mymodels", environment=settings)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    address = f"socket://127.0.0.1:{running.socket_port}"
    yield Reader(
        folder,
        {
            **os.environ,
            **settings,
            "PATH": path,
            "POCKETSERVE_URL": address,
        },
    )
    assert running.stop() == 0


def test_every_page_is_tested() -> None:
    """The index lists all pages, and each has an answer here."""
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    pages = {page.stem for page in FOLDER.glob("*.md")} - {"README"}
    assert pages == set(ANSWERS) == set(re.findall(r"\((\w+)\.md\)", index))


@pytest.mark.live
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in ANSWERS]
)
def test_a_recipe_leads_to_the_answer(name: str, reader: Reader) -> None:
    """Every block works after the ones before it, and the answer is right."""
    check_page(FOLDER / f"{name}.md", ANSWERS[name], reader)


@pytest.mark.live
@pytest.mark.parametrize("name", FIRST_PAGES)
def test_a_first_page_leads_to_the_answer(name: str, reader: Reader) -> None:
    check_page(FOLDER.parent / f"{name}.md", FIRST_PAGES[name], reader)


def check_page(page: Path, expected: str, reader: Reader) -> None:
    """Run a page's blocks in order.

    Check that the output has the answer.
    """
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+) recipe\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    printed = "".join(reader.run(language, code) for language, code in blocks)
    assert re.search(expected, printed), printed
