"""Open a real server's page in a real browser, with a fake camera and microphone."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from browser_tool import tool
from conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ),
)
FAKE_DEVICES = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
IN_BOTH = pytest.mark.parametrize("browser", ["chromium", "firefox"], indirect=True)
"""Marks a test that also runs in Firefox; others run in Chromium only."""

LIMIT_MS = 60_000
"""Seconds for one step: a model's first request may import its framework on a busy
machine.
"""
ROUNDS = 10
"""Seconds without requests after which a page has stopped; one request was in progress.
"""


def launch(playwright: Playwright, *arguments: str) -> Browser:
    """Start Chromium, which is fetched if it isn't installed."""
    return playwright.chromium.launch(
        executable_path=tool().provide("chromium"), args=[*ARGUMENTS, *arguments]
    )


def started_chromium() -> Iterator[Browser]:
    """Yield a Chromium of its own, as the body of a fixture."""
    api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    with api.sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@contextmanager
def pages(
    contents: Mapping[str, tuple[str, str]], port: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Start another app's HTTP server; yield its port and the requested paths.

    Texts are given with their types by path.
    """
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            text, kind = contents.get(self.path.partition("?")[0], ("", ""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Service-Worker-Allowed", "/")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running.server_address[1], asked
        finally:
            running.shutdown()
            thread.join(LIMIT_MS / 1000)


def two_frames(picture: bytes, size: tuple[int, int] = (640, 480)) -> bytes:
    """Return a picture as a fake camera's video of two JPEGs."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as opened:
        opened.convert("RGB").resize(size, Image.Resampling.NEAREST).save(
            file, "JPEG", quality=95
        )
    return 2 * file.getvalue()


def ticket(server: Server) -> str:
    """Return a one-time ticket for the page."""
    answer = server.call("POST", "/web/ticket")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["ticket"])


@dataclass
class Visit:
    """A visitor of the page, with its requests and the browser's complaints."""

    server: Server
    page: Page
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def enter(self) -> None:
        """Open the page with a ticket, and wait for the models."""
        self.page.goto(f"{self.server.url}/#ticket={ticket(self.server)}")
        self.page.wait_for_selector("article")
        assert self.page.url == f"{self.server.url}/"

    def go(self, place: str) -> None:
        """Go to a part of the page, such as ``try/digits``, as a link does."""
        self.page.evaluate("place => { location.hash = place }", place)

    def open_model(self, name: str, kind: str | None = None) -> None:
        """Choose a model to try, and a kind of input."""
        self.go(f"try/{name}")
        self.page.wait_for_selector(f".work[data-model='{name}']")
        if kind is not None:
            self.press(f"[data-kind={kind}]")

    def press(self, button: str) -> None:
        """Choose an option, and wait until the page shows it: it draws once a frame."""
        self.page.click(button)
        self.page.wait_for_selector(f"{button}[aria-pressed=true]")

    def best(self, expected: str) -> str:
        """Wait until the first answer has a text beside its score.

        Return all of it.
        """
        self.page.wait_for_function(
            "text => document.querySelector('.answer .best')?.textContent.replace(/[\\d.,]+\\s*%/, '').includes(text)",
            arg=expected,
        )
        return self.page.inner_text(".answer .best >> nth=0")

    def problem(self, code: str) -> str:
        """Wait for a failure with a code; return its text."""
        return self.page.wait_for_selector(f".problem[data-code={code}]").inner_text()


@contextmanager
def visit(browser: Browser, server: Server, **context: Any) -> Iterator[Visit]:
    """Return a new visitor; check afterwards that only the server got requests.

    The page's policy must not have reported anything either.
    """
    visitor = browser.new_context(**context)
    visitor.set_default_timeout(LIMIT_MS)
    try:
        visited = watch(visitor, server)
        yield visited
        assert visited.hosts <= {urlsplit(server.url).netloc}, visited.hosts
        assert visited.complaints == []
    finally:
        visitor.close()


def choose(visited: Visit, file: Path) -> None:
    """Choose a file in the open form."""
    visited.page.set_input_files("input[type=file]", str(file))


def wait_for_overlay(visited: Visit, pixels: int) -> None:
    """Wait until the overlay has this many pixels.

    Masks follow the list of names.
    """
    visited.page.wait_for_function(
        """least => { const canvas = document.querySelector('.overlay');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return data.filter((value, index) => index % 4 === 3 && value).length > least }""",
        arg=pixels,
    )


def pass_frames(visited: Visit, count: int) -> None:
    """Wait for this many frames of the screen."""
    visited.page.evaluate(
        """frames => new Promise(done => {
        const next = () => frames-- > 0 ? requestAnimationFrame(next) : done();
        next() })""",
        count,
    )


def come_to_rest(visited: Visit) -> None:
    """Wait until the page sends nothing but status requests for twenty frames."""
    asked: list[str] = []
    visited.page.on("request", lambda request: asked.append(request.url))
    for _ in range(ROUNDS):
        asked.clear()
        pass_frames(visited, 20)
        if not any("/predictions/" in url for url in asked):
            return
    raise AssertionError(f"the page goes on asking: {asked}")


def watch(visitor: BrowserContext, server: Server) -> Visit:
    """Record requests and failures of a visitor's page."""
    page = visitor.new_page()
    visited = Visit(server, page)
    page.on("request", lambda request: _note_host(visited, request.url))
    page.on("pageerror", lambda error: visited.complaints.append(f"error: {error}"))
    page.on("console", lambda message: _note_report(visited, message.text))
    return visited


def _note_host(visited: Visit, url: str) -> None:
    if url.startswith("http"):
        visited.hosts.add(urlsplit(url).netloc)


def _note_report(visited: Visit, text: str) -> None:
    """The console reports refused requests, too: only the policy's reports count here."""
    if (
        "Content Security Policy" in text
        or "Permissions policy" in text
        or "Trusted" in text
    ):
        visited.complaints.append(text)
