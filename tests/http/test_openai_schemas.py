"""Limits of JSON schemas that engines turn into grammars."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve.api.openai.schemas import MAX_DEPTH, check_schema
from pocketserve_wire import ApiError, ErrorCode


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^[a-z]{0,1000}$"},
        {"pattern": r"^(\+\d{1,3} )?(?:[0-9]{2,4}-){1,5}[0-9]+$"},
        {"pattern": r"^\(\{5000\}[(*+{9999}]{10}$"},
        {"pattern": "(a{30}b{30}){30}"},
        {"maxLength": 1000, "minItems": 3},
        {"properties": {"pattern": {"type": "string"}, "maxLength": {"maxItems": 2}}},
        nested(MAX_DEPTH),
    ],
)
def test_ordinary_schemas_are_accepted(schema: dict[str, Any]) -> None:
    check_schema("f", schema)


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"pattern": "^((((a{0,50}){0,50}){0,50}){0,50})$"}, "f.pattern"),
        ({"anyOf": [{"pattern": "(a{1,40}){1,40}"}]}, "f.anyOf[0].pattern"),
        ({"pattern": "(((a+)+)+)+"}, "multiply"),
        ({"pattern": "(?:a{500}){3,}"}, "multiply"),
        ({"pattern": "(a?){0,900}"}, "multiply"),
        ({"pattern": "a{40}{40}"}, "multiply"),
        ({"pattern": "a{%s}" % ("9" * 5000)}, "multiply"),
        ({"pattern": "(" * 17}, "nested groups"),
        ({"properties": {"x": {"maxLength": 1001}}}, "x.maxLength"),
        ({"minItems": 1e9}, "minItems"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
    ],
)
def test_schemas_with_large_grammars_are_rejected(
    schema: dict[str, Any], part: str
) -> None:
    with pytest.raises(ApiError) as caught:
        check_schema("f", schema)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert part in caught.value.message
