"""Count what a visit transfers, headers included, as Chromium reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from browsing import LIMIT_MS, ticket
from conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.live]

FIRST_BYTES = 60_000
NEXT_BYTES = 3_000


def transferred(page: Page, server: Server, part: str) -> dict[str, int]:
    """Open the page and then a part.

    Return the bytes of the page's own files by path.
    """
    paths: dict[str, str] = {}
    sizes: dict[str, int] = {}
    session = page.context.new_cdp_session(page)

    def note(event: dict) -> None:  # type: ignore[type-arg]
        paths[event["requestId"]] = urlsplit(event["response"]["url"]).path

    def count(event: dict) -> None:  # type: ignore[type-arg]
        path = paths.get(event["requestId"], "")
        if path == "/" or path.startswith("/web/"):
            sizes[path] = sizes.get(path, 0) + int(event["encodedDataLength"])

    session.on("Network.responseReceived", note)
    session.on("Network.loadingFinished", count)
    session.send("Network.enable")
    page.goto("about:blank")
    page.goto(f"{server.url}/#ticket={ticket(server)}")
    page.wait_for_selector("article")
    if part:
        page.evaluate("part => { location.hash = part }", part)
        page.wait_for_selector(".work")
    page.wait_for_load_state("networkidle")
    session.detach()
    return sizes


def test_visits_transfer_little(chromium: Browser, page_server: Server) -> None:
    """A visit fetches what it shows.

    The browser keeps it for the next one.
    """
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    try:
        page = context.new_page()
        first = transferred(page, page_server, "")
        assert "/" in first
        assert sum(first.values()) <= FIRST_BYTES, first
        assert not [path for path in first if path.endswith("/parts/try.js")]
        transferred(page, page_server, "try/digits")
        again = transferred(context.new_page(), page_server, "try/digits")
        assert "/" in again
        assert sum(again.values()) <= NEXT_BYTES, again
    finally:
        context.close()
