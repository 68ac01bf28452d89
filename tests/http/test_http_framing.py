"""HTTP byte by byte: allowed hosts, valid requests, and persistent connections."""

from __future__ import annotations

import base64
import json

import pytest

UNAUTHORIZED_TEXT = "a valid token is required: send 'Authorization: Bearer TOKEN' (pocketserve token prints it)"
CLOSE = "Connection: close"


@pytest.fixture(autouse=True)
def _still_answers(server):
    yield
    assert server.call("GET", "/v2/health/ready").json() == {
        "live": True,
        "ready": True,
    }


def bare(line: str, *headers: str) -> bytes:
    """Return a request with exactly these headers."""
    return "\r\n".join([line, *headers, CLOSE, "", ""]).encode("latin-1")


# --- Host and Origin


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8470",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#127.0.0.1",
        "user@127.0.0.1",
        "127.0.0.1:99999",
        "127.0.0.1:",
        "127.0.0.1:8470:1",
        "127.0.0.256",
        "0.0.0.0",
        "2130706433",
        "::1",
        "[::1",
        "[::2]",
        "a b",
        "a/b",
        "\xff",
        "127.0.0.1, evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/v2/health/live", "/v2", "/nothing"])
def test_a_foreign_host_is_rejected_everywhere(server, wire, refused, host, path):
    headers = [f"Authorization: Bearer {server.token}"] + (
        [f"Host: {host}"] if host is not None else []
    )
    refused(wire.one(bare(f"GET {path} HTTP/1.1", *headers)), 403, "HOST_REFUSED")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.2", "127.0.0.1:8470", "localhost", "LocalHost:1", "[::1]", "[::1]:65535"],
)
def test_names_of_this_machine_are_accepted(wire, host):
    assert wire.one(bare("GET /v2/health/live HTTP/1.1", f"Host: {host}")).status == 200


def test_two_hosts_are_rejected(wire, refused):
    request = bare(
        "GET /v2/health/live HTTP/1.1", "Host: 127.0.0.1", "Host: evil.example"
    )
    refused(wire.one(request), 403, "HOST_REFUSED")


@pytest.mark.parametrize(
    "line", ["GET /v2/health/live HTTP/1.0", "GET /v2/health/live"]
)
def test_http_1_0_without_a_host_is_rejected(wire, refused, line):
    refused(wire.one(bare(line)), 403, "HOST_REFUSED")


def test_http_1_0_with_a_host_is_answered(wire):
    assert (
        wire.one(bare("GET /v2/health/live HTTP/1.0", "Host: 127.0.0.1")).status == 200
    )


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1:1",
        "http://127.0.0.1.evil.example",
        "file://",
    ],
)
def test_a_foreign_origin_is_rejected_even_with_the_token(server, refused, origin):
    for method, path in (
        ("GET", "/v2/health/live"),
        ("GET", "/v2"),
        ("POST", "/v2/repository/index"),
    ):
        refused(
            server.call(method, path, headers={"Origin": origin}), 403, "ORIGIN_REFUSED"
        )


def test_the_servers_own_origin_is_accepted_without_cors_headers(server):
    answer = server.call("GET", "/v2", headers={"Origin": server.url})
    assert answer.status_code == 200
    assert not [
        name for name in answer.headers if name.lower().startswith("access-control-")
    ]


def test_a_preflight_gets_no_permission(server, refused):
    asked = {"Origin": server.url, "Access-Control-Request-Method": "POST"}
    refused(
        server.call("OPTIONS", "/v2/models/petals/infer", headers=asked),
        405,
        "METHOD_NOT_ALLOWED",
    )
    asked["Origin"] = "http://evil.example"
    refused(
        server.call("OPTIONS", "/v2/models/petals/infer", headers=asked),
        403,
        "ORIGIN_REFUSED",
    )


