"""Lighthouse, Chromium's own judge of pages, on each part of the page: accessibility and best practices."""

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
    """A server that asks for no token: its parts have addresses that may be opened more than once."""
    running = start_server(tmp_path_factory.mktemp("open-server"), MODELS, "--no-auth")
    yield running
    assert running.stop() == 0


def scores(address: str, folder: Path) -> dict[str, float]:
    """Run Lighthouse; return its scores by category, and fail with what they lack."""
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


def test_visit_by_a_ticket(page_server: Server, tmp_path: Path) -> None:
    """A visitor who did not get in would cost a point: the console would have the refusal."""
    address = f"{page_server.url}/#ticket={ticket(page_server)}"
    assert scores(address, tmp_path) == {"accessibility": 1, "best-practices": 1}


@pytest.mark.parametrize("part", ["try/numbers", "compare/digits", "activity"])
def test_part(open_server: Server, tmp_path: Path, part: str) -> None:
    assert scores(f"{open_server.url}/#{part}", tmp_path) == {
        "accessibility": 1,
        "best-practices": 1,
    }


def test_form_for_the_token(page_server: Server, tmp_path: Path) -> None:
    assert scores(page_server.url, tmp_path) == {
        "accessibility": 1,
        "best-practices": 1,
    }
