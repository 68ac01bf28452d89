"""Rate each part of the page with Lighthouse: accessibility and best practices."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser_tool import tool
from browsing import ticket
from conftest import MODELS, Server, start_server

pytestmark = [pytest.mark.browser, pytest.mark.live]

LIMIT_S = 240.0
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server without a token, whose addresses may be opened repeatedly."""
    running = start_server(tmp_path_factory.mktemp("open-server"), MODELS, "--no-auth")
    yield running
    assert running.stop() == 0


def scores(address: str, folder: Path) -> dict[str, float]:
    """Return Lighthouse's scores by category, and print failed audits."""
    report = folder / "report.json"
    command = [
        *tool().provide_lighthouse(),
        address,
        "--quiet",
        f"--chrome-flags={FLAGS}",
        "--no-enable-error-reporting",
    ]
    command += [
        "--only-categories=accessibility,best-practices",
        "--output=json",
        f"--output-path={report}",
    ]
    environment = {**os.environ, "CHROME_PATH": str(tool().provide("chromium"))}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(report.read_text("utf-8"))
    lacking = [
        (audit["title"], audit.get("details"))
        for audit in told["audits"].values()
        if audit["score"] not in (None, 1)
    ]
    assert lacking == [], lacking
    return {name: category["score"] for name, category in told["categories"].items()}


def test_a_visit_with_a_ticket_has_full_scores(
    page_server: Server, tmp_path: Path
) -> None:
    """A refused visit would log an error and lose a point."""
    address = f"{page_server.url}/#ticket={ticket(page_server)}"
    assert scores(address, tmp_path) == {"accessibility": 1, "best-practices": 1}


@pytest.mark.parametrize("part", ["try/numbers", "compare/digits", "activity"])
def test_each_part_has_full_scores(
    open_server: Server, tmp_path: Path, part: str
) -> None:
    assert scores(f"{open_server.url}/#{part}", tmp_path) == {
        "accessibility": 1,
        "best-practices": 1,
    }


def test_the_token_form_has_full_scores(page_server: Server, tmp_path: Path) -> None:
    assert scores(page_server.url, tmp_path) == {
        "accessibility": 1,
        "best-practices": 1,
    }
