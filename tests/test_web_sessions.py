"""Test the page's tickets and sessions: single-use, short-lived, few, hashed."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pocketserve.api import dispatch
from pocketserve.api.routes import ROUTES
from pocketserve.auth.app_tokens import AppTokens, add_token
from pocketserve.auth.guard import PAGE, Guard
from pocketserve.auth.web_sessions import (
    MAX_SESSIONS,
    MAX_TICKETS,
    TICKET_S,
    WebSessions,
)
from pocketserve_wire import ApiError, ErrorCode

TOKEN = "t" * 43


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def session(pages: WebSessions) -> str:
    """Return a new session."""
    return pages.redeem(pages.issue())


def refuses(pages: WebSessions, ticket: str) -> bool:
    """Return whether a ticket is refused."""
    with pytest.raises(ApiError) as caught:
        pages.redeem(ticket)
    return caught.value.code is ErrorCode.TICKET_REFUSED


def test_a_ticket_is_valid_once() -> None:
    """It yields one session; both are long, random and unique."""
    pages = WebSessions()
    ticket = pages.issue()
    first = pages.redeem(ticket)
    assert pages.is_session(first.encode())
    assert refuses(pages, ticket)
    assert len({ticket, first, pages.issue(), session(pages)}) == 4
    assert min(len(ticket), len(first)) == 43
    assert not pages.is_session(ticket.encode())
    assert refuses(pages, first)


def test_a_ticket_is_valid_for_a_minute() -> None:
    """The clock is monotonic."""
    clock = Clock()
    pages = WebSessions(clock)
    in_time = pages.issue()
    late = pages.issue()
    clock.now += TICKET_S - 0.001
    assert pages.is_session(pages.redeem(in_time).encode())
    clock.now += 0.001
    assert refuses(pages, late)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 43,
        "\ud800",
        "ticket",
        "ä" * 100_000,
    ],
)
def test_invalid_tickets_are_refused(text: str) -> None:
    """This also holds before any ticket was issued."""
    pages = WebSessions()
    assert refuses(pages, text)
    pages.issue()
    assert refuses(pages, text)


def test_the_number_of_tickets_is_limited() -> None:
    """The oldest is evicted; expired ones don't count."""
    clock = Clock()
    pages = WebSessions(clock)
    ended = [pages.issue() for _ in range(MAX_TICKETS)]
    clock.now += TICKET_S
    tickets = [pages.issue() for _ in range(MAX_TICKETS + 1)]
    assert refuses(pages, tickets[0])
    assert all(refuses(pages, ticket) for ticket in ended)
    assert all(pages.redeem(ticket) for ticket in tickets[1:])


def test_the_number_of_sessions_is_limited() -> None:
    """The oldest is evicted."""
    pages = WebSessions()
    sessions = [session(pages) for _ in range(MAX_SESSIONS + 1)]
    assert [pages.is_session(each.encode()) for each in sessions] == [False] + [
        True
    ] * MAX_SESSIONS


def test_secrets_are_not_kept_in_memory() -> None:
    """Only hashes are."""
    pages = WebSessions()
    ticket = pages.issue()
    first = session(pages)
    kept = repr(vars(pages))
    assert ticket not in kept
    assert first not in kept


def test_a_ticket_redeemed_concurrently_gives_one_session() -> None:
    pages = WebSessions()
    for _ in range(50):
        ticket = pages.issue()
        barrier = threading.Barrier(4)

        def redeem(ticket: str = ticket, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(120)
            try:
                return bool(pages.redeem(ticket))
            except ApiError:
                return False

        with ThreadPoolExecutor(4) as pool:
            assert (
                sum(
                    each.result(120) for each in [pool.submit(redeem) for _ in range(4)]
                )
                == 1
            )


def test_a_session_passes_like_the_token() -> None:
    """It is a Bearer or Basic's password.

    Other tokens still pass.
    """
    pages = WebSessions()
    guard = Guard(TOKEN, pages=pages)
    first = session(pages)
    basic = base64.b64encode(f"user:{first}".encode()).decode()
    assert (
        guard.check_token(f"Bearer {first}")
        == guard.check_token(f"Basic {basic}")
        == PAGE
    )
    assert guard.check_token(f"Bearer {TOKEN}") is None
    for wrong in (
        first[:-1],
        first.lower(),
        pages.issue(),
        "",
        PAGE,
    ):
        with pytest.raises(ApiError) as caught:
            guard.check_token(f"Bearer {wrong}")
        assert caught.value.code is ErrorCode.UNAUTHORIZED


def test_an_app_is_not_mistaken_for_a_page(tmp_path: Path) -> None:
    """An app's token keeps its name, which can't be that of pages."""
    path = tmp_path / "token.apps.json"
    token = add_token(path, "page", 60)
    guard = Guard(TOKEN, apps=AppTokens(path), pages=WebSessions())
    assert guard.check_token(f"Bearer {token}") == "page" != PAGE


OWNERS = {
    ("POST", "/pairing/open"),
    ("POST", "/pairing/close"),
    ("GET", "/pairing"),
    ("POST", "/web/ticket"),
}


def test_credential_routes_are_for_the_owner() -> None:
    """A new route that issues a token or ticket must be added to this list."""
    assert {(route.method, route.pattern) for route in ROUTES if route.owner} == OWNERS


@pytest.mark.parametrize(
    "route", ROUTES, ids=lambda route: f"{route.method} {route.pattern}"
)
def test_a_session_may_do_all_but_issue_credentials(route) -> None:
    """Such routes have an error code of their own."""
    if not route.owner:
        dispatch.check_owner(route, PAGE)
        return
    with pytest.raises(ApiError) as caught:
        dispatch.check_owner(route, PAGE)
    assert caught.value.code is ErrorCode.SESSION_REFUSED
    assert caught.value.status == 403
    with pytest.raises(ApiError) as caught:
        dispatch.check_owner(route, "camera")
    assert caught.value.code is ErrorCode.UNAUTHORIZED
    dispatch.check_owner(route, None)
