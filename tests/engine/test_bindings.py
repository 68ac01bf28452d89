"""Resolve tensor names of manifests and requests to a model's tensors."""

from __future__ import annotations

from pocketserve.engine.bindings import bind_specs
from pocketserve.tensors import TensorSpec


def spec(name: str, *aliases: str, size: int = 1) -> TensorSpec:
    """Return the spec of a row of numbers."""
    return TensorSpec(name, "FP32", (-1, size), aliases=aliases)


def test_a_manifest_selects_a_tensor_by_its_exact_name() -> None:
    """An alias or position of another tensor does not win."""
    actual = [spec("a", "x", size=2), spec("x", size=3)]
    bound = bind_specs(actual, [spec("x", size=3)], "output")
    assert [(each.name, each.shape) for each in bound.specs] == [
        ("a", (-1, 2)),
        ("x", (-1, 3)),
    ]
    assert bound.by_name["x"][1] == "x"
    assert bound.by_name["a"][1] == "a"


def test_a_request_selects_a_tensor_by_its_exact_name() -> None:
    """It wins over a manifest's other name for it.

    Unambiguous aliases still work.
    """
    bound = bind_specs(
        [spec("a", "x", "y"), spec("x")], [spec("renamed"), spec("other")], "input"
    )
    assert {name: own for name, (_, own) in bound.by_name.items()} == {
        **{"a": "a", "renamed": "a", "y": "a"},
        **{"x": "x", "other": "x"},
    }
