"""Forms with one file, as ``curl -F data=@photo.jpg`` and web pages send them: the file is the raw input.

Source: RFC 7578, and RFC 2046 for the delimiters.
"""

from __future__ import annotations

import re

from pocketserve_wire import ApiError
from pocketserve_wire.oip_fields import bad_request

MAX_PART_HEADERS = 8192
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_ENCODED = re.compile(rb"content-transfer-encoding:\s*(?:base64|quoted-printable)", re.IGNORECASE)
_TYPE = re.compile(rb"^content-type:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)


def only_part(body: memoryview, content_type: str) -> tuple[memoryview, str]:
    """Return the content of a form's only part, without a copy, and the Content-Type that the form gives it."""
    boundary = _BOUNDARY.search(content_type)
    delimiter = b"--" + (boundary[1] or boundary[2]).encode("latin-1", "replace") if boundary else b""
    head = bytes(body[: len(delimiter) + 2 + MAX_PART_HEADERS])
    start = head.find(b"\r\n\r\n") + 4
    if boundary is None or not head.startswith(delimiter + b"\r\n") or start < 4:
        raise _invalid_form("cannot be read")
    headers = head[len(delimiter) + 2 : start]
    if _ENCODED.search(headers):
        raise _invalid_form("encodes its part")
    end = bytes(body).find(b"\r\n" + delimiter, start - 2)
    if end < 0:
        raise _invalid_form("is cut off")
    rest = bytes(body[end + 2 + len(delimiter) :][:4])
    if not rest.startswith(b"--"):
        raise _invalid_form("has several parts" if rest.startswith(b"\r\n") else "cannot be read")
    kind = _TYPE.search(headers)
    return body[start : max(start, end)], kind[1].decode("latin-1").strip() if kind else ""


def _invalid_form(fault: str) -> ApiError:
    return bad_request(f"the form {fault}: send one file, as curl -F data=@FILE or curl -T FILE do")