# --- The token


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer {token}x",
        "Bearer {token} {token}",
        "Bearer \xff",
        "{token}",
        "Token {token}",
        "Basic {token}",
        "Basic !!!",
        basic("no colon"),
        basic("user:wrong"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2"),
        ("GET", "/v2/models"),
        ("GET", "/v2/models/petals"),
        ("GET", "/v2/models/nothing"),
        ("GET", "/nothing"),
        ("DELETE", "/v2"),
        ("GET", "//v2/models"),
        ("POST", "/v2/models/petals/infer"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/petals/unload"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
def test_without_the_token_all_paths_look_the_same(
    server, wire, refused, authorization, method, path
):
    headers = ["Host: 127.0.0.1"]
    if authorization is not None:
        headers.append(
            f"Authorization: {authorization.replace('{token}', server.token)}"
        )
    answer = wire.one(bare(f"{method} {path} HTTP/1.1", *headers))
    assert refused(answer, 401, "UNAUTHORIZED") == UNAUTHORIZED_TEXT
    assert answer.headers["www-authenticate"] == 'Bearer realm="pocketserve"'


def test_only_open_routes_work_without_the_token(server, wire):
    document = server.call("GET", "/openapi.json").json()
    answered = set()
    for pattern, operations in document["paths"].items():
        path = pattern.replace("{model}", "petals").replace("{version}", "tflite")
        for method in operations:
            if (
                wire.one(
                    bare(f"{method.upper()} {path} HTTP/1.1", "Host: 127.0.0.1")
                ).status
                != 401
            ):
                answered.add(pattern)
    # A pairing app has no token yet; its two routes answer PAIRING_CLOSED until the
    # owner opens pairing.
    pairing = {"/pairing/begin", "/pairing/finish"}
    # /web/session asks for a one-time ticket instead.
    assert answered == {
        "/",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
        "/web/session",
        *pairing,
    }


@pytest.mark.parametrize(
    "scheme", ["Bearer {token}", "bearer {token}", "BEARER   {token}"]
)
def test_the_token_is_accepted_as_a_bearer_token(server, wire, scheme):
    authorization = f"Authorization: {scheme.replace('{token}', server.token)}"
    assert (
        wire.one(bare("GET /v2 HTTP/1.1", "Host: 127.0.0.1", authorization)).status
        == 200
    )


def test_the_token_is_accepted_as_a_password(server, wire):
    for user in ("", "anybody"):
        authorization = f"Authorization: {basic(f'{user}:{server.token}')}"
        assert (
            wire.one(bare("GET /v2 HTTP/1.1", "Host: 127.0.0.1", authorization)).status
            == 200
        )


# --- Request line and headers


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"GET\r\n\r\n",
        b"get /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1 more\r\n\r\n",
        b"GET  /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 FTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n: empty name\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n folded first\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_requests_are_rejected(wire, refused, request_bytes):
    refused(wire.one(request_bytes), 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["Transfer-Encoding: chunked", "Content-Length: 13"], b"0\r\n\r\n"),
        (["Content-Length: 0", "Transfer-Encoding: chunked"], b"0\r\n\r\n"),
        (["Transfer-Encoding: chunked, chunked"], b"0\r\n\r\n"),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], b"0\r\n\r\n"),
        (["Transfer-Encoding: chunked", " , chunked"], b"0\r\n\r\n"),
        (["X-Folded: a", "\tb"], b""),
    ],
)
def test_ambiguous_requests_are_rejected(wire, refused, lines, body):
    refused(
        wire.one(
            wire.write("POST", "/predictions/petals", *lines) + body + b"GET / HTTP/1.1"
        ),
        400,
        "INVALID_REQUEST",
    )


