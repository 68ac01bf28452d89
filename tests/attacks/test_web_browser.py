"""Attack the page in a real Chromium.

Attackers use other ports, frames, workers and taken ports.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from browser_tool import tool
from browsing import launch, pages, ticket, visit
from conftest import Server, StartServer
from ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.live]
START_S = 120.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
)

# Tries each attack with an address, T, and a leaked ticket, and reports each result.
OTHER_PAGE = """<!doctype html><meta charset="utf-8"><pre id="result"></pre><script>
const T = "TARGET", ticket = "TICKET", said = {};
const name = (error) => error.name;
const read = (path, options) => fetch(T + path, options).then(async (a) => a.type + ":" + await a.text(), name);
const element = (kind, set) => new Promise((end) => {
  const made = Object.assign(document.createElement(kind), set);
  made.onload = () => end("loaded"); made.onerror = () => end("refused");
  document.body.append(made);
});
document.cookie = "token=stolen; path=/";
async function all() {
  const body = JSON.stringify({ ticket });
  said.read = await read("/v2/models");
  said.readOpenly = await read("/v2/models", { mode: "no-cors" });
  said.readPage = await read("/web/index.html");
  said.readPageOpenly = await read("/web/index.html", { mode: "no-cors" });
  said.withHeader = await read("/v2/models", { headers: { Authorization: "Bearer x" } });
  said.withCookies = await read("/v2/models", { credentials: "include" });
  said.enter = await read("/web/session", { method: "POST", body });
  said.enterOpenly = await read("/web/session", { method: "POST", body, mode: "no-cors" });
  const json = { "Content-Type": "application/json" };
  said.enterAsJson = await read("/web/session", { method: "POST", body, headers: json });
  said.script = await element("script", { src: T + "/web/SCRIPT" });
  const frame = document.createElement("iframe");
  const framed = new Promise((end) => { frame.onload = () => end(); setTimeout(end, 3000); });
  frame.src = T + "/";
  document.body.append(frame);
  await framed;
  try { said.frame = frame.contentDocument === null ? "closed" : frame.contentDocument.body.innerText; }
  catch (error) { said.frame = error.name; }
  document.getElementById("result").textContent = JSON.stringify(said);
}
all();
</script>"""

SQUATTER = """<!doctype html><h1 id="who">squatter</h1><script>
const { serviceWorker } = navigator;
serviceWorker.register("/deep/worker.js", { scope: "/" }).then(() => serviceWorker.ready).then(() => fetch("/settled"));
</script>"""
WORKER = """
const page = () => new Response("<h1>squatter answers</h1>", { headers: { "Content-Type": "text/html" } });
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(clients.claim()));
self.addEventListener("fetch", (event) => {
  if (event.request.mode === "navigate") event.respondWith(page());
});
"""


def chromium(profile: Path, *arguments: str) -> list[str]:
    """Return the command that starts Chromium with a profile of its own."""
    return [
        str(tool().provide("chromium")),
        *OPTIONS,
        f"--user-data-dir={profile}",
        *arguments,
    ]


def browse(profile: Path, address: str) -> tuple[str, str]:
    """Visit a page; return its settled document and the browser's log."""
    command = chromium(
        profile,
        "--virtual-time-budget=8000",
        "--enable-logging=stderr",
        "--dump-dom",
        address,
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_S, check=False
    )
    return done.stdout, done.stderr


