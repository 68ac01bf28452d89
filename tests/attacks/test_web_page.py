"""Protect the page's session from other pages, names, frames, cookies and apps."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from framed import ClosedError, Framed
from pocketserve.api.routes import ROUTES
from pocketserve.transports.http.page import read_page

TIMEOUT_S = 120.0
HTML = {"Accept": "text/html"}


class Stranger:
    """An unauthenticated client that sends each request on a new connection."""

    def __init__(self, server: Any) -> None:
        self.url = server.url
        self.port = server.port

    def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(
            method, self.url + path, json=body, headers=named, timeout=TIMEOUT_S
        )


@pytest.fixture
def unauthenticated(server: Any) -> Stranger:
    return Stranger(server)


def ticket_of(server: Any) -> str:
    ticket: str = server.call("POST", "/web/ticket").json()["ticket"]
    return ticket


def code(answer: requests.Response) -> str:
    """Return a refusal's code; check that no other origin could read or store it."""
    assert not [
        name for name in answer.headers if name.lower().startswith("access-control-")
    ]
    assert "Set-Cookie" not in answer.headers
    document = answer.json()
    if "code" in document:
        return str(document["code"])
    openai_code = document["error"]["code"]
    return {"invalid_api_key": "UNAUTHORIZED"}.get(openai_code, openai_code.upper())


def paths() -> Iterator[tuple[str, str]]:
    """Return every route with names filled in."""
    for route in ROUTES:
        path = (
            route.pattern.replace("{model}", "digits")
            .replace("{version}", "tflite")
            .replace("{region}", "r")
            .replace("{sample}", "7.png")
        )
        yield route.method, path


def test_a_page_of_another_port_is_refused(server, unauthenticated) -> None:
    """Its origin is refused even with a ticket, whatever it requests, preflights
    included.
    """
    ticket = ticket_of(server)
    other = f"http://127.0.0.1:{server.port + 1}"
    for method, path in (
        *paths(),
        ("GET", "/web/index.html"),
        ("OPTIONS", "/web/session"),
        ("OPTIONS", "/v2/models"),
    ):
        assert (
            code(
                unauthenticated(
                    method, path, Origin=other, Access_Control_Request_Method="POST"
                )
            )
            == "ORIGIN_REFUSED"
        )
    for origin in (
        other,
        "null",
        "http://localhost:1",
        f"http://localhost:{server.port}",
        "file://",
    ):
        assert (
            code(
                unauthenticated(
                    "POST", "/web/session", {"ticket": ticket}, Origin=origin
                )
            )
            == "ORIGIN_REFUSED"
        )
    assert (
        unauthenticated(
            "POST", "/web/session", {"ticket": ticket}, Origin=server.url
        ).status_code
        == 200
    )


def test_other_origins_cannot_include_our_resources(unauthenticated) -> None:
    """Browsers give our scripts, styles and pictures to pages of our origin only."""
    for path in (*read_page(), "/"):
        answer = unauthenticated("GET", path, **HTML)
        assert answer.status_code == 200
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        if answer.headers["Content-Type"].startswith(("text/html", "image/svg")):
            assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"


def test_a_rebound_name_gets_no_page_and_no_session(server, unauthenticated) -> None:
    """The attempt doesn't use up the ticket."""
    ticket = ticket_of(server)
    for name in (
        "evil.example",
        "localhost.evil.example",
        "a.b.localhost",
        "localhost.",
        "127.0.0.1.nip.io",
    ):
        host = f"{name}:{server.port}"
        assert code(unauthenticated("GET", "/", Host=host, **HTML)) == "HOST_REFUSED"
        assert (
            code(unauthenticated("GET", "/web/index.html", Host=host)) == "HOST_REFUSED"
        )
        assert (
            code(unauthenticated("GET", "/sw.js", Host=host, Service_Worker="script"))
            == "HOST_REFUSED"
        )
        answer = unauthenticated(
            "POST",
            "/web/session",
            {"ticket": ticket},
            Host=host,
            Origin=f"http://{host}",
        )
        assert code(answer) == "HOST_REFUSED"
    assert (
        unauthenticated("POST", "/web/session", {"ticket": ticket}).status_code == 200
    )


def test_the_page_cannot_be_framed(unauthenticated) -> None:
    """Otherwise a visitor's clicks could be hijacked."""
    for path in ("/", "/web/index.html"):
        assert (
            "frame-ancestors 'none'"
            in unauthenticated("GET", path, **HTML).headers["Content-Security-Policy"]
        )


