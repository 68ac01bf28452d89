"""Show each failure and its remedy on the page, which recovers by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsing import (
    FAKE_DEVICES,
    IN_BOTH,
    Visit,
    choose,
    come_to_rest,
    launch,
    pass_frames,
    ticket,
    visit,
)
from conftest import MODELS, Server, StartServer, start_server
from firefox import Firefox
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.files import HASH_VERSION
from pocketserve.repository.scan import scan
from ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

pytestmark = [pytest.mark.browser, pytest.mark.live]

SEVEN, THREE = (MODELS / "digits" / "samples" / f"{digit}.png" for digit in "73")
AWAY = "The server does not answer."
FROZEN = "The server takes long to answer."
CODES = {
    "QUEUE_FULL": (429, "Try again in 7 s."),
    "MODEL_FAILED": (503, "The model cannot be loaded."),
    "MEMORY_BUDGET": (503, "There is no room in memory."),
    "LOW_POWER": (503, "The device saves power."),
    "SHUTTING_DOWN": (503, "Not now."),
    "ORIGIN_REFUSED": (403, "The server refused this page."),
    "MODEL_NOT_FOUND": (404, "It is not there any more."),
    "INFERENCE_FAILED": (500, "The model failed on this input."),
    "DEADLINE_EXCEEDED": (504, "Its turn did not come in time."),
}


@pytest.fixture
def frail_server(models_copy: Path, new_server: StartServer) -> Server:
    """Start a server that a test may stop, on a port that a second one can take."""
    options = ("--http-port", str(free_port()), "--max-body-bytes", "100000")
    return new_server(
        models_copy, *options, environment={"POCKETSERVE_TFJS_MODULES": os.devnull}
    )


@pytest.fixture
def guest(browser: Browser, frail_server: Server) -> Iterator[Visit]:
    """Return a visitor of that server who typed the token."""
    with visit(browser, frail_server, locale="en-US") as here:
        here.page.goto(frail_server.url)
        type_token(here)
        here.page.wait_for_selector("article")
        yield here


def type_token(visited: Visit) -> None:
    assert visited.server.token is not None
    visited.page.fill("#token", visited.server.token)
    visited.page.click("form button")


def ask_seven(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    choose(visited, SEVEN)


@IN_BOTH
def test_the_browser_stores_the_token_nowhere(guest: Visit) -> None:
    """It is not in the address, the page's storage or a cookie."""
    token = guest.server.token
    kept = guest.page.evaluate(
        "JSON.stringify([location.href, {...sessionStorage}, {...localStorage}, document.cookie])"
    )
    assert token not in kept
    assert "pocketserve-session" in kept
    assert guest.page.context.cookies() == []


@IN_BOTH
def test_a_wrong_token_is_reported(browser: Browser, page_server: Server) -> None:
    with visit(browser, page_server, locale="en-US") as here:
        here.page.goto(page_server.url)
        here.page.fill("#token", "not-the-token-" + 30 * "x")
        here.page.click("form button")
        assert "This is not the token of this server." in here.problem("UNAUTHORIZED")


@IN_BOTH
def test_a_ticket_is_valid_once(browser: Browser, page_server: Server) -> None:
    with visit(browser, page_server, locale="en-US") as here:
        address = f"{page_server.url}/#ticket={ticket(page_server)}"
        here.page.goto(address)
        here.page.wait_for_selector("article")
        with visit(browser, page_server, locale="en-US") as late:
            late.page.goto(address)
            late.page.wait_for_selector(
                ".problem:has-text('This address was used before')"
            )
            assert late.page.url == f"{page_server.url}/"


@IN_BOTH
def test_the_page_recovers_when_the_server_restarts(
    guest: Visit, models_copy: Path, tmp_path: Path
) -> None:
    """The page asks for the token, which it doesn't store, and reopens the same part."""
    ask_seven(guest)
    guest.best("7")
    guest.server.stop()
    guest.page.wait_for_selector(f".banner:has-text('{AWAY}')")
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "token").write_text(f"{guest.server.token}\n")
    (folder / "token").chmod(0o600)
    again = start_server(folder, models_copy, "--http-port", str(guest.server.port))
    try:
        guest.page.wait_for_selector(".notice:has-text('Your session has ended')")
        type_token(guest)
        guest.open_model("digits", "picture")
        choose(guest, THREE)
        guest.best("3")
    finally:
        again.stop()


