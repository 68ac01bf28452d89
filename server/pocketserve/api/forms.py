"""Forms with one file, as ``curl -F data=@photo.jpg`` and web pages send them: the file is the raw input.

Source: RFC 7578, and RFC 2046 for the delimiters.
"""

from __future__ import annotations

import re

from pocketserve_wire import ApiError, ErrorCode

MAX_PART_HEADERS = 8192
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_ENCODED = re.compile(rb"content-transfer-encoding:\s*(?:base64|quoted-printable)", re.IGNORECASE)
_TYPE = re.compile(rb"^content-type:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)


def only_part(body: memoryview, content_type: str) -> tuple[memoryview, str]:
    """The content of a form's only part, without a copy, and the Content-Type that the form gives it.

    Raises:
        ApiError: INVALID_REQUEST where the form has no part or several, or is damaged.
    """
    named = _BOUNDARY.search(content_type)
    delimiter = b"--" + (named[1] or named[2]).encode("latin-1", "replace") if named else b""
    head = bytes(body[: len(delimiter) + 2 + MAX_PART_HEADERS])
    starts = head.find(b"\r\n\r\n") + 4
    if named is None or not head.startswith(delimiter + b"\r\n") or starts < 4:
        raise _refused("cannot be read")
    headers = head[len(delimiter) + 2 : starts]
    if _ENCODED.search(headers):
        raise _refused("encodes its part")
    ends = bytes(body).find(b"\r\n" + delimiter, starts - 2)
    if ends < 0:
        raise _refused("is cut off")
    rest = bytes(body[ends + 2 + len(delimiter) :][:4])
    if not rest.startswith(b"--"):
        raise _refused("has several parts" if rest.startswith(b"\r\n") else "cannot be read")
    kind = _TYPE.search(headers)
    return body[starts : max(starts, ends)], kind[1].decode("latin-1").strip() if kind else ""


def _refused(what: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST, f"the form {what}: send one file, as curl -F data=@FILE or curl -T FILE do"
    )
