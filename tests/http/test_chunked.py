"""Decode chunked bodies, however they are split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pocketserve.transports.http.chunked import MAX_LINE, MAX_TRAILERS, ChunkedBody

LIMIT = 1 << 20
EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b';a="b c"', b"; x"])
TRAILERS = st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC:\r\n"])


def encode(chunks: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    body = b"".join(
        b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks
    )
    return body + b"00" + extension + b"\r\n" + trailer + b"\r\n"


def feed(body: ChunkedBody, data: bytes, sizes: list[int]) -> int:
    """Feed all bytes in pieces of these sizes, repeatedly.

    Return the number consumed.
    """
    taken = turn = 0
    while taken < len(data) and not body.completed and body.error is None:
        size = sizes[turn % len(sizes)]
        taken += body.received(data[taken : taken + size])
        turn += 1
    return taken


@given(
    st.lists(st.binary(min_size=1, max_size=30)),
    EXTENSIONS,
    TRAILERS,
    st.lists(st.integers(1, 50), min_size=1),
)
def test_chunks_are_joined(chunks, extension, trailer, sizes):
    data = encode(chunks, extension, trailer)
    body = ChunkedBody(LIMIT)
    assert feed(body, data + b"GET / HTTP/1.1", sizes) == len(data)
    assert body.completed
    assert body.error is None
    assert body.getbuffer() == b"".join(chunks)
    assert len(body) == sum(map(len, chunks))


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), min_size=1))
def test_the_split_changes_nothing(data, sizes):
    whole = ChunkedBody(LIMIT)
    cut = ChunkedBody(LIMIT)
    assert feed(whole, data, [len(data) or 1]) >= 0
    assert feed(cut, data, sizes) >= 0
    assert whole.completed == cut.completed
    assert (whole.error is None) == (cut.error is None)
    assert len(whole) == len(cut)


def test_discarded_data_uses_little_memory():
    for start in (b"", b"5;", b"0\r\n"):
        body = ChunkedBody(LIMIT)
        assert (
            feed(body, start + b"1" * 1_000_000, [1000]) <= len(start) + MAX_LINE + 1000
        )
        assert body.error is not None
    body = ChunkedBody(LIMIT)
    assert feed(body, b"0\r\n" + b"A: b\r\n" * 100_000, [1000]) <= MAX_TRAILERS + 2000
    assert body.error is not None


def test_a_chunk_over_the_limit_is_rejected_before_it_arrives():
    body = ChunkedBody(100)
    assert body.received(b"63\r\n") == 4
    assert body.error is None
    body = ChunkedBody(100)
    body.received(b"64\r\n")
    assert body.error is not None
    assert body.error.code == 413
