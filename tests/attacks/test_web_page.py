"""What others get of the page's rights: a foreign page, a rebound name, a frame, a cookie, an app, a worker."""

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
    """Who has no token: sends what he likes, on a connection of his own each time."""

    def __init__(self, server: Any) -> None:
        self.url, self.port = server.url, server.port

    def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(
            method, self.url + path, json=body, headers=named, timeout=TIMEOUT_S
        )


@pytest.fixture
def stranger(server: Any) -> Stranger:
    return Stranger(server)


def ticket_of(server: Any) -> str:
    ticket: str = server.call("POST", "/web/ticket").json()["ticket"]
    return ticket


def code(answer: requests.Response) -> str:
    """The code of a refusal, which brings nothing that a page of another origin could read or keep."""
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
    """Every route, with names filled in."""
    for route in ROUTES:
        path = (
            route.pattern.replace("{model}", "digits")
            .replace("{version}", "tflite")
            .replace("{region}", "r")
        )
        yield route.method, path


def test_a_page_of_another_port(server, stranger) -> None:
    """Even with a ticket in hand: its origin is not ours, whatever it asks, and a preflight is refused, too."""
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
                stranger(
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
            code(stranger("POST", "/web/session", {"ticket": ticket}, Origin=origin))
            == "ORIGIN_REFUSED"
        )
    assert (
        stranger(
            "POST", "/web/session", {"ticket": ticket}, Origin=server.url
        ).status_code
        == 200
    )


def test_what_another_page_can_include(stranger) -> None:
    """Scripts, styles and pictures of ours are for pages of our origin: a browser gives them to no other."""
    for path in (*read_page(), "/"):
        answer = stranger("GET", path, **HTML)
        assert answer.status_code == 200
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"


def test_a_name_that_is_rebound(server, stranger) -> None:
    """Neither page nor session; the ticket is not used up by the try."""
    ticket = ticket_of(server)
    for name in (
        "evil.example",
        "localhost.evil.example",
        "a.b.localhost",
        "localhost.",
        "127.0.0.1.nip.io",
    ):
        host = f"{name}:{server.port}"
        assert code(stranger("GET", "/", Host=host, **HTML)) == "HOST_REFUSED"
        assert code(stranger("GET", "/web/index.html", Host=host)) == "HOST_REFUSED"
        assert (
            code(stranger("GET", "/sw.js", Host=host, Service_Worker="script"))
            == "HOST_REFUSED"
        )
        answer = stranger(
            "POST",
            "/web/session",
            {"ticket": ticket},
            Host=host,
            Origin=f"http://{host}",
        )
        assert code(answer) == "HOST_REFUSED"
    assert stranger("POST", "/web/session", {"ticket": ticket}).status_code == 200


def test_a_frame(stranger) -> None:
    """No page may show ours inside of it, so no click of a visitor can be led astray."""
    for path in ("/", "/web/index.html"):
        assert (
            "frame-ancestors 'none'"
            in stranger("GET", path, **HTML).headers["Content-Security-Policy"]
        )


def test_a_cookie(server, stranger) -> None:
    """None is ever set, and none opens anything: a browser sends them to every port of this device."""
    session = stranger("POST", "/web/session", {"ticket": ticket_of(server)}).json()[
        "session"
    ]
    for secret in (server.token, session):
        for name in ("token", "session", "Authorization", "pocketserve-session"):
            assert (
                code(stranger("GET", "/v2/models", Cookie=f"{name}={secret}"))
                == "UNAUTHORIZED"
            )
            assert (
                code(stranger("POST", "/web/ticket", Cookie=f"{name}={secret}"))
                == "UNAUTHORIZED"
            )
    for method, path in paths():
        if method == "GET":
            assert "Set-Cookie" not in server.call(method, path).headers


def test_an_app_without_the_token(server, stranger) -> None:
    """It gets the page's files, as everybody does, and nothing else; its guesses use up no ticket."""
    ticket = ticket_of(server)
    for route, (method, path) in zip(ROUTES, paths(), strict=True):
        if not route.open:
            assert code(stranger(method, path, {})) == "UNAUTHORIZED"
    for guess in [secrets.token_urlsafe(32) for _ in range(50)] + [
        ticket[:-1],
        ticket.lower(),
        f"{ticket}=",
        "",
    ]:
        assert (
            code(stranger("POST", "/web/session", {"ticket": guess}))
            == "TICKET_REFUSED"
        )
        assert (
            code(stranger("GET", "/v2/models", Authorization=f"Bearer {guess}"))
            == "UNAUTHORIZED"
        )
    assert (
        code(stranger("GET", "/v2/models", Authorization=f"Bearer {ticket}"))
        == "UNAUTHORIZED"
    )
    assert stranger("POST", "/web/session", {"ticket": ticket}).status_code == 200


def test_a_session_begets_nothing(server, stranger) -> None:
    """Who steals one gets no ticket, no code and no token by it, and the ninth opening of the owner ends it."""
    session = stranger("POST", "/web/session", {"ticket": ticket_of(server)}).json()[
        "session"
    ]
    bearer = f"Bearer {session}"
    for method, path in (
        ("POST", "/web/ticket"),
        ("POST", "/pairing/open"),
        ("GET", "/pairing"),
    ):
        assert code(stranger(method, path, Authorization=bearer)) == "SESSION_REFUSED"
    answers = [
        stranger(method, path, Authorization=bearer)
        for method, path in paths()
        if method == "GET"
    ]
    assert not [answer for answer in answers if server.token in answer.text]
    assert stranger("GET", "/v2/models", Authorization=bearer).status_code == 200
    for _ in range(8):
        stranger("POST", "/web/session", {"ticket": ticket_of(server)})
    assert code(stranger("GET", "/v2/models", Authorization=bearer)) == "UNAUTHORIZED"


def test_a_session_is_no_key_of_the_socket(server, stranger) -> None:
    """The handshake proves the token, or an app's."""
    session = stranger("POST", "/web/session", {"ticket": ticket_of(server)}).json()[
        "session"
    ]
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
def test_a_worker_that_was_left_behind(stranger, path: str) -> None:
    """Wherever its script was, the browser finds none there and forgets the worker with all that it kept."""
    for method in ("GET", "HEAD"):
        answer = stranger(method, path, Service_Worker="script", **HTML)
        assert (answer.status_code, answer.headers["Clear-Site-Data"]) == (
            404,
            '"storage"',
        )
    ordinary = stranger("GET", path, **HTML)
    assert "Clear-Site-Data" not in ordinary.headers


def test_a_worker_is_nothing_to_inference(server) -> None:
    """A client that sends the header gets the same 404, whatever it asks, and the log no error."""
    answer = server.call(
        "POST",
        "/predictions/petals",
        data=b"[5.1, 3.5, 1.4]",
        headers={"Service-Worker": "script"},
    )
    assert (answer.status_code, json.loads(answer.text)["code"]) == (404, "NOT_FOUND")
    assert (
        server.call("POST", "/predictions/petals", data=b"[5.1, 3.5, 1.4]").status_code
        == 200
    )