@IN_BOTH
def test_the_page_recovers_when_the_server_thaws(guest: Visit) -> None:
    guest.server.process.send_signal(signal.SIGSTOP)
    try:
        guest.page.wait_for_selector(f".banner:has-text('{FROZEN}')")
    finally:
        guest.server.process.send_signal(signal.SIGCONT)
    guest.page.wait_for_selector(".banner", state="detached")
    ask_seven(guest)
    guest.best("7")


@IN_BOTH
def test_a_tickets_session_ends_with_the_server(
    browser: Browser, frail_server: Server, models_copy: Path, tmp_path: Path
) -> None:
    """The page asks for a new ticket or token."""
    with visit(browser, frail_server, locale="en-US") as here:
        here.enter()
        frail_server.stop()
        here.page.wait_for_selector(f".banner:has-text('{AWAY}')")
        folder = tmp_path / "other"
        folder.mkdir()
        other = start_server(folder, models_copy, "--http-port", str(frail_server.port))
        try:
            here.page.wait_for_selector(".notice:has-text('Your session has ended')")
        finally:
            other.stop()


@IN_BOTH
def test_too_large_an_input_is_reported(guest: Visit, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(bytes(200_000))
    guest.open_model("digits", "picture")
    choose(guest, large)
    assert "The input is too large." in guest.problem("BODY_TOO_LARGE")


@IN_BOTH
def test_an_unreadable_input_is_reported(visited: Visit, tmp_path: Path) -> None:
    odd = tmp_path / "odd.png"
    odd.write_bytes(b"no picture at all")
    visited.open_model("digits", "picture")
    choose(visited, odd)
    assert "The model does not accept this input." in visited.problem("INVALID_INPUT")
    choose(visited, SEVEN)
    visited.best("7")
    assert visited.page.locator(".problem").count() == 0


@pytest.mark.parametrize("code", CODES)
def test_refusals_are_explained(visited: Visit, code: str) -> None:
    """Each of the server's error codes has a sentence and a remedy."""
    status, words = CODES[code]
    body = json.dumps({"error": "One sentence of the server.", "code": code})
    visited.page.route(
        "**/predictions/**",
        lambda route: route.fulfill(
            status=status,
            body=body,
            headers={"Retry-After": "7"},
            content_type="application/json",
        ),
    )
    ask_seven(visited)
    told = visited.problem(code)
    assert words in told
    assert "One sentence of the server." in told
    visited.page.unroute("**/predictions/**")
    visited.page.click("button:text-is('Ask again')")
    visited.best("7")


def test_superseded_frames_are_not_failures(visited: Visit) -> None:
    """The camera continues when a newer frame replaced one."""
    answered: list[int] = []

    def refuse_every_second(route: object) -> None:
        answered.append(1)
        if len(answered) % 2:
            body = json.dumps(
                {"error": "A newer request took its place.", "code": "SUPERSEDED"}
            )
            route.fulfill(status=409, body=body, content_type="application/json")  # type: ignore[attr-defined]
        else:
            route.continue_()  # type: ignore[attr-defined]

    visited.page.route("**/predictions/**", refuse_every_second)
    visited.open_model("digits", "camera")
    visited.page.click("text=Start the camera")
    visited.best("7")
    assert visited.page.locator(".problem").count() == 0
    visited.page.click("text=Stop")


def test_a_model_can_be_unloaded_loaded_and_reloaded(guest: Visit) -> None:
    card = guest.page.locator("article[data-model=digits]")
    card.locator("button:text-is('Load')").click()
    with guest.page.expect_response(lambda answer: answer.url.endswith("/digits/load")):
        card.locator("button:text-is('Reload')").click()
    card.locator("button:text-is('Unload')").click()
    card.locator(".chip.stopped").wait_for()
    assert guest.server.call("GET", "/v2/models/digits/ready").status_code != 200
    card.locator("button:text-is('Load')").click()
    card.locator(".chip.loaded").wait_for()
    assert guest.server.call("GET", "/v2/models/digits/ready").status_code == 200


@IN_BOTH
def test_a_model_can_be_released_from_quarantine(
    browser: Browser, models_copy: Path, new_server: StartServer, tmp_path: Path
) -> None:
    """The page shows the reason of a failed trial.

    A released file is tried again.
    """
    state = tmp_path / "state"
    state.mkdir()
    model = scan(models_copy)["petals"]
    key = Quarantine(state, TrialLimits()).key(model, model.versions["tflite"])
    (state / "verdicts.json").write_text(
        json.dumps(
            {
                key: {
                    "ok": False,
                    "reason": "it crashed its framework",
                    "version": HASH_VERSION,
                }
            }
        )
    )
    server = new_server(models_copy, environment={"POCKETSERVE_STATE_DIR": str(state)})
    with visit(browser, server) as here:
        here.enter()
        card = "article[data-model=petals]"
        here.page.click(f"{card} button:text-is('Load')")
        here.page.wait_for_selector(f"{card} .chip.quarantine")
        here.page.click(f"{card} .reasons summary")
        assert "in quarantine: it crashed its framework" in here.page.inner_text(
            f"{card} .reasons"
        )
        here.page.click(f"{card} button:text-is('Release and try again')")
        here.page.wait_for_selector(f"{card} .chip.loaded")
        here.open_model("petals")
        here.page.click("form .primary >> nth=0")
        here.best("cm")


@IN_BOTH
@pytest.mark.parametrize("ticketed", [False, True])
def test_a_server_without_a_token_is_open(
    browser: Browser, models_copy: Path, new_server: StartServer, ticketed: bool
) -> None:
    """The plain address and one with a ticket both work."""
    server = new_server(models_copy, "--no-auth")
    with visit(browser, server) as here:
        if ticketed:
            here.enter()
        here.page.goto(server.url)
        here.page.wait_for_selector("article")
        here.open_model("digits", "picture")
        choose(here, SEVEN)
        here.best("7")


def test_unavailable_versions_are_grouped_by_framework(guest: Visit) -> None:
    reasons = guest.page.locator("article[data-model=digits] .reasons")
    reasons.locator("summary").click()
    # Of TensorFlow.js, which this server doesn't find.
    assert "npm install" in reasons.inner_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((FAKE_DEVICES[0],), "NotAllowedError"),
        ((FAKE_DEVICES[1],), "NotFoundError"),
    ],
    ids=["refused", "none"],
)
def test_a_missing_camera_is_reported(
    playwright: Playwright, page_server: Server, arguments: tuple[str, ...], code: str
) -> None:
    browser = launch(playwright, *arguments)
    try:
        with visit(browser, page_server, locale="en-US") as here:
            here.enter()
            here.open_model("digits", "camera")
            here.page.click("text=Start the camera")
            here.problem(code)
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("permissions.default.camera", 2, "NotAllowedError"),
        ("media.navigator.streams.fake", False, "NotFoundError"),
    ],
    ids=["refused", "none"],
)
def test_a_missing_camera_is_reported_in_firefox(
    page_server: Server, name: str, value: bool | int, code: str
) -> None:
    asked = {"media.navigator.permission.disabled": False}
    with visit(Firefox({**asked, name: value}), page_server) as here:
        here.enter()
        here.open_model("digits", "camera")
        here.page.click("text=Start the camera")
        here.problem(code)


