"""Runs the tests of the JavaScript client in Node, against a real server."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MODELS, ROOT, Server, start_server
from pocketserve_wire import __version__
from sequence_models import FEEDBACK, running_sum
from text_models import write_reranker

pytestmark = [pytest.mark.node, pytest.mark.live, pytest.mark.onnx]

PACKAGE = ROOT / "client" / "js"
LIMIT_S = 300
MOST_BYTES = 12_000
"""Of the compressed sources."""


@pytest.fixture(scope="module")
def node_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of each kind that the tests ask."""
    pytest.importorskip("onnx", reason="makes the models")
    folder = tmp_path_factory.mktemp("models")
    for name in ("digits", "petals"):
        shutil.copytree(MODELS / name, folder / name)
    write_reranker(folder / "reranker")
    (folder / "sum").mkdir()
    running_sum(folder / "sum" / "sum.onnx", 2)
    (folder / "sum" / "model.toml").write_text(FEEDBACK)
    running = start_server(tmp_path_factory.mktemp("server"), folder)
    yield running
    assert running.stop() == 0


def run_node(
    *arguments: str, folder: Path = PACKAGE, **environment: str
) -> subprocess.CompletedProcess[str]:
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is missing: install nodejs, which runs the client's tests")
    return subprocess.run(
        [node, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("file", ["faults", "live"])
def test_client_in_node(node_server: Server, file: str) -> None:
    done = run_node(
        "--test",
        "--test-reporter=tap",
        f"test/{file}.test.js",
        POCKETSERVE_URL=node_server.url,
        POCKETSERVE_TOKEN=str(node_server.token),
        SAMPLES=str(MODELS / "digits" / "samples"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    tests = (PACKAGE / "test" / f"{file}.test.js").read_text("utf-8")
    assert passed is not None
    assert int(passed.group(1)) == tests.count("\ntest(")


@pytest.mark.parametrize("number", range(2))
def test_examples_of_the_guide(
    node_server: Server, tmp_path: Path, number: int
) -> None:
    guide = (ROOT / "docs" / "javascript.md").read_text("utf-8")
    examples = re.findall(r"^```js\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "pocketserve").symlink_to(PACKAGE)
    (tmp_path / "models").symlink_to(MODELS)
    (tmp_path / "example.mjs").write_text(examples[number], "utf-8")
    done = run_node(
        "example.mjs",
        folder=tmp_path,
        POCKETSERVE_URL=node_server.url,
        POCKETSERVE_TOKEN=str(node_server.token),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "7\n" if number == 0 else "petal_width FP32 [ 1, 1 ] 0.2"
    )


def test_package_is_small_and_has_no_dependencies() -> None:
    package = json.loads((PACKAGE / "package.json").read_text("utf-8"))
    assert package["version"] == __version__
    assert not [key for key in package if key.endswith("ependencies")]
    sources = b"".join(
        file.read_bytes() for file in sorted((PACKAGE / "src").glob("*.js"))
    )
    assert len(gzip.compress(sources)) < MOST_BYTES
