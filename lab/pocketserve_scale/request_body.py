"""Read a request's body from a WSGI server's stream, bounded before it is taken."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from pocketserve.transports.http.body import Body, ReceivedBody
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from _typeshed.wsgi import InputStream

    from pocketserve.transports.http.wsgi import Environ

STEP: Final = 64 * 1024  # bytes that are asked of the server at once


def read_body(environ: Environ, limit: int) -> Body | BytesIO:
    """Return the whole body; its memory grows with what has come, not with what was announced.

    Args:
        limit: bytes at most.

    Raises:
        ApiError: BODY_TOO_LARGE; INVALID_REQUEST for a body that did not arrive whole.
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
        return _read_known(
            stream, int(length), environ.get("HTTP_INFERENCE_HEADER_CONTENT_LENGTH", "")
        )
    except (OSError, EOFError):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "the body did not arrive whole, or not in time"
        ) from None


def _read_known(stream: InputStream, length: int, json_length: str) -> Body:
    is_number = json_length.isdecimal() and len(json_length) < 20
    body = ReceivedBody(
        length, int(json_length) if is_number else 0
    )  # unchecked: here it only aligns the memory
    while not body.completed:
        data = stream.read(min(STEP, length - len(body)))
        if not data:
            raise EOFError
        body.received(data)
    return body


def _read_to_end(stream: InputStream, limit: int) -> BytesIO:
    body = BytesIO()
    while data := stream.read(STEP):
        body.write(data)
        if body.tell() > limit:
            raise _too_large(limit)
    return body


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.BODY_TOO_LARGE, f"the body exceeds {limit} bytes (max_body_bytes)"
    )
