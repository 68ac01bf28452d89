"""Task parameters have the same meaning in a query, as text, and in JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pocketserve.tasks.parameters import NAMES, PARAMETERS, hints_and_options
from pocketserve_wire import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("top_k", "3", 3),
        ("top_k", 3.0, 3),
        ("threshold", "-0.5", -0.5),
        ("threshold", 1, 1.0),
        ("threshold", "-inf", -math.inf),
        ("language", "de", "de"),
        ("annotate", "png", "png"),
        ("annotate", "jpeg", "jpeg"),
        ("annotate", "both", "both"),
        ("rotation", "90", 90),
        ("iou", "0", 0.0),
    ],
)
def test_values_are_parsed(name: str, given: Any, value: Any) -> None:
    """A value gets the parameter's own type."""
    found = hints_and_options({name: given}, "")[0].values[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("top_k", "0"),
        ("top_k", "10001"),
        ("top_k", "1.5"),
        ("top_k", True),
        ("top_k", None),
        ("top_k", [1]),
        ("threshold", "nan"),
        ("threshold", math.nan),
        ("threshold", "high"),
        ("threshold", 10**400),
        ("language", 3),
        ("language", "x" * 257),
        ("annotate", "gif"),
        ("annotate", True),
        ("rotation", "45"),
        ("rotation", "inf"),
        ("rotation", "-inf"),
        ("width", "0"),
        ("width", str(2**40)),
        ("iou", "1.1"),
    ],
)
def test_invalid_values_are_rejected(name: str, given: Any) -> None:
    """The error names the expected values."""
    with pytest.raises(ApiError, match=f"parameter {name} must be") as caught:
        hints_and_options({name: given}, "")
    assert caught.value.code is ErrorCode.INVALID_PARAMETER


def test_parameters_reach_the_task() -> None:
    """Both directions of a task see all values.

    Names of the interface are left to it.
    """
    hints, options = hints_and_options(
        {
            "top_k": "2",
            "width": "7",
            "version": "x",
        },
        "image/png",
    )
    assert hints.content_type == "image/png"
    assert (
        hints.values
        == options.values
        == {
            "top_k": 2,
            "width": 7,
        }
    )
    assert options.top_k == 2
    assert options.threshold is None
    assert options.language is None


def test_the_table_of_parameters_is_complete() -> None:
    """Names are unique, and each parameter has a schema and a sentence."""
    assert len(set(NAMES)) == len(PARAMETERS)
    assert all(
        parameter.schema()["type"] == parameter.kind and parameter.text.endswith(".")
        for parameter in PARAMETERS
    )
