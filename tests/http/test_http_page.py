"""The web page's files and its login, over HTTP."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from pocketserve.transports.http.page import (
    CONTENT_TYPES,
    DOCUMENT_HEADERS,
    DOCUMENT_SUFFIXES,
    FOLDER,
    HEADERS,
    create_page,
    read_page,
)

HTML = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(self), microphone=(self), geolocation=(), usb=()",
}
OF_ALL_FILES = {
    name: SECURITY[name]
    for name in ("x-content-type-options", "cross-origin-resource-policy")
}
FILES = read_page()
CORS = "access-control-"


def get(
    path: str,
    *headers: str,
    method: str = "GET",
    host: str = "127.0.0.1",
    body: bytes = b"",
) -> bytes:
    """Send a request without the token."""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, *length]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def bearer(secret: str) -> str:
    return f"Authorization: Bearer {secret}"


def security_of(answer: Any) -> dict[str, str]:
    return {name: answer.headers[name] for name in SECURITY if name in answer.headers}


def test_the_whole_folder_is_served() -> None:
    """Every file of a known kind has its own path.

    Licences and checksums are left out.
    """
    kinds = {path.suffix for path in FOLDER.rglob("*") if path.is_file()}
    assert kinds - CONTENT_TYPES.keys() <= {""}
    names = [path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES]
    assert len(names) == len(FILES)
    assert "/web/index.html" in FILES
    assert "/web/vendor/lit-html/lit-html.js" in FILES
    assert not any("LICENSE" in path or "SUMS" in path for path in FILES)


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_of_the_page(wire, path: str) -> None:
    """Check content, type and headers.

    No token is needed, HEAD has no body, and other origins get no access.
    """
    answer = wire.one(get(path))
    assert answer.status == 200
    written = FOLDER.joinpath(path.removeprefix("/web/")).read_bytes()
    assert re.sub(rb"/web/[0-9a-f]{16}/", b"/web/", answer.body) == written
    assert answer.headers["content-type"] == CONTENT_TYPES[path[path.rindex(".") :]]
    is_document = path.endswith(DOCUMENT_SUFFIXES)
    assert security_of(answer) == (SECURITY if is_document else OF_ALL_FILES)
    assert answer.headers["cache-control"] == "no-cache"
    assert re.fullmatch(r'W/"[0-9a-f]{32}"', answer.headers["etag"])
    assert "set-cookie" not in answer.headers
    assert not [name for name in answer.headers if name.startswith(CORS)]
    head = wire.one(get(path, method="HEAD"), head=True)
    assert (head.status, head.body) == (200, b"")
    times = {"date": ""}
    assert head.headers | times == answer.headers | times


def test_only_browsers_get_the_page(wire) -> None:
    """Clients still get JSON at /, and caches know that it varies."""
    for accept in (
        [],
        ["Accept: */*"],
        ["Accept: application/json"],
        ["Accept: text/plain"],
        ["Accept: "],
    ):
        answer = wire.one(get("/", *accept))
        assert (answer.status, answer.body) == (200, b'{"status":"alive"}\n')
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["vary"] == "Accept"
    index = wire.one(get("/web/index.html")).body
    for accept in (HTML, "Accept: text/html", "ACCEPT: TEXT/HTML"):
        answer = wire.one(get("/", accept))
        assert (answer.status, answer.body) == (200, index)
        assert answer.headers["vary"] == "Accept, Accept-Encoding"
        assert SECURITY.items() <= answer.headers.items()
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    head = wire.one(get("/", HTML, method="HEAD"), head=True)
    assert head.headers["etag"] == answer.headers["etag"]
    assert wire.one(get("/?lang=el", HTML)).body == index


def test_browsers_get_files_compressed(wire) -> None:
    script = FILES["/web/main.js"]
    browser = wire.one(get("/web/main.js", "Accept-Encoding: gzip, deflate, br, zstd"))
    assert browser.headers["content-encoding"] == "gzip"
    assert gzip.decompress(browser.body) == script.content
    plain = wire.one(get("/web/main.js", "Accept-Encoding: identity"))
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == browser.headers["vary"] == "Accept-Encoding"


def test_api_paths_return_no_page(wire, refused) -> None:
    """A browser that opens an API path gets the API."""
    refused(wire.one(get("/v2/models", HTML)), 401, "UNAUTHORIZED")
    assert json.loads(wire.one(get("/v2/health/live", HTML)).body)["live"] is True
    refused(wire.one(get("/", HTML, method="POST", body=b"{}")), 401, "UNAUTHORIZED")
    refused(
        wire.one(wire.write("POST", "/", HTML, body=b"{}")), 405, "METHOD_NOT_ALLOWED"
    )
    refused(
        wire.one(wire.write("POST", "/web/index.html", body=b"{}")), 404, "NOT_FOUND"
    )


def test_the_page_knows_whether_a_token_is_needed(wire) -> None:
    """A rejected request would otherwise be logged on each visit."""
    answer = wire.one(get("/web/access.json"))
    assert (answer.status, json.loads(answer.body)) == (200, {"token": True})
    assert answer.headers["content-type"] == "application/json"
    assert security_of(answer) == OF_ALL_FILES


@pytest.mark.parametrize("etag", ["{}", "W/{}", '"other", {}', "*", '"a",{} ,"b"'])
def test_a_cached_file_gets_304(wire, etag: str) -> None:
    """A 304 has no body and the usual headers."""
    own = wire.one(get("/", HTML)).headers["etag"].removeprefix("W/")
    answer = wire.one(get("/", HTML, f"If-None-Match: {etag.format(own)}"), head=True)
    assert answer.status == 304
    assert answer.headers["etag"] == f"W/{own}"
    assert SECURITY.items() <= answer.headers.items()
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    assert wire.one(get("/", HTML, 'If-None-Match: "other"')).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/web",
        "/web/",
        "/web/nothing.js",
        "/web/../page.py",
        "/web/..%2f..%2fconfig.py",
        "/web/%2e%2e/%2e%2e/config.py",
        "/web//index.html",
        "/web/./index.html",
        "/web/vendor",
        "/web/vendor/lit-html/LICENSE",
        "/web/vendor/SHA256SUMS",
        "/web/index.html/",
        "/web/index.html%00",
        "/web/%ff%fe",
        "/web//etc/passwd",
        "/web/" + "a" * 9000,
        "/WEB/index.html",
        "/favicon.ico",
        "/sw.js",
    ],
)
def test_other_paths_of_the_page_are_404(wire, path: str) -> None:
    """Paths are looked up in a table, never resolved on disk."""
    answer = wire.one(get(path, HTML))
    assert answer.status in (401, 404)
    assert json.loads(answer.body)["code"] in (
        "UNAUTHORIZED",
        "NOT_FOUND",
    )
    assert answer.headers["content-type"] == "application/json"


def test_content_types_come_from_our_table(tmp_path) -> None:
    """Files outside the page's folder are not served, even through a link."""
    for name in ("a.js", "a.py", "a.js.map", "LICENSE", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.css").write_text("y")
    found = read_page(tmp_path)
    assert set(found) == {"/web/a.js", "/web/deep/b.css"}
    found_file = found["/web/a.js"]
    assert found_file.content == b"x"
    assert found_file.content_type == "text/javascript; charset=utf-8"


def test_the_headers_match_the_tables() -> None:
    """A browser gets the headers listed by the module."""
    listed = {**HEADERS, **DOCUMENT_HEADERS}
    assert {name.lower(): value for name, value in listed.items()} == SECURITY | {
        "vary": "Accept-Encoding"
    }


def test_files_of_this_process_are_kept(wire) -> None:
    """The document names addresses with a random key; no other app can prepare their
    content.
    """
    names = re.findall(rb'"(/web/[0-9a-f]{16}/)', wire.one(get("/", HTML)).body)
    assert len(set(names)) == 1
    folder = names[0].decode()
    kept = wire.one(get(f"{folder}main.js"))
    assert kept.body == FILES["/web/main.js"].content
    assert kept.headers["cache-control"].endswith("immutable")
    assert security_of(kept) == OF_ALL_FILES
    other = wire.one(get("/web/0123456789abcdef/parts/try.js"))
    assert other.body == FILES["/web/parts/try.js"].content
    assert other.headers["cache-control"] == "no-cache"
    for path in ("../main.js", "0123456789abcdef/main.js", "LICENSE", ""):
        assert wire.one(get(folder + path)).status in (401, 404)


def test_each_process_has_its_own_key() -> None:
    etags = {read_page(FOLDER, key)["/web/main.js"].etag for key in ("", "a", "b")}
    assert len(etags) == 3


def test_other_requests_read_no_page_files() -> None:
    """The page is read with its first request, so inference and the JSON at / cost no
    more.
    """

    class Fallback:
        def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
            return [environ["PATH_INFO"].encode()]

    page = create_page(None, None, Fallback())  # type: ignore[arg-type]  # neither is looked at
    for method, path in (
        ("GET", "/"),
        ("POST", "/web/ticket"),
        ("GET", "/v2/models"),
        ("POST", "/"),
    ):
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "HTTP_ACCEPT": "*/*",
        }
        assert page(environ, None) == [path.encode()]  # type: ignore[arg-type,comparison-overlap]


