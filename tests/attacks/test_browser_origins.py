"""Check --allowed-origins with pages in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browsing import pages, started_chromium
from conftest import MODELS, StartServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.live]
LIMIT_MS = 60_000
PAGE = {"/": ("<!doctype html><title>an app's page</title>", "text/html")}
ASK = """async ([target, token]) => {
  const headers = {
    Authorization: `Bearer ${token}`, "Content-Type": "application/json", "X-Request-Id": "from-a-page",
  };
  const options = { method: "POST", headers, body: "[5.1, 3.5, 1.4]" };
  try {
    const answer = await fetch(`${target}/predictions/petals`, options);
    return { status: answer.status, task: (await answer.json()).task };
  } catch (error) {
    return { error: error.name };
  }
}"""
ENTER = """async ([target, ticket]) => {
  try {
    const answer = await fetch(`${target}/web/session`, { method: "POST", body: JSON.stringify({ ticket }) });
    return { status: answer.status, text: await answer.text() };
  } catch (error) {
    return { error: error.name };
  }
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from started_chromium()


def ask(browser: Browser, address: str, script: str, *arguments: str) -> Any:
    page = browser.new_page()
    page.set_default_timeout(LIMIT_MS)
    page.goto(address)
    answer = page.evaluate(script, list(arguments))
    page.close()
    return answer


def test_only_a_page_of_an_allowed_origin_gets_answers(
    chromium: Browser, new_server: StartServer, tmp_path: Path
) -> None:
    with pages(PAGE) as (listed, _), pages(PAGE) as (unlisted, _):
        server = new_server(MODELS, "--allowed-origins", f"http://127.0.0.1:{listed}")
        token = str(server.token)
        answer = ask(chromium, f"http://127.0.0.1:{listed}/", ASK, server.url, token)
        assert answer == {"status": 200, "task": "tabular-regression"}
        for address in (f"http://127.0.0.1:{unlisted}/", f"http://localhost:{listed}/"):
            assert ask(chromium, address, ASK, server.url, token) == {
                "error": "TypeError"
            }
        ticket = server.call("POST", "/web/ticket").json()["ticket"]
        refusal = ask(
            chromium, f"http://127.0.0.1:{listed}/", ENTER, server.url, ticket
        )
        assert refusal["status"] == 403
        assert "session" not in refusal["text"]