def test_chunked_bodies_need_http_1_1(wire, refused):
    request = wire.write(
        "POST", "/predictions/petals", "Transfer-Encoding: chunked"
    ).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    refused(wire.one(request + b"0\r\n\r\n"), 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "line",
    [b"GET /v2 HTTP/2.0", b"PRI * HTTP/2.0", b"GET /v2 HTTP/3.0", b"GET /v2 HTTP/1.2"],
)
def test_other_http_versions_are_rejected(wire, refused, line):
    text = refused(
        wire.one(line + b"\r\nHost: 127.0.0.1\r\n\r\n"), 505, "NOT_IMPLEMENTED"
    )
    assert text.endswith("use HTTP/1.1")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1:8470/v2", 200),
        ("http://evil.example/v2", 403),
        ("http://127.0.0.1@evil.example/v2", 403),
        ("http:///v2", 403),
        ("evil:/v2", 403),
    ],
)
def test_the_host_of_the_request_line_is_checked(wire, target, status):
    assert wire.one(wire.write("GET", target, CLOSE)).status == status


@pytest.mark.parametrize(
    "value", ["TE, close", "close, TE", "x,close", "keep-alive, close", "Close"]
)
def test_close_is_recognized_among_other_connection_options(wire, read_from, value):
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(wire.write("GET", "/v2", f"Connection: {value}"))
        assert read_from(stream).headers["connection"].lower() == "close"
        assert stream.read() == b""


def test_other_connection_options_keep_the_connection(wire, read_from):
    with wire.connect() as connection, connection.makefile("rb") as stream:
        for _ in range(2):
            connection.sendall(wire.write("GET", "/v2", "Connection: TE, x-closed"))
            assert read_from(stream).status == 200


def test_tls_is_answered_at_once(wire, refused):
    """TLS's hello contains no line end, and its client waits."""
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(b"\x16\x03\x01\x02\x00" + bytes(100))
        assert b"without TLS" in stream.read()


def test_a_missing_body_is_not_requested_with_100_continue(wire):
    assert (
        wire.one(wire.write("GET", "/v2", "Expect: 100-continue", CLOSE)).status == 200
    )


@pytest.mark.parametrize(
    "header",
    [
        "X-Long: " + "a" * 32_768,
        "\r\n".join(f"X-{n}: 1" for n in range(5000)),
    ],
)
def test_too_large_headers_are_rejected(wire, refused, header):
    refused(wire.one(wire.write("GET", "/v2", header)), 431, "HEADERS_TOO_LARGE")


