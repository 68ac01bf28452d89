"""Check requests in OpenAI's form: known fields, their types and ranges.

The engine takes nearly everything and works on it, so that it is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.api.openai.schemas import check_schema
from pocketserve_wire import ApiError, ErrorCode, strict_json
from pocketserve_wire.strict_json import json_type

MAX_MESSAGES: Final = 1024
MAX_PARTS: Final = 64
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_TOOLS: Final = 128
MAX_BIASES: Final = 1024
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_INPUTS: Final = 256
MAX_INPUT_CHARACTERS: Final = 1_000_000
MAX_SEED: Final = 2**32 - 2
"""The engine draws a random seed for the next number."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
ROLES: Final = ("system", "developer", "user", "assistant", "tool")

FieldCheck = Callable[[str, Any], Any]
"""Returns the value for the engine, from a field's name and value. Raises ApiError."""


def bad_field(field: str, detail: str) -> ApiError:
    """Return an error about a field."""
    return ApiError(ErrorCode.INVALID_REQUEST, f"{field!r} {detail}", field=field)


@dataclass(frozen=True)
class NumberField:
    """A number within limits."""

    low: float
    high: float
    whole: bool = False

    def __call__(self, field: str, value: Any) -> Any:
        is_number = type(value) is int or (type(value) is float and not self.whole)
        if not is_number or not self.low <= value <= self.high:
            kind = "a whole number" if self.whole else "a number"
            raise bad_field(field, f"must be {kind} from {self.low:g} to {self.high:g}")
        return value


def check_flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_field(field, "must be true or false")
    return value


def check_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad_field(field, f"must be a text, not {json_type(value)}")
    return value


def check_single(field: str, value: Any) -> int:
    """Refuse more than one answer to a request."""
    if value != 1 or isinstance(value, bool):
        raise bad_field(field, "must be 1: send several requests for several answers")
    return 1


def check_small_object(field: str, value: Any) -> dict[str, Any]:
    """Check an object that goes to the engine as it is."""
    if not isinstance(value, dict):
        raise bad_field(field, f"must be an object, not {json_type(value)}")
    if len(strict_json.dumps(value)) > MAX_SCHEMA_BYTES:
        raise bad_field(field, f"has more than {MAX_SCHEMA_BYTES} bytes")
    return value


def check_stop(field: str, value: Any) -> list[str]:
    """Return the texts that end an answer."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise bad_field(field, f"must be a text, or a list of up to {MAX_STOPS} texts")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise bad_field(
                field, f"must have texts of 1 to {MAX_STOP_CHARACTERS} characters"
            )
    return stops


def check_bias(field: str, value: Any) -> dict[str, Any]:
    """Check numbers that are added to tokens' scores."""
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise bad_field(field, f"must be an object of up to {MAX_BIASES} tokens")
    number = NumberField(-100, 100)
    for token, bias in value.items():
        if not token.isdecimal() or len(token) > 9:
            raise bad_field(field, "must have token numbers as keys")
        number(f"{field}.{token}", bias)
    return value


def check_format(field: str, value: Any) -> dict[str, Any]:
    """Check ``response_format``."""
    content = check_small_object(field, value)
    kind = content.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise bad_field(f"{field}.type", "must be text, json_object or json_schema")
    form, place = content, field
    if kind == "json_schema":
        place = f"{field}.json_schema"
        form = check_small_object(place, content.get("json_schema"))
    if form.get("schema") is not None:
        check_small_object(f"{place}.schema", form["schema"])
    check_schema(field, content)
    return content


def check_stream_options(field: str, value: Any) -> dict[str, Any]:
    content = check_small_object(field, value)
    for key, item in content.items():
        if key not in ("include_usage", "include_obfuscation"):
            raise bad_field(f"{field}.{key}", "is unknown; known is include_usage")
        check_flag(f"{field}.{key}", item)
    return content


