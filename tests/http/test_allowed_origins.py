"""Pages of the user's own apps: --allowed-origins, preflights, and closed routes."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import MODELS, Server, start_server

pytestmark = pytest.mark.live

TIMEOUT_S = 60.0
LISTED = (
    "capacitor://localhost",
    "http://localhost:5173",
    "tauri://localhost",
    "https://appassets.androidplatform.net",
    "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",
)
UNLISTED = (
    "http://localhost:5174",
    "https://localhost:5173",
    "http://localhost",
    "null",
    "http://evil.example",
    "",
)
ROW = b"[5.1, 3.5, 1.4]"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    server = start_server(folder, MODELS, "--allowed-origins", ",".join(LISTED))
    yield server
    assert server.stop() == 0


def send(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> http.client.HTTPResponse:
    """Send a request with exactly these headers and read the response's body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def permissions(answer: Any) -> list[str]:
    return [
        name for name in answer.headers if name.lower().startswith("access-control-")
    ]


@pytest.mark.parametrize("origin", LISTED)
def test_a_listed_page_is_answered(served: Server, origin: str) -> None:
    bearer = f"Bearer {served.token}"
    answer = send(
        served, "POST", "/predictions/petals", ROW, Origin=origin, Authorization=bearer
    )
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == origin
    assert (
        "Inference-Header-Content-Length"
        in answer.headers["Access-Control-Expose-Headers"]
    )
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize("origin", LISTED)
def test_a_listed_page_still_needs_the_token(served: Server, origin: str) -> None:
    """The page may read the error."""
    answer = send(served, "POST", "/predictions/petals", ROW, Origin=origin)
    assert answer.status == 401
    assert answer.headers["Access-Control-Allow-Origin"] == origin
    large = send(served, "POST", "/predictions/petals", b" " * 5000, Origin=origin)
    assert large.status == 401
    assert large.headers["Access-Control-Allow-Origin"] == origin


@pytest.mark.parametrize(
    "path",
    [
        "/predictions/petals",
        "/v2/models/petals/infer",
        "/v1/models/petals:predict",
        "/v2",
    ],
)
@pytest.mark.parametrize("origin", LISTED)
def test_a_preflight_of_a_listed_page(served: Server, origin: str, path: str) -> None:
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    answer = send(served, "OPTIONS", path, Origin=origin, **asked)
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Origin"] == origin
    assert {"GET", "POST", "PUT"} <= set(
        answer.headers["Access-Control-Allow-Methods"].split(", ")
    )
    allowed = {
        name.lower()
        for name in answer.headers["Access-Control-Allow-Headers"].split(", ")
    }
    assert {
        "authorization",
        "content-type",
        "inference-header-content-length",
        "x-request-id",
    } <= allowed
    assert "traceparent" in allowed
    assert "Access-Control-Allow-Private-Network" not in answer.headers


def test_a_preflight_of_a_public_page_to_this_network(served: Server) -> None:
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Private_Network": "true",
    }
    answer = send(served, "OPTIONS", "/predictions/petals", Origin=LISTED[3], **asked)
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize("origin", UNLISTED)
def test_unlisted_pages_are_rejected(served: Server, origin: str) -> None:
    bearer = f"Bearer {served.token}"
    for method in ("OPTIONS", "POST"):
        asked = {"Access_Control_Request_Method": "POST"}
        answer = send(
            served,
            method,
            "/predictions/petals",
            ROW,
            Origin=origin,
            Authorization=bearer,
            **asked,
        )
        assert answer.status == 403
        assert "ORIGIN_REFUSED" in answer.text
        assert not permissions(answer)


def test_a_listed_page_under_a_foreign_name_is_rejected(served: Server) -> None:
    """This prevents DNS rebinding."""
    for method in ("OPTIONS", "POST"):
        answer = send(
            served,
            method,
            "/predictions/petals",
            ROW,
            Host="evil.example",
            Origin=LISTED[1],
        )
        assert answer.status == 403
        assert "HOST_REFUSED" in answer.text


@pytest.mark.parametrize("origin", LISTED)
def test_the_servers_own_page_rejects_other_origins(
    served: Server, origin: str
) -> None:
    """Its files, tickets and sessions are limited to its own origin, even with the
    token.
    """
    bearer = f"Bearer {served.token}"
    for method, path in (
        ("GET", "/web/index.html"),
        ("POST", "/web/ticket"),
        ("POST", "/web/session"),
        ("OPTIONS", "/web/session"),
    ):
        answer = send(served, method, path, Origin=origin, Authorization=bearer)
        assert answer.status == 403 and "ORIGIN_REFUSED" in answer.text, path
    ticket = served.call("POST", "/web/ticket").json()["ticket"]
    session = served.call("POST", "/web/session", json={"ticket": ticket}).json()[
        "session"
    ]
    answer = send(
        served, "GET", "/v2", Origin=origin, Authorization=f"Bearer {session}"
    )
    assert answer.status == 403
    assert "ORIGIN_REFUSED" in answer.text
    assert (
        send(
            served, "GET", "/v2", Origin=served.url, Authorization=f"Bearer {session}"
        ).status
        == 200
    )


def test_responses_vary_by_origin(served: Server) -> None:
    answer = served.call("GET", "/v2")
    assert answer.headers["Vary"] == "Origin"
    assert not permissions(answer)


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        ("https://localhost", "--allowed-origins https://localhost"),
        ("capacitor://localhost", "--allowed-origins capacitor://localhost"),
        ("HTTP://Localhost:5173", "--allowed-origins http://localhost:5173"),
        ("null", "a page without an origin cannot be listed"),
        ("http://a b; rm", "a page without an origin cannot be listed"),
    ],
)
def test_the_rejection_of_a_page_names_the_setting(
    server: Server, origin: str, advice: str
) -> None:
    answer = server.call("GET", "/v2", headers={"Origin": origin})
    assert answer.status_code == 403
    assert advice in answer.json()["error"]


@pytest.mark.parametrize("host", ["10.0.2.2", "host.docker.internal", "phone.example"])
def test_the_rejection_of_a_host_name_names_the_setting(
    server: Server, host: str
) -> None:
    answer = server.call("GET", "/v2", headers={"Host": f"{host}:{server.port}"})
    assert answer.status_code == 403
    assert f"--allowed-hosts {host}" in answer.json()["error"]


def test_the_rejection_of_an_invalid_host_does_not_repeat_it(server: Server) -> None:
    answer = server.call("GET", "/v2", headers={"Host": "a b"})
    assert answer.status_code == 403
    assert "--allowed-hosts" not in answer.json()["error"]
