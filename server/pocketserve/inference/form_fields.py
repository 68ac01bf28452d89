"""Forms: their fields and files become the inputs and parameters of a task."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from pocketserve.inference.accepted import JSON, Accepted, RawInputs, field_name
from pocketserve.inference.payload import FormPart, RawInput, RawPayload
from pocketserve.tasks import parameters
from pocketserve.tasks.base import (
    AnswerOptions,
    Hints,
    invalid_input,
    invalid_parameter,
)
from pocketserve.tasks.cancellation import is_text
from pocketserve.tasks.encoded import MAX_INPUTS, decode_file, hold_encoded
from pocketserve_wire import ApiError

LISTS = ("texts", "items")  # keys whose values are always lists
ITEM_KEYS = ("items", "user")  # keys whose fields may hold JSON lists


def inputs_of_form(
    parts: Sequence[FormPart], accepted: Accepted, payload: RawPayload
) -> RawInputs:
    """Return the inputs in a form, and the options with its parameters.

    Raises:
        ApiError: INVALID_INPUT, INVALID_PARAMETER.
    """
    parts = [part for part in parts if not part.is_unfilled]
    hints, options = _with_parameters(parts, accepted, payload)
    inputs = [part for part in parts if not _is_parameter(part, accepted)]
    if not inputs:
        raise invalid_input("the form has no file and no field with input")
    if len(inputs) == 1 and not _is_key(inputs[0], accepted):
        return RawInputs([_raw(inputs[0], hints)], options)
    _refuse_unknown(inputs, accepted)
    return _read_inputs(inputs, accepted, hints, options)


def _refuse_unknown(inputs: Sequence[FormPart], accepted: Accepted) -> None:
    for part in inputs:
        if not part.is_file and not _is_key(part, accepted):
            raise _unknown_field(part.name, accepted)


def _read_inputs(
    inputs: Sequence[FormPart], accepted: Accepted, hints: Hints, options: AnswerOptions
) -> RawInputs:
    """Return the inputs in the form of the model's kind of input."""
    if accepted.media:
        return _files(inputs, accepted, hints, options)
    if "rows" in accepted.kinds:
        return _rows(inputs, hints, options)
    if "tensors" in accepted.kinds:
        return _tensors(inputs, accepted, hints, options)
    if accepted.objects:
        return _object(inputs, accepted, hints, options)
    raise invalid_input("this model takes one file; the form has several")


def _is_key(part: FormPart, accepted: Accepted) -> bool:
    """Return whether a part is a field that the task reads by name."""
    return not part.is_file and field_name(part.name) in accepted.keys


def _is_parameter(part: FormPart, accepted: Accepted) -> bool:
    """Return whether a field is a request parameter.

    The task's own keys take precedence.
    """
    return (
        not part.is_file
        and part.name in parameters.NAMES
        and part.name not in accepted.keys
    )


def _with_parameters(
    parts: Sequence[FormPart], accepted: Accepted, payload: RawPayload
) -> tuple[Hints, AnswerOptions]:
    values: dict[str, Any] = dict(payload.hints.values)
    for part in parts:
        if not _is_parameter(part, accepted):
            continue
        if part.name in values:
            raise invalid_parameter(f"parameter {part.name} is given twice")
        values[part.name] = _text(part)
    return parameters.hints_and_options(values, "")


def _raw(part: FormPart, hints: Hints) -> RawInput:
    return RawInput(part.content, hints._replace(content_type=part.content_type))


def _files(
    parts: Sequence[FormPart], accepted: Accepted, hints: Hints, options: AnswerOptions
) -> RawInputs:
    """Return one input per file; fields may hold base64."""
    if len(parts) > MAX_INPUTS:
        raise invalid_input(
            f"the form has {len(parts)} files, the limit is {MAX_INPUTS}; send them in parts"
        )
    hold_encoded(sum(len(part.content) for part in parts if not part.is_file))
    inputs = []
    for part in parts:
        if part.is_file or not is_text(part.content):
            inputs.append(_raw(part, hints))
            continue
        content = decode_file(_text(part), f"the form field {part.name[:64]!r}")
        inputs.append(RawInput(memoryview(content), hints))
    return RawInputs(inputs, options, is_list=len(inputs) > 1)


def _rows(parts: Sequence[FormPart], hints: Hints, options: AnswerOptions) -> RawInputs:
    """Return fields by feature name as CSV.

    A repeated name begins the next row.
    """
    columns: dict[str, list[str]] = {}
    for part in parts:
        if part.is_file:
            raise invalid_input(
                "send a table as one file, or its features as fields of the form, "
                "not both"
            )
        columns.setdefault(field_name(part.name), []).append(_text(part))
    counts = {len(values) for values in columns.values()}
    if len(counts) > 1:
        raise invalid_input("the form has more values of some features than of others")
    body = memoryview(_csv(columns))
    return RawInputs([RawInput(body, hints)], options)


def _csv(columns: dict[str, list[str]]) -> bytes:
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return table.getvalue().encode("utf-8", "replace")


def _tensors(
    parts: Sequence[FormPart], accepted: Accepted, hints: Hints, options: AnswerOptions
) -> RawInputs:
    """Return the contents by the names of the model's inputs."""
    contents: dict[str, memoryview] = {}
    takes = ", ".join(map(repr, accepted.input_names))
    for part in parts:
        if part.name not in accepted.keys:
            raise invalid_input(
                f"unknown input {part.name[:64]!r} in the form; the model takes {takes}"
            )
        if part.name in contents:
            raise invalid_input(f"the form has the input {part.name!r:.80} twice")
        contents[part.name] = part.content
    return RawInputs([RawInput(memoryview(b""), hints, contents)], options)


def _object(
    parts: Sequence[FormPart], accepted: Accepted, hints: Hints, options: AnswerOptions
) -> RawInputs:
    """Return fields and text files as a JSON object for the task."""
    values: dict[str, list[Any]] = {}
    for part in parts:
        name = field_name(part.name)
        if name not in accepted.keys:
            if "texts" not in accepted.keys:
                raise _unknown_field(part.name, accepted)
            name = "texts"
        text = _text(part)
        entries = _items(text) if name in ITEM_KEYS else [text]
        values.setdefault(name, []).extend(entries)
    if len(values.get("text", ())) > 1 and len(values) == 1:
        values = {"texts": values["text"]}
    body = json.dumps(_single_values(values)).encode("ascii")
    json_hints = hints._replace(content_type=JSON)
    return RawInputs([RawInput(memoryview(body), json_hints)], options)


def _single_values(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return lists as they are, and the only value of every other key."""
    content: dict[str, Any] = {}
    for name, entries in values.items():
        if name in LISTS:
            content[name] = entries
            continue
        if len(entries) > 1:
            raise invalid_input(f"the form has the field {name!r} twice")
        content[name] = entries[0]
    return content


def _items(text: str) -> list[Any]:
    """Return a field's items: a number, a title, or a JSON list."""
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            values = json.loads(stripped)
        except (ValueError, RecursionError):
            values = text
        return values if isinstance(values, list) else [values]
    is_number = stripped.isascii() and stripped.isdigit() and len(stripped) < 20
    return [int(stripped) if is_number else text]


def _text(part: FormPart) -> str:
    try:
        return bytes(part.content).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid_input(f"the form field {part.name[:64]!r} is not UTF-8") from None


def _unknown_field(name: str, accepted: Accepted) -> ApiError:
    accepted_names = ", ".join(
        [*sorted(accepted.keys), *accepted.parameters][:MAX_INPUTS]
    )
    return invalid_input(
        f"unknown form field {name[:64]!r}; this model takes {accepted_names}"
    )
