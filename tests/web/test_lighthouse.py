"""Rate each part of the page with Lighthouse: accessibility, best practices, weight."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browser_tool import tool
from browsing import ticket
from conftest import MODELS, Server, start_server

pytestmark = [pytest.mark.browser, pytest.mark.live]

LIMIT_S = 240.0
LARGEST_BYTES = 80_000  # with the server's answers
LARGEST_SHIFT = 0.1
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server without a token, whose addresses may be opened repeatedly."""
    running = start_server(tmp_path_factory.mktemp("open-server"), MODELS, "--no-auth")
    yield running
    assert running.stop() == 0


def report_of(address: str, folder: Path, *categories: str) -> dict[str, Any]:
    """Return Lighthouse's report on a page."""
    report = folder / "report.json"
    command = [
        *tool().provide_lighthouse(),
        address,
        "--quiet",
        f"--chrome-flags={FLAGS}",
        "--no-enable-error-reporting",
    ]
    command += [
        f"--only-categories={','.join(categories)}",
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
    told: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return told


def scores(address: str, folder: Path) -> dict[str, float]:
    """Return Lighthouse's scores by category, and print failed audits."""
    told = report_of(address, folder, "accessibility", "best-practices")
    lacking = []
    for audit in told["audits"].values():
        if audit["score"] not in (None, 1):
            lacking.append((audit["title"], audit.get("details")))
    assert lacking == [], lacking
    return {name: category["score"] for name, category in told["categories"].items()}


@contextmanager
def door(server: Server) -> Iterator[str]:
    """Yield an address that leads into the page with a new ticket.

    A ticket ends after 60 s, and Lighthouse may take longer to start on a busy machine.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{server.url}/#ticket={ticket(server)}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}/"
        finally:
            running.shutdown()
            thread.join(LIMIT_S)


def test_a_visit_with_a_ticket_has_full_scores(
    page_server: Server, tmp_path: Path
) -> None:
    """A refused visit would log an error and lose a point."""
    with door(page_server) as address:
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


def test_the_page_is_light_for_a_slow_phone(
    open_server: Server, tmp_path: Path
) -> None:
    """What Lighthouse counts, not what it times: other programs may have the machine."""
    told = report_of(open_server.url, tmp_path, "performance")
    audits = told["audits"]
    assert audits["total-byte-weight"]["numericValue"] <= LARGEST_BYTES
    assert audits["cumulative-layout-shift"]["numericValue"] <= LARGEST_SHIFT
    print("performance", told["categories"]["performance"]["score"])
