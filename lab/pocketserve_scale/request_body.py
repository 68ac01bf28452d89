"""Read a request's body from a WSGI server's stream, with a limit."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from pocketserve.transports.http.body import Body, ReceivedBody
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from _typeshed.wsgi import InputStream

    from pocketserve.transports.http.wsgi import Environ

STEP: Final = 64 * 1024
"""Bytes of one read."""


def read_body(environ: Environ, limit: int) -> Body | BytesIO:
    """Return the complete body.

    Its memory grows with the data that arrives.

    Args:
        limit: bytes at most.

    Raises:
        ApiError: BODY_TOO_LARGE; INVALID_REQUEST for an incomplete body.
    """
    stream: InputStream = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or len(length) > 18 or int(length) > limit:
        raise _too_large(limit)
    try:
        if "HTTP_TRANSFER_ENCODING" in environ:
            return _read_to_end(stream, limit)
        if not int(length):
            return Body()
        json_length = environ.get("HTTP_INFERENCE_HEADER_CONTENT_LENGTH", "")
        return _read_known(stream, int(length), json_length)
    except (OSError, EOFError):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "the body was incomplete or late"
        ) from None


def _read_known(stream: InputStream, length: int, json_length: str) -> Body:
    # It is not checked here: it only aligns the memory.
    aligned = 0
    if json_length.isdecimal() and len(json_length) < 20:
        aligned = int(json_length)
    body = ReceivedBody(length, aligned)
    while not body.completed:
        data = stream.read(min(STEP, length - len(body)))
        if not data:
            raise EOFError
        body.received(data)
    return body


def _read_to_end(stream: InputStream, limit: int) -> BytesIO:
    body = BytesIO()
    data = stream.read(STEP)
    while data:
        body.write(data)
        if body.tell() > limit:
            raise _too_large(limit)
        data = stream.read(STEP)
    return body


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.BODY_TOO_LARGE, f"the body exceeds {limit} bytes (max_body_bytes)"
    )