@contextmanager
def left_open(profile: Path, address: str) -> Iterator[None]:
    """Keep a browser open at a page until the block ends."""
    command = chromium(profile, "--remote-debugging-port=0", address)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(START_S)


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process, with a deadline."""
    deadline = time.monotonic() + START_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(0.05)


def test_a_page_of_another_port_gets_nothing(server: Any, tmp_path: Path) -> None:
    """It reads no answers, opens no session, runs none of our scripts and frames no
    page.
    """
    ticket = server.call("POST", "/web/ticket").json()["ticket"]
    page = (
        OTHER_PAGE.replace("TARGET", server.url)
        .replace("TICKET", ticket)
        .replace("SCRIPT", "main.js")
    )
    with pages({"/": (page, "text/html")}) as (port, _):
        document, log = browse(tmp_path / "profile", f"http://127.0.0.1:{port}/")
    found = re.search(r'<pre id="result">(.+?)</pre>', document)
    assert found is not None, document[:2000] + log[-2000:]
    said = json.loads(found[1].replace("&quot;", '"'))
    opaque = []
    for key in ("readOpenly", "readPageOpenly", "enterOpenly"):
        if said[key] != "TypeError":
            opaque.append(said.pop(key))
    assert set(opaque) <= {"opaque:"}, said  # an opaque answer
    assert said.pop("script") == "refused"
    assert said.pop("frame") == "closed"
    assert set(said.values()) == {"TypeError"}, said
    assert "frame-ancestors" in log
    entered = requests.post(
        f"{server.url}/web/session", json={"ticket": ticket}, timeout=START_S
    )
    assert entered.status_code == 200  # none of these used up the ticket


def test_a_leftover_worker_is_harmless(
    new_server: StartServer, models_copy: Path, tmp_path: Path
) -> None:
    """An app takes the port, is visited and goes. A fresh origin is safe at once; one
    visit cures the usual origin.
    """
    port = free_port()
    profile = tmp_path / "profile"
    address = f"http://127.0.0.1:{port}/"
    contents = {
        "/": (SQUATTER, "text/html"),
        "/deep/worker.js": (WORKER, "text/javascript"),
    }
    with pages(contents, port) as (_, asked), left_open(profile, address):
        until(lambda: "/settled" in asked)
    server = new_server(models_copy, "--http-port", str(port), "--request-log", "on")
    # The worker is there, and the server gets no request.
    assert "squatter answers" in browse(profile, address)[0]
    fresh = browse(
        profile, f"http://e9afbc3de8ceb22f8ad4ff85f953948f.localhost:{port}/"
    )[0]
    assert "squatter" not in fresh
    assert "Pocketserve" in fresh

    def is_cured() -> bool:
        return "GET /deep/worker.js 404" in server.log.read_text()

    with left_open(profile, address):
        until(is_cured)
    until(lambda: "Pocketserve" in browse(profile, address)[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a Chromium for tests to drive."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@contextmanager
def hijacker(port: int, status: int) -> Iterator[list[str]]:
    """Listen on a port and answer every request with a status; yield the received
    bytes.
    """
    heard: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            heard.append(f"{self.requestline} {self.headers} {body!r}")
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield heard
        finally:
            running.shutdown()
            thread.join(START_S)


@pytest.fixture
def port_server(models_copy: Path, new_server: StartServer) -> Server:
    """Return a server whose port another app can take after its end."""
    return new_server(models_copy, "--http-port", str(free_port()))


SESSION = "sessionStorage.getItem('pocketserve-session')"


@pytest.mark.parametrize("status", [401, 200])
@pytest.mark.parametrize("way", ["token", "ticket"])
def test_an_app_that_takes_the_port_gets_no_credentials(
    browser: Browser, port_server: Server, status: int, way: str
) -> None:
    """The server ends while its page is open; the new listener gets neither token nor
    session.
    """
    token = str(port_server.token)
    with visit(browser, port_server, locale="en-US") as here:
        here.page.goto(
            port_server.url
            if way == "token"
            else f"{port_server.url}/#ticket={ticket(port_server)}"
        )
        if way == "token":
            here.page.fill("#token", token)
            here.page.click("form button")
        here.page.wait_for_selector("article")
        session = here.page.evaluate(SESSION)
        port_server.stop()
        here.page.wait_for_function(f"() => {SESSION} === null")
        with hijacker(port_server.port, status) as heard:
            here.page.wait_for_selector(".notice:has-text('Your session has ended')")
    assert heard
    assert session
    assert not [
        each
        for each in heard
        if token in each or session in each or not each.startswith("GET /v2 ")
    ]


def test_an_app_that_takes_the_port_at_once_gets_no_token(
    browser: Browser, port_server: Server
) -> None:
    """Before the page notices, it may send the session, which ended with the server."""
    token = str(port_server.token)
    with visit(browser, port_server, locale="en-US") as here:
        here.page.goto(port_server.url)
        here.page.fill("#token", token)
        here.page.click("form button")
        here.page.wait_for_selector("article")
        port_server.stop()
        with hijacker(port_server.port, 401) as heard:
            here.page.wait_for_selector(".notice:has-text('Your session has ended')")
        assert not here.page.evaluate("document.querySelector('#token').value")
    assert heard
    assert not [each for each in heard if token in each or "/web/ticket" in each]