def test_a_long_request_line_is_rejected(wire, refused):
    refused(
        wire.one(wire.write("GET", "/v2?" + "a" * 40_000)), 431, "HEADERS_TOO_LARGE"
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", {"GET", "HEAD"}),
        ("OPTIONS", "/v2", {"GET", "HEAD"}),
        ("TRACE", "/v2", {"GET", "HEAD"}),
        ("DELETE", "/v2/models/petals", {"GET", "HEAD"}),
        ("GET", "/v2/models/petals/infer", {"POST"}),
        ("HEAD", "/v2/models/petals/infer", {"POST"}),
        ("GET", "/v1/models/petals:predict", {"POST"}),
        ("GET", "/v2/repository/index", {"POST"}),
        ("PUT", "/v2/repository/models/petals/load", {"POST"}),
        ("GET", "/predictions/petals", {"POST", "PUT"}),
        ("BREW", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(
    server, wire, refused, method, path, allowed
):
    answer = wire.one(wire.write(method, path, CLOSE), head=method == "HEAD")
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        said = refused(answer, 405, "METHOD_NOT_ALLOWED")
        assert said.endswith(f"use {' or '.join(sorted(allowed - {'HEAD'}))}")


def test_head_answers_like_get_without_the_body(server, wire):
    for path, status in (
        ("/v2", 200),
        ("/v2/health/live", 200),
        ("/nothing", 404),
    ):
        full = wire.one(wire.write("GET", path, CLOSE))
        head = wire.exchange(wire.write("HEAD", path, CLOSE), head=True)
        assert [(one.status, one.body) for one in head] == [(status, b"")]
        assert head[0].headers["content-length"] == str(len(full.body))
        assert head[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/nothing", "NOT_FOUND"),
        ("/v2/nothing", "NOT_FOUND"),
        ("/V2", "NOT_FOUND"),
        ("*", "NOT_FOUND"),
        ("/v2//models", "NOT_FOUND"),
        ("/v2/models//", "NOT_FOUND"),
        ("/v2/models/../models", "NOT_FOUND"),
        ("/v2/../../etc/passwd", "NOT_FOUND"),
        ("/v2/models/%2e%2e%2fdigits", "NOT_FOUND"),
        ("/v2/models/a%2fb", "NOT_FOUND"),
        ("/v2/models/digits%3apredict", "NOT_FOUND"),
        ("/v2/models/..", "MODEL_NOT_FOUND"),
        ("/v2/models/%2e%2e", "MODEL_NOT_FOUND"),
        ("/v2/models/.", "MODEL_NOT_FOUND"),
        ("/v2/models/%00", "MODEL_NOT_FOUND"),
        ("/v2/models/digits%00", "MODEL_NOT_FOUND"),
        ("/v2/models/\0", "MODEL_NOT_FOUND"),
        ("/v2/models/%ff%fe", "MODEL_NOT_FOUND"),
        ("/v2/models/%252e%252e", "MODEL_NOT_FOUND"),
        ("/v2/models/recipes", "MODEL_NOT_FOUND"),
        ("/v2/models/" + "a" * 5000, "MODEL_NOT_FOUND"),
    ],
)
def test_paths_cannot_leave_their_root(wire, refused, target, code):
    text = refused(wire.one(wire.write("GET", target, CLOSE)), 404, code)
    assert len(text) < 300


def test_a_duplicate_query_parameter_is_rejected(server, refused):
    refused(server.call("GET", "/v2?a=1&a=2"), 400, "INVALID_PARAMETER")


# --- Bodies


NUMBERS = b"[5.1,3.5,1.4]"


@pytest.mark.parametrize(
    "length",
    [
        "-1",
        "abc",
        "+13",
        "1 3",
        "13, 13",
        "0x0d",
        "13.0",
        "",
        "9" * 5000,
    ],
)
def test_an_invalid_content_length_is_rejected(wire, refused, length):
    request = wire.write(
        "POST", "/predictions/petals", CLOSE, f"Content-Length: {length}"
    )
    refused(wire.one(request + NUMBERS), 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "length",
    [
        67_108_865,
        10**20,
    ],
)
def test_a_length_over_the_limit_is_rejected_before_the_body_arrives(
    wire, refused, length
):
    request = wire.write("POST", "/predictions/petals", f"Content-Length: {length}")
    refused(wire.one(request), 413, "BODY_TOO_LARGE")


def test_a_missing_body_gets_no_answer(wire):
    assert (
        wire.exchange(
            wire.write("POST", "/predictions/petals", "Content-Length: 100") + NUMBERS
        )
        == []
    )


def test_a_body_longer_than_announced_is_cut(wire, refused):
    request = wire.write("POST", "/predictions/petals", CLOSE, "Content-Length: 4")
    refused(wire.one(request + NUMBERS), 400, "MALFORMED_JSON")


def chunked(*chunks: bytes) -> bytes:
    return (
        b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        + b"0\r\n\r\n"
    )


def test_a_chunked_body_is_joined(wire):
    request = wire.write(
        "POST", "/predictions/petals", CLOSE, "Transfer-Encoding: chunked"
    )
    answer = wire.one(request + chunked(*[bytes([byte]) for byte in NUMBERS]))
    assert json.loads(answer.body)["predictions"][0]["value"] == pytest.approx(0.22656)


@pytest.mark.parametrize(
    "size",
    [
        b"1" * 17,
        b"0" * 20,
        b"f" * 16,
    ],
)
def test_chunk_sizes_of_more_than_64_bits_are_rejected(wire, size):
    """The client neither ends its body nor closes.

    The answer comes at once.
    """
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(
            wire.write("POST", "/predictions/petals", "Transfer-Encoding: chunked")
            + size
            + b"\r\n"
        )
        assert stream.readline().split()[1] in (b"400", b"413")
        assert stream.read()  # until the connection closes


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"\n",
        b";x=1\r\n",
        b"5\n",
        b"5 \r\n",
        b"5;a\rb\r\n",
        b"1\r\nab",
        b"0\r\na: b\n",
    ],
)
def test_an_invalid_chunk_is_rejected_at_once(wire, body):
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(
            wire.write("POST", "/predictions/petals", "Transfer-Encoding: chunked")
            + body
        )
        assert stream.readline().split()[1] == b"400"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"5;",
        b"0\r\nA: ",
        b"0\r\n" + b"A: b\r\n" * 3000,
    ],
)
def test_lines_between_chunks_are_bounded(wire, start):
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(
            wire.write("POST", "/predictions/petals", "Transfer-Encoding: chunked")
            + start
            + b"0" * 5000
        )
        assert stream.readline().split()[1] == b"400"


