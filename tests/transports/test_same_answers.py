"""Compare the answers of HTTP and the socket byte by byte, except times."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from conftest import MODELS, Server
from framed import Framed
from pocketserve.api.routes import ROUTES
from pocketserve_wire.limits import MAX_JSON_SCALARS, MAX_JSON_STRINGS

TIMEOUT_S = 120.0
LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        split: bytes of JSON at the body's start; None for a body that is all JSON, or raw
        where no route splits.
    """

    name: str
    method: str
    path: str
    body: bytes = b""
    split: int | None = None
    status: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass
class Said:
    """A transport's answer."""

    status: int
    content_type: str
    json_length: int | None
    body: bytes
    retry_after: bool = field(default=False)


@pytest.fixture(scope="module")
def both(server: Server) -> Iterator[tuple[http.client.HTTPConnection, Framed, str]]:
    """Return a connection of each kind, and the token."""
    plain = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    with server.connect() as framed:
        yield plain, framed, str(server.token)
    plain.close()


def over_http(connection: http.client.HTTPConnection, token: str, case: Case) -> Said:
    """Send a case over HTTP."""
    headers = {"Authorization": f"Bearer {token}"}
    if case.split is not None:
        headers[LENGTH] = str(case.split)
    connection.request(case.method, case.path, case.body, headers)
    answer = connection.getresponse()
    length = answer.headers.get(LENGTH)
    body = answer.read()
    return Said(
        answer.status,
        answer.headers["Content-Type"],
        None if length is None else int(length),
        body,
        "Retry-After" in answer.headers,
    )


def over_socket(connection: Framed, case: Case) -> Said:
    """Send a case over the socket."""
    split = len(case.body) if case.split is None else case.split
    answer = connection.call(f"{case.method} {case.path}", case.body, json_length=split)
    whole = answer.json_length == len(answer.body)
    kind = answer.ext.get(
        2, b"application/json" if whole else b"application/octet-stream"
    ).decode()
    length = None
    if kind == "application/octet-stream":
        length = answer.json_length
    return Said(answer.status, kind, length, answer.body, 1 in answer.ext)


TIMES = {
    "timing_ms",
    "last_inference",
    "ns",
    "count",
    "inference_count",
    "execution_count",
    "batch_stats",
}
TIMES |= {"remaining_s", "ticket"}


def timeless(value: Any) -> Any:
    """Return a document without counters, times and random values.

    A pairing code is random; no error code looks like one.
    """
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in TIMES}
        return {
            key: timeless(item)
            for key, item in kept.items()
            if not (key == "code" and str(item).isdecimal())
        }
    if isinstance(value, list):
        return [timeless(item) for item in value]
    return value


def comparable(said: Said) -> Any:
    """Return the parts that must be equal."""
    head = said.body
    tail = b""
    if said.json_length is not None:
        head = said.body[: said.json_length]
        tail = said.body[said.json_length :]
    if said.content_type.startswith("text/plain"):
        content: Any = sorted(
            {line.partition("{")[0].split()[0] for line in head.decode().splitlines()}
            - {"#"}
        )
    else:
        content = None
        if head:
            content = timeless(json.loads(head))
    return (
        said.status,
        said.content_type,
        said.json_length,
        said.retry_after,
        content,
        tail,
    )


