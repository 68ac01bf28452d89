"""Check keys of foreign configuration files against their tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pocketserve.tasks.foreign.keys import (
    MAX_KEYS,
    UNCHECKED,
    Effect,
    ForeignFile,
    Key,
    check_keys,
)
from pocketserve.tasks.foreign.tables import TABLES

TABLE = ForeignFile(
    "settings.json",
    (
        Key("mean", Effect.APPLIED, "example"),
        Key("author", Effect.HARMLESS, "example"),
        Key("flip", Effect.UNSUPPORTED, "example", neutral=("never",)),
        Key("rate", Effect.UNSUPPORTED, "example", tasks=("audio-classification",)),
        Key("size.edge", Effect.APPLIED, "example"),
        Key("size.*", Effect.UNSUPPORTED, "example"),
    ),
)


def test_applied_and_harmless_keys_are_accepted() -> None:
    findings = check_keys(
        TABLE,
        {
            "mean": [0.5],
            "author": "me",
            "size": {"edge": 3},
        },
    )

    assert findings == ((), ())


def test_an_unsupported_key_is_named_with_its_value() -> None:
    findings = check_keys(TABLE, {"flip": "always", "size": {"longest": 8}})

    assert [str(key) for key in findings.unsupported] == [
        "flip = 'always'",
        "size.longest = 8",
    ]


@pytest.mark.parametrize("value", [None, False, "never"])
def test_values_without_effect_are_accepted(value: object) -> None:
    assert check_keys(TABLE, {"flip": value}).unsupported == ()


def test_ignored_keys_do_not_hide_others() -> None:
    content: dict[str, Any] = {f"key{number}": True for number in range(30)}
    table = ForeignFile("x.json", (Key("*", Effect.UNSUPPORTED, "example"),))
    ignored = [f"key{number}" for number in range(29)]

    findings = check_keys(table, content, ignored=ignored)

    assert [key.path for key in findings.unsupported] == ["key29"]


def test_zero_is_not_mistaken_for_false() -> None:
    assert check_keys(TABLE, {"flip": 0}).unsupported != ()


def test_a_key_applies_only_to_its_tasks() -> None:
    content = {"rate": 16000}

    assert check_keys(TABLE, content, "text-classification").unsupported == ()
    assert check_keys(TABLE, content, "audio-classification").unsupported != ()


def test_unknown_keys_are_sorted_and_bounded() -> None:
    content: dict[str, Any] = {f"key{number:03}": 1 for number in reversed(range(100))}
    findings = check_keys(TABLE, content)

    assert findings.unsupported == ()
    assert len(findings.unknown) == 20
    assert findings.unknown[0] == "key000"


@pytest.mark.parametrize("reports_unknown", [True, False])
def test_only_the_first_keys_of_a_huge_file_are_checked(reports_unknown: bool) -> None:
    table = dataclasses.replace(TABLE, reports_unknown=reports_unknown)
    content: dict[str, Any] = {"flip": "always"}
    content.update({f"key{number}": 1 for number in range(MAX_KEYS - 1)})

    assert UNCHECKED not in check_keys(table, content).unknown

    content["size"] = {"longest": 8}
    findings = check_keys(table, content)

    assert [key.path for key in findings.unsupported] == ["flip"]
    assert findings.unknown[-1] == UNCHECKED


def test_patterns_and_exact_paths_of_nested_keys() -> None:
    keys = (
        Key("parts.first.kind", Effect.HARMLESS, "example"),
        Key("parts.*.kind", Effect.UNSUPPORTED, "example"),
    )
    table = ForeignFile("parts.json", keys)
    content = {
        "parts": {"first": {"kind": 1}, "second": {"kind": 2, "name": 3}, "third": 4},
        "other": {"kind": 5},
    }

    findings = check_keys(table, content)

    assert [str(key) for key in findings.unsupported] == ["parts.second.kind = 2"]
    assert findings.unknown == ("other", "parts.second.name", "parts.third")


def test_a_long_value_is_shortened() -> None:
    (key,) = check_keys(TABLE, {"flip": "x" * 1000}).unsupported

    assert len(str(key)) < 60


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_row_has_one_path_and_a_source(table: ForeignFile) -> None:
    paths = [row.path for row in table.keys]

    assert len(set(paths)) == len(paths)
    assert all(row.source for row in table.keys)