# --- Login


def enter(wire: Any, ticket: str, *headers: str) -> Any:
    """Exchange a ticket for a session."""
    return wire.one(
        get(
            "/web/session",
            *headers,
            method="POST",
            body=json.dumps({"ticket": ticket}).encode(),
        )
    )


OWNER_ROUTES = ("/web/ticket", "/pairing/open", "/pairing/close")


def test_a_ticket_becomes_a_session(wire, refused) -> None:
    """The owner gets a ticket and the page's address, and the page a session, once."""
    answer = wire.one(wire.write("POST", "/web/ticket", body=b"{}"))
    issued = json.loads(answer.body)
    assert issued.keys() == {"ticket", "expires_in", "url"}
    assert issued["expires_in"] == 60
    assert issued["url"] == f"http://127.0.0.1:{wire.port}/"
    assert "set-cookie" not in answer.headers

    entered = json.loads(enter(wire, issued["ticket"]).body)
    assert entered.keys() == {"session"}
    again = enter(wire, issued["ticket"])
    assert "pocketserve open" in refused(again, 401, "TICKET_REFUSED")
    assert again.headers["www-authenticate"].startswith("Bearer")

    session = bearer(entered["session"])
    models = wire.one(get("/v2/models", session))
    assert models.status == 200
    assert "digits" in json.loads(models.body)["models"]
    assert wire.one(get("/v2/models/petals", session)).status == 200
    for path in OWNER_ROUTES:
        answer = wire.one(get(path, session, method="POST", body=b"{}"))
        refused(answer, 403, "SESSION_REFUSED")
    refused(wire.one(get("/pairing", session)), 403, "SESSION_REFUSED")


