"""Raw input in other programs' formats: forms, base64, other JSON.

Plain files and documents go to the task directly, see
``task_operation.is_direct_input``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from pocketserve.inference.accepted import (
    JSON,
    Accepted,
    RawInputs,
    accepted_by,
    field_name,
)
from pocketserve.inference.payload import (
    BOM,
    URLENCODED,
    FormPart,
    RawInput,
    RawPayload,
)
from pocketserve.tasks.base import Task, invalid_input
from pocketserve.tasks.cancellation import hold_document
from pocketserve.tasks.encoded import (
    DATA_URL,
    decode_base64,
    decode_file,
    files_in_json,
    hold_encoded,
    is_base64_start,
    is_data_url,
)
from pocketserve.tasks.parameters import NAMES
from pocketserve_wire import ApiError, strict_json

MAX_FIELDS: Final = 10_000  # of a urlencoded form, one per feature of a table
MAX_FIELD_NAME: Final = 1024  # bytes before the first "="
_LIST_OF_FILES = re.compile(rb'\s*\[\s*["{]')


def read_raw_inputs(
    payload: RawPayload, task: Task, input_names: Collection[str]
) -> RawInputs:
    """Return the inputs in a request's body.

    Args:
        input_names: of the model's tensors.

    Raises:
        ApiError: INVALID_INPUT, INVALID_PARAMETER or MALFORMED_JSON.
    """
    # Imported late: few requests are forms.
    from pocketserve.inference.form_fields import inputs_of_form

    accepted = accepted_by(task, input_names)
    if payload.parts:
        return inputs_of_form(payload.parts, accepted, payload)
    body, hints = payload.body, payload.hints
    content_type = hints.content_type.partition(";")[0].strip().lower()
    if content_type == URLENCODED:
        fields = urlencoded_fields(body, accepted)
        if fields:
            return inputs_of_form(fields, accepted, payload)
    is_raw_sample = "format" in hints.values and content_type != JSON
    if not is_raw_sample:
        if "file" not in accepted.kinds:
            body = _without_bom(body)
        files = _encoded_files(body, accepted) if accepted.media else None
        if accepted.media and files is None and content_type.startswith("text/"):
            files = _base64_text(body)
        if files is not None:
            return _inputs_of_files(files, payload)
    if content_type.startswith("text/") and _is_task_object(body, accepted):
        hints = hints._replace(content_type=JSON)
    return RawInputs([RawInput(body, hints)], payload.options)


def _without_bom(body: memoryview) -> memoryview:
    if bytes(body[: len(BOM)]) == BOM:
        return body[len(BOM) :]
    return body


class _Files(NamedTuple):
    """Decoded files; ``is_list`` if the body may hold several."""

    contents: list[bytes]
    is_list: bool


def _inputs_of_files(files: _Files, payload: RawPayload) -> RawInputs:
    # The content type is that of the enclosing JSON.
    hints = payload.hints._replace(content_type="")
    inputs = [RawInput(memoryview(content), hints) for content in files.contents]
    return RawInputs(inputs, payload.options, files.is_list)


def _encoded_files(body: memoryview, accepted: Accepted) -> _Files | None:
    """Return the files in a JSON document or data URL, if any."""
    start = bytes(body[:64]).lstrip(b" \t\r\n")
    if start[: len(DATA_URL)].lower() == DATA_URL.encode():
        hold_encoded(len(body))
        content = decode_file(_decode_ascii(body), f"the {accepted.media}")
        return _Files([content], False)
    if not _may_hold_files(body, start):
        return None
    hold_document(body)
    try:
        document = strict_json.loads(body)
    except ApiError:
        if start[:1] == b'"':  # other files may begin with a quotation mark
            return None
        raise
    files, has_list = files_in_json(document, accepted.media, accepted.input_names)
    return _Files(files, has_list)


def _may_hold_files(body: memoryview, start: bytes) -> bool:
    """Return whether a body may be JSON with files."""
    if start[:1] in (b"{", b'"'):
        return True
    return _LIST_OF_FILES.match(bytes(body[:256])) is not None


def _base64_text(body: memoryview) -> _Files | None:
    """Return the file of a body that is base64 text; None if it isn't."""
    if not is_base64_start(bytes(body[:64])):
        return None
    hold_encoded(len(body))
    try:
        content = decode_base64(bytes(body))
    except ValueError:
        return None
    return _Files([content], False)


def _decode_ascii(body: memoryview) -> str:
    try:
        return bytes(body).decode("ascii").strip()
    except UnicodeDecodeError:
        raise invalid_input(
            "the data URL holds characters that base64 does not have"
        ) from None


def _is_task_object(body: memoryview, accepted: Accepted) -> bool:
    """Return whether a body is a JSON object for the task.

    JavaScript's ``fetch`` sends JSON strings with the Content-Type ``text/plain``.
    """
    objects = accepted.objects
    if not objects or bytes(body[:64]).lstrip(b" \t\r\n")[:1] != b"{":
        return False
    hold_document(body)
    try:
        content = strict_json.loads(body)
    except ApiError:
        return False
    if not isinstance(content, dict):
        return False
    has_inputs = all(_is_input(value) for value in content.values())
    return has_inputs and any(content.keys() == set(keys) for keys in objects)


def _is_input(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int) for item in value)
    return isinstance(value, str | int)


def urlencoded_fields(body: memoryview, accepted: Accepted) -> list[FormPart]:
    """Return the fields of a urlencoded form, if any match.

    ``curl -d`` sends every text under this type, so a form must name one of the task's keys.

    Raises:
        ApiError: INVALID_INPUT for too many fields.
    """
    start, equals, _ = bytes(body[:MAX_FIELD_NAME]).partition(b"=")
    first_name = field_name(unquote_plus(start.decode("utf-8", "replace")))
    if not equals or (first_name not in accepted.keys and first_name not in NAMES):
        return []
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError:
        return []
    if text.count("&") >= MAX_FIELDS:
        raise invalid_input(f"the form has more than {MAX_FIELDS} fields")
    fields: list[FormPart] = []
    has_input = False
    for name, value in parse_qsl(text, keep_blank_values=True):
        is_input = field_name(name) in accepted.keys
        has_input = has_input or is_input
        if accepted.media and (is_input or is_data_url(value)):
            # A plus sign of base64 that was not percent-encoded.
            value = value.replace(" ", "+")
        content = memoryview(value.encode("utf-8", "replace"))
        fields.append(FormPart(name, content, is_file=False))
    return fields if has_input else []