@pytest.mark.parametrize("body", [b"zz\r\n", b"-1\r\n", b"5\r\n[1,2,3,4]\r\n0\r\n\r\n"])
def test_broken_chunks_are_rejected(wire, refused, body):
    request = wire.write(
        "POST", "/predictions/petals", CLOSE, "Transfer-Encoding: chunked"
    )
    refused(wire.one(request + body), 400, "INVALID_REQUEST")


@pytest.mark.parametrize("coding", ["gzip", "gzip, chunked", "identity", "xchunked"])
def test_unknown_transfer_codings_are_rejected(wire, refused, coding):
    request = wire.write(
        "POST", "/predictions/petals", CLOSE, f"Transfer-Encoding: {coding}"
    )
    refused(wire.one(request + chunked(NUMBERS)), 501, "NOT_IMPLEMENTED")


def test_expect_100_continue_is_answered(wire):
    request = wire.write(
        "POST",
        "/predictions/petals",
        CLOSE,
        "Expect: 100-continue",
        f"Content-Length: {len(NUMBERS)}",
    )
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(request)
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        connection.sendall(NUMBERS)
        assert stream.read().split(b"\r\n", 2)[1] == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("67108865", b"413"),
        ("abc", b"400"),
    ],
)
def test_a_rejected_request_gets_no_100_continue(wire, length, status):
    request = wire.write(
        "POST",
        "/predictions/petals",
        "Expect: 100-continue",
        f"Content-Length: {length}",
    )
    with wire.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(request)
        assert stream.readline().split()[1] == status
        assert stream.read()  # until the connection closes


# --- Connections


def test_one_connection_serves_many_requests(wire, read_from):
    with wire.connect() as connection, connection.makefile("rb") as stream:
        for number in range(100):
            good = number % 3 != 0
            connection.sendall(
                wire.write(
                    "POST", "/predictions/petals", body=NUMBERS if good else b"{broken"
                )
            )
            answer = read_from(stream)
            assert answer.status == (200 if good else 400)
            assert answer.headers.get("connection", "").lower() != "close"


def test_pipelined_requests_are_answered_in_order(wire):
    lengths = [float(number) for number in range(30)]
    bodies = [json.dumps([5.0, 3.0, length]).encode() for length in lengths]
    answers = wire.exchange(
        b"".join(
            wire.write("POST", "/predictions/petals", body=body) for body in bodies
        )
    )
    assert [answer.status for answer in answers] == [200] * 30
    values = []
    for answer in answers:
        values.append(json.loads(answer.body)["predictions"][0]["value"])
    assert values == sorted(values)
    assert len(set(values)) == 30


def test_a_request_that_arrives_byte_by_byte_is_answered(wire, read_from):
    request = wire.write("POST", "/predictions/petals", body=NUMBERS)
    with wire.connect() as connection, connection.makefile("rb") as stream:
        for byte in request:
            connection.sendall(bytes([byte]))
        assert read_from(stream).status == 200


def test_a_silent_connection_disturbs_no_other(server, wire):
    with wire.connect() as silent, wire.connect() as half:
        half.sendall(
            wire.write("POST", "/predictions/petals", "Content-Length: 13")[:-5]
        )
        assert (
            server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200
        )
        assert silent.fileno() >= 0