def test_cookies_are_never_set_or_accepted(server, unauthenticated) -> None:
    """A browser would send them to every port of this device."""
    session = unauthenticated(
        "POST", "/web/session", {"ticket": ticket_of(server)}
    ).json()["session"]
    for secret in (server.token, session):
        for name in ("token", "session", "Authorization", "pocketserve-session"):
            assert (
                code(unauthenticated("GET", "/v2/models", Cookie=f"{name}={secret}"))
                == "UNAUTHORIZED"
            )
            assert (
                code(unauthenticated("POST", "/web/ticket", Cookie=f"{name}={secret}"))
                == "UNAUTHORIZED"
            )
    for method, path in paths():
        if method == "GET":
            assert "Set-Cookie" not in server.call(method, path).headers


def test_an_app_without_the_token_gets_only_the_pages_files(
    server, unauthenticated
) -> None:
    """Its guesses don't use up a ticket."""
    ticket = ticket_of(server)
    for route, (method, path) in zip(ROUTES, paths(), strict=True):
        if not route.open:
            assert code(unauthenticated(method, path, {})) == "UNAUTHORIZED"
    for guess in [secrets.token_urlsafe(32) for _ in range(50)] + [
        ticket[:-1],
        ticket.lower(),
        f"{ticket}=",
        "",
    ]:
        assert (
            code(unauthenticated("POST", "/web/session", {"ticket": guess}))
            == "TICKET_REFUSED"
        )
        assert (
            code(unauthenticated("GET", "/v2/models", Authorization=f"Bearer {guess}"))
            == "UNAUTHORIZED"
        )
    assert (
        code(unauthenticated("GET", "/v2/models", Authorization=f"Bearer {ticket}"))
        == "UNAUTHORIZED"
    )
    assert (
        unauthenticated("POST", "/web/session", {"ticket": ticket}).status_code == 200
    )


def test_a_session_grants_no_further_access(server, unauthenticated) -> None:
    """It yields no ticket, code or token, and ends when the owner opens a ninth one."""
    session = unauthenticated(
        "POST", "/web/session", {"ticket": ticket_of(server)}
    ).json()["session"]
    bearer = f"Bearer {session}"
    for method, path in (
        ("POST", "/web/ticket"),
        ("POST", "/pairing/open"),
        ("GET", "/pairing"),
    ):
        assert (
            code(unauthenticated(method, path, Authorization=bearer))
            == "SESSION_REFUSED"
        )
    answers = [
        unauthenticated(method, path, Authorization=bearer)
        for method, path in paths()
        if method == "GET"
    ]
    assert not [answer for answer in answers if server.token in answer.text]
    assert unauthenticated("GET", "/v2/models", Authorization=bearer).status_code == 200
    for _ in range(8):
        unauthenticated("POST", "/web/session", {"ticket": ticket_of(server)})
    assert (
        code(unauthenticated("GET", "/v2/models", Authorization=bearer))
        == "UNAUTHORIZED"
    )


def test_a_session_cannot_open_the_socket(server, unauthenticated) -> None:
    """The handshake proves the token, or an app's."""
    session = unauthenticated(
        "POST", "/web/session", {"ticket": ticket_of(server)}
    ).json()["session"]
    with pytest.raises(ClosedError, match="UNAUTHORIZED"):
        Framed(server.socket_port, session)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/sw.js",
        "/web/main.js",
        "/web/index.html",
        "/v2/health/live",
        "/ping",
        "/a/b",
    ],
)
def test_a_leftover_worker_is_removed(unauthenticated, path: str) -> None:
    """The browser gets a 404 for its script, and discards the worker with its caches."""
    for method in ("GET", "HEAD"):
        answer = unauthenticated(method, path, Service_Worker="script", **HTML)
        assert answer.status_code == 404
        assert answer.headers["Clear-Site-Data"] == '"storage"'
    ordinary = unauthenticated("GET", path, **HTML)
    assert "Clear-Site-Data" not in ordinary.headers


def test_worker_headers_do_not_affect_inference(server) -> None:
    """A client with that header gets the usual 404, and the log has no error."""
    answer = server.call(
        "POST",
        "/predictions/petals",
        data=b"[5.1, 3.5, 1.4]",
        headers={"Service-Worker": "script"},
    )
    assert answer.status_code == 404
    assert json.loads(answer.text)["code"] == "NOT_FOUND"
    assert (
        server.call("POST", "/predictions/petals", data=b"[5.1, 3.5, 1.4]").status_code
        == 200
    )