@IN_BOTH
def test_an_insecure_address_has_no_camera(visited: Visit) -> None:
    """The page explains why a network address has none."""
    visited.page.evaluate(
        "Object.defineProperty(window, 'isSecureContext', {value: false})"
    )
    visited.open_model("digits", "camera")
    visited.page.click("text=Start the camera")
    assert "http://127.0.0.1" in visited.problem("insecure")


def test_a_hidden_page_sends_no_requests(visited: Visit) -> None:
    """Status and camera resume when it is shown again."""
    hide = """on => {
        Object.defineProperty(document, 'hidden', {value: on, configurable: true});
        document.dispatchEvent(new Event('visibilitychange')) }"""
    visited.open_model("digits", "camera")
    visited.page.click("text=Start the camera")
    visited.best("7")
    visited.page.evaluate(hide, True)
    come_to_rest(visited)
    asked: list[str] = []
    visited.page.on("request", lambda request: asked.append(request.url))
    pass_frames(visited, 20)
    assert asked == []
    with visited.page.expect_request(lambda request: "/predictions/" in request.url):
        visited.page.evaluate(hide, False)
    visited.page.click("text=Stop")


@IN_BOTH
def test_two_tabs_have_separate_sessions(visited: Visit) -> None:
    """A second tab needs a token; a ticket opened in its page is accepted, and both
    work.
    """
    second = visited.page.context.new_page()
    second.goto(visited.server.url)
    second.wait_for_selector("#token")
    second.evaluate(
        "ticket => { location.hash = `ticket=${ticket}` }", ticket(visited.server)
    )
    second.wait_for_selector("article")
    assert second.url == f"{visited.server.url}/"
    ask_seven(visited)
    visited.best("7")
    second.close()