def check_messages(field: str, value: Any) -> list[dict[str, Any]]:
    """Return a chat's messages, each with a text."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise bad_field(field, f"must be a list of 1 to {MAX_MESSAGES} messages")
    messages = []
    for number, message in enumerate(value):
        messages.append(_message(f"{field}[{number}]", message))
    if [message["role"] for message in messages[-2:]] == ["assistant"] * 2:
        raise bad_field(field, "must not end with two messages of the assistant")
    return messages


def _message(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(field, f"must be an object, not {json_type(value)}")
    role = value.get("role")
    if role not in ROLES:
        raise bad_field(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = value.get("tool_calls")
    content = value.get("content")
    if content is not None or calls is None:
        message["content"] = _content(f"{field}.content", content)
    if calls is not None:
        message["tool_calls"] = _tool_calls(f"{field}.tool_calls", calls)
    for key in ("name", "tool_call_id", "reasoning_content"):
        if value.get(key) is not None:
            message[key] = check_text(f"{field}.{key}", value[key])
    return message


def _content(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PARTS:
        raise bad_field(field, f"must be a text, or a list of 1 to {MAX_PARTS} parts")
    texts = []
    for number, part in enumerate(value):
        name = f"{field}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "file"):
            text = "is a file; language models take only text"
            raise ApiError(ErrorCode.INVALID_INPUT, f"{name!r} {text}", field=name)
        if kind not in ("text", "refusal"):
            raise bad_field(name, 'must be {"type": "text", "text": "..."}')
        texts.append(check_text(f"{name}.text", part.get(kind)))
    return "".join(texts)


def _tool_calls(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise bad_field(field, f"must be a list of up to {MAX_TOOLS} calls")
    for number, call in enumerate(value):
        name = f"{field}[{number}]"
        function = check_small_object(name, call).get("function")
        if call.get("type", "function") != "function" or not isinstance(function, dict):
            raise bad_field(name, "must be a call of a function")
        check_text(f"{name}.function.name", function.get("name"))
        check_text(f"{name}.function.arguments", function.get("arguments"))
    return value


def check_prompt(field: str, value: Any) -> str:
    """Return a prompt that is completed as it is."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise bad_field(field, "must be one text; send several requests for several")
    text = check_text(field, value)
    if not text:
        raise bad_field(field, "is empty")
    return text


def check_inputs(field: str, value: Any) -> list[str]:
    """Return texts to be embedded."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_INPUTS:
        raise bad_field(field, f"must be a text, or a list of 1 to {MAX_INPUTS} texts")
    for text in texts:
        if type(text) is int or isinstance(text, list):
            raise bad_field(field, "must be texts; lists of tokens are not supported")
        if not check_text(field, text):
            raise bad_field(field, "has an empty text")
    characters = sum(map(len, texts))
    if characters > MAX_INPUT_CHARACTERS:
        limit = f"must have at most {MAX_INPUT_CHARACTERS} characters in all"
        raise bad_field(field, f"{limit}; it has {characters}")
    return texts


def check_encoding(field: str, value: Any) -> str:
    if value not in ("float", "base64"):
        raise bad_field(field, "must be float or base64")
    return str(value)


def check_modalities(field: str, value: Any) -> None:
    if value != ["text"]:
        raise bad_field(field, 'must be ["text"]')


def check_effort(field: str, value: Any) -> str:
    if value not in EFFORTS:
        raise bad_field(field, f"must be one of {', '.join(EFFORTS)}")
    return str(value)


def check_no_echo(field: str, value: Any) -> None:
    if check_flag(field, value):
        raise bad_field(field, "must be false: the answer has only the new text")


def read_fields(
    content: Mapping[str, Any],
    checks: Mapping[str, FieldCheck],
    required: tuple[str, ...],
) -> dict[str, Any]:
    """Check a request and return its fields without those that are null.

    Raises:
        ApiError: INVALID_REQUEST, with the name of the field.
    """
    fields = {}
    for name, value in content.items():
        if value is None:
            continue
        check = checks.get(name)
        if check is None:
            raise _unknown(name, checks)
        fields[name] = check(name, value)
    for name in required:
        if name not in fields:
            raise bad_field(name, "is missing")
    return fields


def _unknown(name: str, checks: Mapping[str, FieldCheck]) -> ApiError:
    text = f"unknown field {name!r:.80}; known are {', '.join(sorted(checks))}"
    return ApiError(ErrorCode.INVALID_REQUEST, text, field=name[:80])
