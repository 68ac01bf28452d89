"""Chat on the page, with an engine that stands for a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gguf_files
import stand_in_engine
from browsing import Visit, visit
from conftest import Server, start_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.live]

TEXT = """\
# Title
Some **bold** text, `code` and <b>no markup</b>.
[good](https://site.example/) [bad](javascript:alert(1)) ![seen](https://site.example/a.png)

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
print("<i>")
```
"""
PHONE = {"width": 360, "height": 640}


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server with two language models, which answer with Markdown."""
    folder = tmp_path_factory.mktemp("chat")
    (folder / "models").mkdir()
    for name in ("first", "second"):
        gguf_files.write_tiny(folder / "models" / f"{name}.gguf")
    pieces = []
    for at in range(0, len(TEXT), 7):
        pieces.append(TEXT[at : at + 7])
    program = stand_in_engine.write(folder / "bin", words=pieces)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    running = start_server(folder, folder / "models", environment={"PATH": path})
    yield running
    assert running.stop() == 0


@pytest.fixture
def chatting(chromium: Browser, chat_server: Server) -> Iterator[Visit]:
    """Open the chat on a phone."""
    with visit(chromium, chat_server, locale="en-US", viewport=PHONE) as here:
        here.enter()
        here.page.click("nav a[href='#chat']")
        here.page.wait_for_selector(".composer")
        yield here


def ask(page: Page, question: str, state: str = "done") -> None:
    page.fill("#message", question)
    page.click(".composer button")
    page.wait_for_selector(f".turn:last-child .reply:last-child[data-state={state}]")


def saved(page: Page, button: str) -> str:
    with page.expect_download() as started:
        page.click(f"button:text-is('{button}')")
    return Path(started.value.path()).read_text("utf-8")


def questions(page: Page) -> list[str]:
    return page.locator(".question p").all_inner_texts()


def test_markdown_becomes_elements(chatting: Visit) -> None:
    """Text of the model never becomes markup, and links lead to web pages only."""
    from axe_playwright_python.sync_playwright import Axe

    page = chatting.page
    ask(page, "Hello")
    reply = page.locator(".reply .markdown")
    for selector in ("h3", "strong", "li >> nth=1", "td >> nth=1", "pre code"):
        assert reply.locator(selector).count() == 1, selector
    assert reply.locator("b, i, img, script").count() == 0
    assert reply.locator("pre").inner_text() == 'print("<i>")'
    links = reply.locator("a")
    assert links.all_inner_texts() == ["good", "seen"]
    assert "noopener" in (links.first.get_attribute("rel") or "")
    assert "tokens" in page.inner_text(".reply .timing")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert Axe().run(page).response["violations"] == []
    send, bar = (page.locator(s).bounding_box() for s in (".composer button", "nav"))
    assert send is not None and bar is not None
    assert send["y"] + send["height"] <= bar["y"]


def test_an_answer_is_stopped_and_asked_for_again(chatting: Visit) -> None:
    page = chatting.page
    page.fill("#message", stand_in_engine.STALL)
    page.click(".composer button")
    page.wait_for_selector(".reply[data-state=writing] .markdown h3")
    page.click("button:text-is('Stop')")
    page.wait_for_selector(".reply[data-state=stopped]")
    page.click("button:text-is('Edit')")
    page.fill(".editor textarea", "Hello")
    page.click(".editor .primary")
    page.wait_for_selector(".reply[data-state=done]")
    assert questions(page) == ["Hello"]
    with page.expect_request("**/v1/chat/completions"):
        page.click("button:text-is('Answer again')")
    page.wait_for_selector(".reply[data-state=done]")
    assert questions(page) == ["Hello"]


def test_models_answer_side_by_side_and_chats_are_saved(chatting: Visit) -> None:
    """Each model is sent its own answers, the system prompt and the parameters."""
    page = chatting.page
    page.click(".settings summary")
    page.check("label:has-text('second') input")
    page.fill("[name=system]", "Be short.")
    page.fill("[name=temperature]", "0.5")
    page.keyboard.press("Tab")
    ask(page, "One")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    ask(page, "Two")
    bodies = [json.loads(each) for each in sent if "messages" in each]
    assert [body["model"] for body in bodies] == ["first", "second"]
    for body in bodies:
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert body["temperature"] == 0.5
    document = json.loads(saved(page, "Save as JSON"))
    assert document["system"] == "Be short."
    first, second = document["turns"][1]["answers"]
    assert (first["model"], second["model"]) == ("first", "second")
    assert first["text"].strip() == TEXT.strip()
    text = saved(page, "Save as Markdown")
    assert text.startswith("# One\n")
    assert text.count("## second") == 2
    page.click("button:text-is('New chat')")
    page.wait_for_selector(".turn", state="detached")
    page.select_option("[name=chats]", "1")
    page.wait_for_selector(".turn")
    assert questions(page) == ["One", "Two"]


def test_refusals_are_shown(chatting: Visit) -> None:
    refusal = {"error": {"message": "One sentence.", "code": "context_exceeded"}}
    chatting.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=400, json=refusal),
    )
    ask(chatting.page, "Hello", "failed")
    assert "One sentence." in chatting.problem("CONTEXT_EXCEEDED")