def test_only_the_owner_gets_a_ticket(wire, refused) -> None:
    """Neither unauthenticated clients nor pages get one, and the body has no other
    content.
    """
    refused(
        wire.one(get("/web/ticket", method="POST", body=b"{}")), 401, "UNAUTHORIZED"
    )
    refused(
        wire.one(get("/web/ticket", bearer("x" * 43), method="POST")),
        401,
        "UNAUTHORIZED",
    )
    refused(
        wire.one(wire.write("POST", "/web/ticket", body=b'{"hours": 9}')),
        400,
        "INVALID_REQUEST",
    )
    refused(
        wire.one(wire.write("POST", "/web/ticket?x=1", body=b"")),
        400,
        "INVALID_PARAMETER",
    )
    refused(wire.one(wire.write("GET", "/web/ticket")), 405, "METHOD_NOT_ALLOWED")
    assert wire.one(wire.write("POST", "/web/ticket")).status == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "MALFORMED_JSON"),
        (b"{", 400, "MALFORMED_JSON"),
        (b"[]", 400, "INVALID_REQUEST"),
        (b"{}", 400, "INVALID_REQUEST"),
        (b'{"ticket": 5}', 400, "INVALID_REQUEST"),
        (b'{"ticket": "x", "more": 1}', 400, "INVALID_REQUEST"),
        (b'{"ticket": "x", "ticket": "y"}', 400, "MALFORMED_JSON"),
        (b'{"ticket": ""}', 401, "TICKET_REFUSED"),
        (b'{"ticket": "' + b"x" * 43 + b'"}', 401, "TICKET_REFUSED"),
        (b'{"ticket": "\\ud800"}', 401, "TICKET_REFUSED"),
        # An unauthenticated client's body is not read.
        (
            b'{"ticket": "' + b"x" * 5000 + b'"}',
            401,
            "UNAUTHORIZED",
        ),
    ],
)
def test_invalid_ticket_messages(
    wire, refused, body: bytes, status: int, code: str
) -> None:
    """Each gets its own error, and none a session."""
    refused(wire.one(get("/web/session", method="POST", body=body)), status, code)


