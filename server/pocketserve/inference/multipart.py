"""``multipart/form-data``, as sent by curl, FormData and HTTP libraries.

Source: RFC 7578, and RFC 2046 for the delimiters.
"""

from __future__ import annotations

import re
from typing import Final

from pocketserve.inference.payload import FormPart
from pocketserve_wire import ApiError
from pocketserve_wire.oip_fields import bad_request

FORM: Final = "multipart/form-data"
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
    """Return the parts of a form in order; they reference the body.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    if content_type[: len(FORM)].lower() != FORM:
        text = f"only {FORM} is read of multipart bodies; or send one file as the body"
        raise bad_request(text)
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise _invalid_form("cannot be read")
    delimiter = b"--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    content = body.cast("B")
    if bytes(content[: len(delimiter) + 2]) != delimiter + b"\r\n":
        raise _invalid_form("cannot be read")
    # Expressions search a memoryview without a copy of it: it may be a long recording.
    end_of_part = re.compile(re.escape(b"\r\n" + delimiter))
    parts: list[FormPart] = []
    start = len(delimiter)
    while bytes(content[start : start + 2]) == b"\r\n":
        if len(parts) == MAX_PARTS:
            raise _invalid_form(f"has more than {MAX_PARTS} parts")
        part, end = _read_part(content, start, end_of_part)
        parts.append(part)
        start = end + 2 + len(delimiter)
    if bytes(content[start : start + 2]) != b"--":
        raise _invalid_form("cannot be read")
    return parts


def _read_part(
    content: memoryview, start: int, end_of_part: re.Pattern[bytes]
) -> tuple[FormPart, int]:
    """Return the part after a delimiter, and the offset of its end."""
    head = bytes(content[start : start + MAX_PART_HEADERS])
    head_length = head.find(b"\r\n\r\n")
    if head_length < 0:
        raise _invalid_form("cannot be read")
    # The line end before the delimiter may be the one that ends the headers.
    end = end_of_part.search(content, start + head_length + 2)
    if end is None:
        raise _invalid_form("is cut off")
    body_start = start + head_length + 4
    body = content[body_start : max(body_start, end.start())]
    return _part(head[:head_length], body), end.start()


def _part(headers: bytes, content: memoryview) -> FormPart:
    if _ENCODED.search(headers):
        raise _invalid_form("encodes its part")
    kind = _TYPE.search(headers)
    content_type = ""
    if kind is not None:
        content_type = kind[1].decode("latin-1").strip()
    parameters = _disposition(headers)
    name = parameters.get(b"name", b"").decode("utf-8", "replace")
    is_file = b"filename" in parameters or b"filename*" in parameters
    if content_type and not content_type.lower().startswith(_TEXT_TYPES):
        # Some programs omit the file's name. None sends such a type for a text field.
        is_file = True
    is_unfilled = is_file and not content and not parameters.get(b"filename")
    return FormPart(
        name, content, content_type, is_file=is_file, is_unfilled=is_unfilled
    )


def _disposition(headers: bytes) -> dict[bytes, bytes]:
    """Return the parameters of the Content-Disposition header."""
    parameters: dict[bytes, bytes] = {}
    disposition = _DISPOSITION.search(headers)
    if disposition is None:
        return parameters
    for match in _PARAMETER.finditer(disposition[1]):
        quoted, plain = match[2], match[3]
        value = plain if quoted is None else quoted.replace(b'\\"', b'"')
        parameters[match[1].lower()] = value
    return parameters


def _invalid_form(fault: str) -> ApiError:
    return bad_request(
        f"the form {fault}: send files and fields as curl -F does, or one file by curl -T FILE"
    )
