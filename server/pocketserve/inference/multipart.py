"""``multipart/form-data``, as sent by curl, FormData and HTTP libraries.

Source: RFC 7578, and RFC 2046 for the delimiters.
"""

from __future__ import annotations

import re
from typing import Final

from pocketserve.inference.payload import FormPart
from pocketserve_wire import ApiError
from pocketserve_wire.oip_fields import bad_request

MAX_PART_HEADERS: Final = 8192
MAX_PARTS: Final = 1024
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_ENCODED = re.compile(
    rb"content-transfer-encoding:\s*(?:base64|quoted-printable)", re.IGNORECASE
)
_TYPE = re.compile(rb"^content-type:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)
_DISPOSITION = re.compile(
    rb"^content-disposition:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE
)
_PARAMETER = re.compile(rb';[ \t]*([A-Za-z]+\*?)=(?:"((?:[^"\\]|\\.)*+)"?|([^\s;"]*))')
_TEXT_TYPES = ("text/", "application/json")


def read_form(body: memoryview, content_type: str) -> list[FormPart]:
    """Return the parts of a form in order.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise _invalid_form("cannot be read")
    delimiter = b"--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    content = bytes(body)
    view = memoryview(content)
    if not content.startswith(delimiter + b"\r\n"):
        raise _invalid_form("cannot be read")
    parts: list[FormPart] = []
    start = len(delimiter)
    while content[start : start + 2] == b"\r\n":
        if len(parts) == MAX_PARTS:
            raise _invalid_form(f"has more than {MAX_PARTS} parts")
        head_end = content.find(b"\r\n\r\n", start, start + MAX_PART_HEADERS)
        if head_end < 0:
            raise _invalid_form("cannot be read")
        # The line end in front of the delimiter may be the one that ends the headers.
        end = content.find(b"\r\n" + delimiter, head_end + 2)
        if end < 0:
            raise _invalid_form("is cut off")
        parts.append(
            _part(content[start:head_end], view[head_end + 4 : max(head_end + 4, end)])
        )
        start = end + 2 + len(delimiter)
    if content[start : start + 2] != b"--":
        raise _invalid_form("cannot be read")
    return parts


def _part(headers: bytes, content: memoryview) -> FormPart:
    if _ENCODED.search(headers):
        raise _invalid_form("encodes its part")
    kind = _TYPE.search(headers)
    content_type = kind[1].decode("latin-1").strip() if kind else ""
    disposition = _DISPOSITION.search(headers)
    parameters = {}
    for match in _PARAMETER.finditer(disposition[1] if disposition else b""):
        quoted, plain = match[2], match[3]
        value = plain if quoted is None else quoted.replace(b'\\"', b'"')
        parameters[match[1].lower()] = value
    name = parameters.get(b"name", b"").decode("utf-8", "replace")
    has_filename = b"filename" in parameters or b"filename*" in parameters
    # Some programs leave the file's name out, and none writes such a type for a text field.
    is_file = has_filename or (
        content_type != "" and not content_type.lower().startswith(_TEXT_TYPES)
    )
    is_unfilled = is_file and not content and not parameters.get(b"filename")
    return FormPart(
        name, content, content_type, is_file=is_file, is_unfilled=is_unfilled
    )


def _invalid_form(fault: str) -> ApiError:
    return bad_request(
        f"the form {fault}: send files and fields as curl -F does, or one file by curl -T FILE"
    )
