"""Functions that a model may call: check them, and force a call where one is required.

Engines let a model write any text before a required call, so that it may never come. A
forced call is an answer by a JSON schema instead, which is sent as a call.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pocketserve.api.openai.fields import (
    MAX_TOOLS,
    bad_field,
    check_small_object,
    check_text,
)
from pocketserve.api.openai.schemas import check_schema

AUTO: Final = "auto"
NONE: Final = "none"
REQUIRED: Final = "required"
_MODES: Final = (NONE, AUTO, REQUIRED)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ID_BYTES: Final = 12
_NO_ARGUMENTS: Final = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


def check_tools(field: str, value: Any) -> list[Any]:
    """Check the functions that an answer may call."""
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise bad_field(field, f"must be a list of up to {MAX_TOOLS} tools")
    names = set()
    for number, tool in enumerate(value):
        place = f"{field}[{number}]"
        name = _check_tool(place, tool)
        if name in names:
            raise bad_field(f"{place}.function.name", "is a second tool of this name")
        names.add(name)
    return value


def _check_tool(place: str, tool: Any) -> str:
    check_small_object(place, tool)
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise bad_field(place, "must be a function")
    name = check_text(f"{place}.function.name", function.get("name"))
    if not _NAME.fullmatch(name):
        detail = "must have 1 to 64 letters, digits, - and _"
        raise bad_field(f"{place}.function.name", detail)
    if function.get("parameters") is not None:
        check_small_object(f"{place}.function.parameters", function["parameters"])
    check_schema(f"{place}.function", function)
    return name


def check_choice(field: str, value: Any) -> Any:
    """Check ``tool_choice``: a mode, a function, or a mode for some functions."""
    if value in _MODES:
        return value
    content = check_small_object(field, value)
    kind = content.get("type")
    if kind == "function":
        _function_name(field, content)
    elif kind == "allowed_tools":
        _check_allowed(f"{field}.allowed_tools", content.get("allowed_tools"))
    else:
        detail = "must be none, auto, required, a function or allowed_tools"
        raise bad_field(field, detail)
    return content


def _check_allowed(field: str, value: Any) -> None:
    content = check_small_object(field, value)
    if content.get("mode") not in (AUTO, REQUIRED):
        raise bad_field(f"{field}.mode", "must be auto or required")
    tools = content.get("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise bad_field(f"{field}.tools", f"must be a list of 1 to {MAX_TOOLS} tools")
    for number, tool in enumerate(tools):
        place = f"{field}.tools[{number}]"
        _function_name(place, check_small_object(place, tool))


def _function_name(field: str, content: Mapping[str, Any]) -> str:
    function = content.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return check_text(f"{field}.function.name", name)


def apply_choice(fields: dict[str, Any]) -> bool:
    """Turn ``tools`` and ``tool_choice`` into fields that engines obey.

    Returns:
        Whether the answer must be a call, which :class:`ForcedCall` reads.

    Raises:
        ApiError: INVALID_REQUEST, with the field.
    """
    tools = fields.get("tools")
    choice = fields.pop("tool_choice", AUTO)
    if not tools:
        _refuse_without_tools(fields, choice)
        fields.pop("tools", None)
        return False
    if fields.get("logprobs") and choice != NONE:
        raise bad_field("logprobs", "can't be combined with tools")
    mode, tools = _selected(tools, choice)
    if mode == NONE:
        del fields["tools"]
        fields.pop("parallel_tool_calls", None)
        return False
    fields["tools"] = tools
    if mode == AUTO:
        return False
    schema = {"schema": _schema_of_calls(tools)}
    fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    fields["tool_choice"] = NONE
    return True


def _refuse_without_tools(fields: Mapping[str, Any], choice: Any) -> None:
    if choice not in (AUTO, NONE):
        raise bad_field("tool_choice", "needs tools")
    if "parallel_tool_calls" in fields:
        raise bad_field("parallel_tool_calls", "needs tools")


def _selected(tools: list[Any], choice: Any) -> tuple[str, list[Any]]:
    """Return the mode, and the tools that may be called."""
    if isinstance(choice, str):
        return choice, tools
    if choice["type"] == "function":
        mode, entries = REQUIRED, [choice]
    else:
        mode = choice["allowed_tools"]["mode"]
        entries = choice["allowed_tools"]["tools"]
    by_name = {tool["function"]["name"]: tool for tool in tools}
    selected = []
    for entry in entries:
        name = entry["function"]["name"]
        if name not in by_name:
            raise bad_field("tool_choice", f"names {name!r:.70}, which tools lacks")
        selected.append(by_name[name])
    return mode, selected


def _schema_of_calls(tools: list[Any]) -> dict[str, Any]:
    """Return the JSON schema of a call of one of the tools."""
    if len(tools) == 1:
        return _schema_of_call(tools[0], "#")
    schemas = []
    for number, tool in enumerate(tools):
        schemas.append(_schema_of_call(tool, f"#/anyOf/{number}"))
    return {"anyOf": schemas}


def _schema_of_call(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    function = tool["function"]
    parameters = function.get("parameters") or _NO_ARGUMENTS
    arguments = _moved(parameters, f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references fit its new place in a larger one."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            copy[key] = place + value[1:]
        else:
            copy[key] = _moved(value, place)
    return copy


class ForcedCall:
    """Turns the text of a forced call into a call."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def translate(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an event without text; the last one has the call.

        If the answer was cut before its end, the last one has all text instead.
        """
        choices = []
        for choice in event.get("choices", ()):
            delta = dict(choice.get("delta") or {})
            self._texts.append(delta.pop("content", None) or "")
            choices.append({**choice, "delta": delta})
            reason = choice.get("finish_reason")
            call = self._call() if reason == "stop" else None
            if call is not None:
                delta["tool_calls"] = [call]
                choices[-1]["finish_reason"] = "tool_calls"
            elif reason is not None:
                delta["content"] = "".join(self._texts)
        return {**event, "choices": choices}

    def _call(self) -> dict[str, Any] | None:
        """Return the call; None if one of the request's stop texts cut it."""
        try:
            content = json.loads("".join(self._texts))
        except ValueError:
            return None
        if not isinstance(content, dict) or not {"name", "arguments"} <= content.keys():
            return None
        arguments = json.dumps(content["arguments"], ensure_ascii=False)
        return {
            "index": 0,
            "id": f"call_{os.urandom(_ID_BYTES).hex()}",
            "type": "function",
            "function": {"name": content["name"], "arguments": arguments},
        }