def infer(header: dict[str, Any] | bytes, raw: bytes = b"") -> tuple[bytes, int]:
    """Return a body with its JSON part's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return text + raw, len(text)


def tensor(**changes: Any) -> dict[str, Any]:
    """Return a request for the petals model with one change."""
    one = {
        "name": "features",
        "datatype": "FP32",
        "shape": [1, 3],
        "data": [5.1, 3.5, 1.4],
    }
    one |= changes
    return {"inputs": [{key: value for key, value in one.items() if value is not None}]}


RAW = struct.pack("<3f", 5.1, 3.5, 1.4)
BINARY = tensor(data=None, parameters={"binary_data_size": 12})
PICTURE = (MODELS / "digits" / "samples" / "7.png").read_bytes()
PETALS = "/v2/models/petals/infer"

INFERENCES: dict[str, tuple[dict[str, Any] | bytes, bytes]] = {
    "json": (tensor(), b""),
    "an id": (tensor() | {"id": "é \u2028 7"}, b""),
    "binary out": (tensor() | {"parameters": {"binary_data_output": True}}, b""),
    "one output in binary": (
        tensor()
        | {"outputs": [{"name": "petal_width", "parameters": {"binary_data": True}}]},
        b"",
    ),
    "an output that is not there": (tensor() | {"outputs": [{"name": "nothing"}]}, b""),
    "no inputs": ({}, b""),
    "inputs of another type": ({"inputs": {}}, b""),
    "wrong name": (tensor(name="x"), b""),
    "wrong datatype": (tensor(datatype="FP33"), b""),
    "wrong shape": (tensor(shape=[1, 4]), b""),
    "negative shape": (tensor(shape=[-1, 3]), b""),
    "no data": (tensor(data=None), b""),
    "texts": (tensor(data=["a", "b", "c"]), b""),
    "too few": (tensor(data=[1, 2]), b""),
    "nan": (
        b'{"inputs":[{"name":"features","datatype":"FP32","shape":[1,3],"data":[NaN,1,2]}]}',
        b"",
    ),
    "timeout 0": (tensor() | {"parameters": {"timeout": 0}}, b""),
    "timeout text": (tensor() | {"parameters": {"timeout": "1"}}, b""),
    "not json": (b"{", b""),
    "not utf-8": (b'{"id":"\xff"}', b""),
    "a bom": (b"\xef\xbb\xbf{}", b""),
    "twice the key": (b'{"id":"a","id":"b"}', b""),
    "deep": (b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}", b""),
    "a list": (b"[]", b""),
    "too many values": (b'{"inputs":[' + b"0," * MAX_JSON_SCALARS + b"0]}", b""),
    "too many texts": (b'{"inputs":[' + b'"",' * MAX_JSON_STRINGS + b"0]}", b""),
}
SPLITS: dict[str, tuple[dict[str, Any] | bytes, bytes]] = {
    "binary in": (BINARY, RAW),
    "binary in and out": (BINARY | {"parameters": {"binary_data_output": True}}, RAW),
    "too few bytes": (BINARY, RAW[:-1]),
    "too many bytes": (BINARY, RAW + b"\0"),
    "raw bytes alone": (b"", RAW),
    "raw bytes of another size": (b"", RAW[:-1]),
    "not json in front": (b"{]", RAW),
}


def inference_cases() -> Iterator[Case]:
    for name, (header, raw) in INFERENCES.items():
        body, _ = infer(header, raw)
        yield Case(f"infer: {name}", "POST", PETALS, body)
    for name, (header, raw) in SPLITS.items():
        body, split = infer(header, raw)
        yield Case(f"infer: {name}", "POST", PETALS, body, split)
    body, split = infer(BINARY | {"parameters": {"binary_data_output": True}}, RAW)
    yield Case(
        "infer: by version",
        "POST",
        "/v2/models/petals/versions/tflite/infer",
        body,
        split,
        status=200,
    )
    yield Case("infer: no body", "POST", PETALS)
    yield Case("infer: unknown model", "POST", "/v2/models/nothing/infer", b"{")
    yield Case(
        "infer: unknown version", "POST", "/v2/models/petals/versions/9/infer", b"{}"
    )


def raw_cases() -> Iterator[Case]:
    predictions = "/predictions/petals"
    for query in (
        "",
        "?top_k=1",
        "?threshold=0.5",
        "?version=tflite",
        "?timeout_ms=5000",
        "?",
    ):
        yield Case(
            f"raw: {query or 'plain'}",
            "POST",
            predictions + query,
            b"[1,2,3]",
            status=200,
        )
    for query in (
        "?top_k=0",
        "?top_k=x",
        "?top_k=1&top_k=2",
        "?nothing=1",
        "?version=none",
        "?top%5fk=2&%ff=1",
        "?a=+",
    ):
        yield Case(f"raw: {query}", "POST", predictions + query, b"[1,2,3]")
    yield Case("raw: put", "PUT", predictions, b"[1,2,3]", status=200)
    yield Case(
        "raw: a picture", "POST", "/predictions/digits?top_k=2", PICTURE, status=200
    )
    yield Case(
        "raw: half a picture",
        "POST",
        "/predictions/digits",
        PICTURE[: len(PICTURE) // 2],
    )
    for name, body in (
        ("nothing", b""),
        ("rubbish", b"\x00\xff" * 50),
        ("json", b'{"a":1}'),
        ("text", b"hello"),
    ):
        yield Case(f"raw: {name}", "POST", predictions, body)
    yield Case(
        "raw: too many values",
        "POST",
        predictions,
        b"[" + b"0," * MAX_JSON_SCALARS + b"0]",
        status=400,
    )
    served = "/v1/models/petals:predict"
    yield Case(
        "v1: rows", "POST", served, b'{"instances":[[1,2,3],[4,5,6]]}', status=200
    )
    yield Case("v1: columns", "POST", served, b'{"inputs":[[1,2,3]]}', status=200)
    for body in (
        b"",
        b"{}",
        b"[]",
        b'{"instances":[]}',
        b'{"instances":[[1]]}',
        b'{"instances":1,"inputs":2}',
    ):
        yield Case(f"v1: {body.decode() or 'nothing'}", "POST", served, body)


DIABETES = "/v2/repository/models/diabetes"
LOAD = f"{DIABETES}/load"
UNLOAD = f"{DIABETES}/unload"


def control_cases() -> Iterator[Case]:
    for body in (
        b"",
        b"{}",
        b'{"ready":true}',
        b'{"ready":1}',
        b"[",
        b'{"ready":true,"ready":true}',
    ):
        yield Case(
            f"index: {body.decode() or 'nothing'}", "POST", "/v2/repository/index", body
        )
    for verb in ("load", "unload"):
        for body in (b'{"parameters":1}', b'{"parameters":{"config":"x"}}', b"nope"):
            yield Case(f"{verb}: {body.decode()}", "POST", f"{DIABETES}/{verb}", body)
        yield Case(f"{verb}: nothing", "POST", f"/v2/repository/models/nothing/{verb}")
        yield Case(f"{verb}: petals", "POST", f"{DIABETES}/{verb}", b"{}", status=200)


PATHS = [
    "/nothing",
    "//",
    "///v2",
    "/v2/",
    "/v2//",
    "/v2/models/",
    "/v2/models/petals/",
    "/v2/models//ready",
    "/v2/models/%70etals",
    "/v2/models/%2e%2e",
    "/v2/models/..",
    "/v2/models/petals%2fready",
    "/v2/models/petals%00",
    "/v2/models/%ff%fe",
    "/v2/models/%C3%A9",
    "/v2/models/%zz",
    "/v2/models/petals:predict",
    "/v1/models/petals:predict",
    "/v1/models/petals:nothing",
    "/v2/models/petals/versions",
    "/v2/models/petals/versions/tflite/",
    "/v2?x=1&x=2",
    "/v2?x",
    "/v2/models/petals?version=9",
    "/V2",
    "/v2/models/" + "a" * 900,
]


def path_cases() -> Iterator[Case]:
    for path in PATHS:
        for method in ("GET", "POST"):
            yield Case(f"path: {method} {path[:40]}", method, path)
    for route in ROUTES:
        path = route.pattern.replace("{model}", "petals").replace("{version}", "tflite")
        if "unload" not in path:
            yield Case(f"route: {route.method} {path}", route.method, path)
        unknown = route.pattern.replace("{model}", "nothing").replace("{version}", "9")
        yield Case(
            f"unknown: {route.method} {unknown}",
            route.method,
            unknown,
            b"{}" if route.method != "GET" else b"",
        )
        for method in ("DELETE", "PATCH", "OPTIONS", "HEAD"):
            yield Case(f"method: {method} {path}", method, path)


OPENAI_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
CASES = [*inference_cases(), *raw_cases(), *control_cases(), *path_cases()]


@pytest.mark.live
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_transports_give_the_same_answer(both, case):
    plain, framed, token = both
    first = over_http(plain, token, case)
    second = over_socket(framed, case)
    if (
        case.path == UNLOAD
        # the server is shared, and another process may run the case that would load the
        # model
    ):
        assert framed.call(f"POST {LOAD}").status == 200
    if case.method == "HEAD":
        # HTTP cannot send an error's body here; the socket can.
        assert first.status == second.status
        assert second.status != 200 or second.body == b""
        return
    assert comparable(second) == comparable(first)
    if case.status is not None:
        assert first.status == case.status
    if first.status != 200:
        is_openai = case.path in OPENAI_PATHS and case.method == "POST"
        check_error(json.loads(first.body), is_openai=is_openai)


def check_error(content: dict[str, Any], *, is_openai: bool) -> None:
    if is_openai:
        assert content.keys() == {"error"}
        assert content["error"].keys() == {"message", "type", "param", "code"}
    else:
        assert content.keys() == {"error", "code"}


def test_the_cases_cover_every_route():
    asked = {(case.method, case.path.partition("?")[0]) for case in CASES}
    wanted = set()
    for r in ROUTES:
        wanted.add(
            (
                r.method,
                r.pattern.replace("{model}", "petals").replace("{version}", "tflite"),
            )
        )
    assert {one for one in wanted - asked if "unload" not in one[1]} == set()
