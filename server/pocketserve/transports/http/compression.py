"""Content-Encoding of requests (bounded) and responses.

Responses are compressed only for a client that names exactly one coding, as tritonclient
does on request. HTTP libraries send a list by default: honoring it would compress every
response on loopback, where bytes cost nothing and compression costs milliseconds.
"""

from __future__ import annotations

import zlib

from pocketserve_wire import ApiError, ErrorCode

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_STEP = 64 * 1024
_ROOM = 1024 * 1024

MAX_MEMBERS = 64  # members of one gzip body; even empty ones take time


def inflate(
    body: bytes | memoryview, encoding: str, limit: int
) -> bytes | bytearray | memoryview:
    """Undo a request's Content-Encoding.

    Args:
        limit: limit of the inflated size, also for memory; 0 inflates nothing.

    Raises:
        ApiError: UNSUPPORTED_ENCODING, BODY_TOO_LARGE or INVALID_REQUEST.
    """
    coding = encoding.strip().lower()
    # tritonclient leaves the header in its caller's dict: later requests without a body carry it too.
    if coding in ("", "identity") or not body:
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        text = f"Unsupported compression type {coding[:40]!r}; use gzip or deflate"
        raise ApiError(ErrorCode.UNSUPPORTED_ENCODING, text)
    if not limit:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ENCODING,
            "a compressed body is accepted only with the token; send it plain",
        )
    try:
        return _inflate(
            body, zlib.MAX_WBITS if coding == "deflate" else _GZIP_WBITS, limit
        )
    except zlib.error as error:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"the {coding} body is damaged: {error}"
        ) from None


def _inflate(body: bytes | memoryview, wbits: int, limit: int) -> bytearray:
    inflated, rest = bytearray(), memoryview(body)
    # A gzip file may have several members.
    for _ in range(MAX_MEMBERS if wbits == _GZIP_WBITS else 1):
        decoder = zlib.decompressobj(wbits)
        while not decoder.eof:
            step = rest[:_STEP]  # zlib copies input beyond a member's end
            part = decoder.decompress(step, min(_ROOM, limit - len(inflated) + 1))
            inflated += part
            if len(inflated) > limit:
                raise ApiError(
                    ErrorCode.BODY_TOO_LARGE,
                    f"the inflated body exceeds {limit} bytes (max_body_bytes)",
                )
            count = len(step) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
            rest = rest[count:]
            if not (part or count):
                break
        if not decoder.eof:
            raise zlib.error("it ends too early")
        if not rest:
            return inflated
    raise zlib.error(f"bytes follow its end, or it has more than {MAX_MEMBERS} members")


def choose_coding(accept_encoding: str | None) -> str | None:
    """Return the coding for a response, None for no compression.

    It is gzip or deflate, if that is the only one the client names.
    """
    if not accept_encoding:
        return None
    items = [item.strip() for item in accept_encoding.split(",") if item.strip()]
    if len(items) != 1:
        return None
    coding, _, weight = items[0].partition(";")
    coding = coding.strip().lower()
    is_zero = weight.replace(" ", "").lower() in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return coding if coding in ("gzip", "deflate") and not is_zero else None


def deflate(body: bytes, coding: str) -> bytes:
    """Compress a response body with a coding from :func:`choose_coding`."""
    return zlib.compress(
        body, level=1, wbits=_GZIP_WBITS if coding == "gzip" else zlib.MAX_WBITS
    )