def test_a_large_ticket_message_with_the_token(wire, refused) -> None:
    """The limit applies with the token too."""
    body = b'{"ticket": "' + b"x" * 5000 + b'"}'
    refused(
        wire.one(wire.write("POST", "/web/session", body=body)), 413, "BODY_TOO_LARGE"
    )


def test_get_a_ticket_over_the_socket(server, wire) -> None:
    """The command gets its ticket once the server is authenticated.

    The session works over HTTP.
    """
    with server.connect() as connection:
        issued = json.loads(connection.call("POST /web/ticket", b"").body)
        assert connection.call("GET /").body == b'{"status":"alive"}'
    assert enter(wire, issued["ticket"]).status == 200


def test_sessions_end_with_the_server(
    new_server, models_copy, wire_to, refused
) -> None:
    first = new_server(models_copy)
    used, unused = (
        first.call("POST", "/web/ticket").json()["ticket"] for _ in range(2)
    )
    session = json.loads(enter(wire_to(first), used).body)["session"]
    assert first.stop() == 0
    second = new_server(models_copy, "--token-file", str(first.log.with_name("token")))
    wire = wire_to(second)
    assert wire.one(get("/v2/models", bearer(first.token))).status == 200
    refused(wire.one(get("/v2/models", bearer(session))), 401, "UNAUTHORIZED")
    refused(enter(wire, unused), 401, "TICKET_REFUSED")


def test_no_secret_is_logged(new_server, models_copy, wire_to) -> None:
    """No ticket or session, used or rejected.

    A visit is one line, and its files none.
    """
    server = new_server(models_copy, "--request-log", "on")
    wire = wire_to(server)
    ticket = server.call("POST", "/web/ticket").json()["ticket"]
    session = json.loads(enter(wire, ticket).body)["session"]
    enter(wire, ticket)
    wire.one(get("/v2/models", bearer(session)))
    wire.one(get(f"/?ticket={ticket}", HTML))
    wire.one(get(f"/web/{ticket}", HTML))
    wire.one(get("/web/main.js"))
    assert server.stop() == 0
    log = server.log.read_text()
    assert "GET / 200" in log
    assert "POST /web/session 200" in log
    assert "POST /web/session 401" in log
    assert "main.js" not in log
    assert session not in log
    assert ticket not in log
    assert server.token not in log


def test_the_page_is_one_metric(server, wire) -> None:
    """All files share one name, so that clients cannot add series."""
    wire.one(get("/web/index.html"))
    wire.one(get("/web/made-up-name.js"))
    metrics = server.call("GET", "/metrics").text
    assert 'route="/web/{file}"' in metrics
    assert "made-up" not in metrics
