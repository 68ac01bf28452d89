"""A real browser at the page of a real server; Chromium with a camera and a microphone from files."""

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
"""Marks a test that runs in Firefox, too. Without it a test runs in Chromium."""

LIMIT_MS = 60_000
"""For one step: a model's first request may import its framework on a busy machine."""
ROUNDS = 10
"""In which a page that stopped asks nothing more; one request was under way."""


def launch(playwright: Playwright, *arguments: str) -> Browser:
    """Start Chromium; where none is installed, it is fetched first."""
    return playwright.chromium.launch(
        executable_path=tool().provide("chromium"), args=[*ARGUMENTS, *arguments]
    )


@contextmanager
def pages(
    contents: Mapping[str, tuple[str, str]], port: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Another app's HTTP server: texts with their types by path; yields its port, and the paths asked for."""
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
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running.server_address[1], asked
        finally:
            running.shutdown()
            thread.join(LIMIT_MS / 1000)


def two_frames(picture: bytes, size: tuple[int, int] = (640, 480)) -> bytes:
    """A picture as the video of a fake camera: two JPEGs, one behind the other."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as opened:
        opened.convert("RGB").resize(size, Image.Resampling.NEAREST).save(
            file, "JPEG", quality=95
        )
    return 2 * file.getvalue()


def ticket(server: Server) -> str:
    """A one-time ticket for the page."""
    answer = server.call("POST", "/web/ticket")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["ticket"])


@dataclass
class Visit:
    """A visitor at the page: what was asked of whom, and what the browser complained of."""

    server: Server
    page: Page
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def enter(self) -> None:
        """Come in by a ticket, and wait for the models."""
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
        """Choose one of several, and wait until the page shows that it is chosen: it draws once a frame."""
        self.page.click(button)
        self.page.wait_for_selector(f"{button}[aria-pressed=true]")

    def best(self, expected: str) -> str:
        """Wait until the first answer has a text, apart from its score; returns all of it."""
        self.page.wait_for_function(
            "text => document.querySelector('.answer .best')?.textContent.replace(/[\\d.,]+\\s*%/, '').includes(text)",
            arg=expected,
        )
        return self.page.inner_text(".answer .best >> nth=0")

    def problem(self, code: str) -> str:
        """Wait for a failure with a code; returns its words."""
        return self.page.wait_for_selector(f".problem[data-code={code}]").inner_text()


@contextmanager
def visit(browser: Browser, server: Server, **context: Any) -> Iterator[Visit]:
    """A fresh visitor; afterwards: nobody but the server was asked, and the policy had nothing to report."""
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
    """Wait until more than so many pixels of the overlay are drawn on: masks come after the list of names."""
    visited.page.wait_for_function(
        """least => { const canvas = document.querySelector('.overlay');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return data.filter((value, index) => index % 4 === 3 && value).length > least }""",
        arg=pixels,
    )


def pass_frames(visited: Visit, count: int) -> None:
    """Let the screen be drawn so many times."""
    visited.page.evaluate(
        """frames => new Promise(done => {
        const next = () => frames-- > 0 ? requestAnimationFrame(next) : done();
        next() })""",
        count,
    )


def come_to_rest(visited: Visit) -> None:
    """Wait until the page asks nothing for twenty frames in a row, but for the server's numbers."""
    asked: list[str] = []
    visited.page.on("request", lambda request: asked.append(request.url))
    for _ in range(ROUNDS):
        asked.clear()
        pass_frames(visited, 20)
        if not any("/predictions/" in url for url in asked):
            return
    raise AssertionError(f"the page goes on asking: {asked}")


def watch(visitor: BrowserContext, server: Server) -> Visit:
    """Note what a visitor's page asks for and what goes wrong in it."""
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
    """A refused request is told by the console, too: only the policy's reports count here."""
    if (
        "Content Security Policy" in text
        or "Permissions policy" in text
        or "Trusted" in text
    ):
        visited.complaints.append(text)
