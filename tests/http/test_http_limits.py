"""Limits of bodies: plain, chunked and compressed."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest

from pocketserve.transports.http.compression import inflate
from pocketserve_wire import ApiError, strict_json

LIMIT = 4096
NUMBERS = b"[5.1,3.5,1.4]"
# It is part of tests' names, which must not change with the time.
PACKED = gzip.compress(NUMBERS, mtime=0)


def padded(size: int) -> bytes:
    """Return a valid body of exactly this size."""
    return NUMBERS + b" " * (size - len(NUMBERS))


def raw_deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(data) + encoder.flush()


def chunked(data: bytes, size: int) -> bytes:
    parts = []
    for start in range(0, len(data), size):
        parts.append(data[start : start + size])
    return (
        b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    )


PATH = "/predictions/petals"


@pytest.fixture
def limited(new_server, models_copy):
    """Start a server with a small limit for bodies."""
    return new_server(models_copy, "--max-body-bytes", str(LIMIT))


def test_bodies_are_rejected_from_one_byte_above_the_limit(limited, wire_to, refused):
    wire = wire_to(limited)
    assert limited.call("POST", PATH, data=padded(LIMIT)).status_code == 200
    above = wire.one(wire.write("POST", PATH, body=padded(LIMIT + 1)))
    text = refused(above, 413, "BODY_TOO_LARGE")
    assert "exceeds 4096 bytes (max_body_bytes)" in text
    # Every path has the limit, even those that ignore their body.
    ignored = wire.one(wire.write("GET", "/v2", body=bytes(LIMIT + 1)))
    refused(ignored, 413, "BODY_TOO_LARGE")
    assert limited.call("POST", PATH, data=NUMBERS).status_code == 200


def test_chunked_bodies_have_the_same_limit(limited, wire_to, refused):
    wire = wire_to(limited)
    header = wire.write("POST", PATH, "Connection: close", "Transfer-Encoding: chunked")
    assert wire.one(header + chunked(padded(LIMIT - 100), 1000)).status == 200
    above = wire.one(header + chunked(padded(LIMIT + 1), 1000))
    refused(above, 413, "BODY_TOO_LARGE")
    announced = wire.one(header + b"ffffffff\r\n" + bytes(2 * LIMIT))
    refused(announced, 413, "BODY_TOO_LARGE")
    assert limited.call("POST", PATH, data=NUMBERS).status_code == 200


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
    ],
)
def test_inflated_bodies_have_the_same_limit(limited, refused, coding, encode):
    headers = {"Content-Encoding": coding}

    def post(body):
        return limited.call("POST", PATH, data=encode(body), headers=headers)

    assert post(padded(LIMIT)).status_code == 200
    text = refused(post(padded(LIMIT + 1)), 413, "BODY_TOO_LARGE")
    assert "inflated" in text
    refused(post(bytes(2_000_000)), 413, "BODY_TOO_LARGE")
    assert limited.call("POST", PATH, data=NUMBERS).status_code == 200


def test_the_limit_applies_to_all_gzip_members_together(limited, refused):
    first = gzip.compress(padded(LIMIT // 2))
    second = gzip.compress(b" " * (LIMIT // 2 + 1))
    headers = {"Content-Encoding": "gzip"}
    answer = limited.call("POST", PATH, data=first + second, headers=headers)
    refused(answer, 413, "BODY_TOO_LARGE")
    assert limited.call("POST", PATH, data=NUMBERS).status_code == 200


def test_gzip_bodies_have_few_members(server, refused):
    """Each member costs time, even an empty one, so their number keeps time
    proportional to bytes.
    """
    headers = {"Content-Encoding": "gzip"}
    empty = gzip.compress(b"", mtime=0)
    for members, body in ((64, empty * 62 + PACKED + empty), (64, PACKED + empty * 63)):
        assert (
            server.call(
                "POST", "/predictions/petals", data=body, headers=headers
            ).status_code
            == 200
        ), members
    for body in (
        empty * 64 + PACKED,
        PACKED + empty * 64,
        empty * 200_000,
    ):
        answer = server.call("POST", "/predictions/petals", data=body, headers=headers)
        assert "more than 64 members" in refused(answer, 400, "INVALID_REQUEST")


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 150_001, 400_000])
def test_gzip_members_are_joined_wherever_they_end(size):
    body = random.Random(7).randbytes(400_000)
    packed = b"".join(
        gzip.compress(body[at : at + size])
        for at in range(0, min(len(body), 64 * size), size)
    )
    assert inflate(packed, "gzip", len(body)) == body[: 64 * size]


def peak_of(work: Callable[[], object]) -> int:
    """Return the peak memory of a call, which may fail."""
    tracemalloc.start()
    try:
        with suppress(ApiError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_inflated_body_is_in_memory_once():
    packed = gzip.compress(bytes(20_000_000), 1)
    assert peak_of(lambda: inflate(packed, "gzip", 20_000_000)) < 25_000_000


@pytest.mark.parametrize(
    "text",
    [
        " " * 10**6 + "{}",
        f'{{"id":"{"a" * 10**6}\N{GRINNING FACE}"}}',
        f'["{"é" * 10**6}"]',
    ],
)
def test_the_memory_of_a_document_is_known_before_decoding(text):
    """One non-ASCII character can make Python use four bytes for each character."""
    body = text.encode()
    assert peak_of(lambda: strict_json.loads(memoryview(body))) + len(
        body
    ) <= strict_json.parsed_bytes(body)


def test_a_compression_bomb_over_the_default_limit_is_rejected(server, refused):
    packed = gzip.compress(bytes(68_000_000), 1)
    assert len(packed) < 400_000
    answer = server.call(
        "POST",
        "/v2/models/petals/infer",
        data=packed,
        headers={"Content-Encoding": "gzip"},
    )
    refused(answer, 413, "BODY_TOO_LARGE")
    assert server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", NUMBERS),
        ("gzip", PACKED[:-1]),
        ("gzip", PACKED[:5]),
        ("gzip", PACKED[:-8] + bytes(8)),
        ("gzip", PACKED + b"trailing"),
        ("gzip", PACKED + gzip.compress(b" ", mtime=0)[:-2]),
        ("gzip", zlib.compress(NUMBERS)),
        ("deflate", NUMBERS),
        ("deflate", raw_deflate(NUMBERS)),
        ("deflate", PACKED),
        ("deflate", zlib.compress(NUMBERS)[:-1]),
        ("deflate", zlib.compress(NUMBERS) + b"x"),
        ("deflate", zlib.compress(NUMBERS) * 2),
    ],
)
def test_damaged_compression_is_rejected(server, refused, coding, body):
    answer = server.call(
        "POST", "/predictions/petals", data=body, headers={"Content-Encoding": coding}
    )
    assert f"{coding} body is damaged" in refused(answer, 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "coding",
    ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "aws-chunked", "\xe9"],
)
def test_other_content_codings_are_rejected(server, refused, coding):
    headers = {"Content-Encoding": coding.encode("latin-1")}
    answer = server.call("POST", "/predictions/petals", data=NUMBERS, headers=headers)
    assert refused(answer, 415, "UNSUPPORTED_ENCODING").startswith(
        "Unsupported compression type"
    )
