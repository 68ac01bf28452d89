"""Which of a model's tensors a name means."""

from __future__ import annotations

from pocketserve.engine.bindings import bind_specs
from pocketserve.tensors import TensorSpec


def spec(name: str, *aliases: str, size: int = 1) -> TensorSpec:
    """Return a row of numbers."""
    return TensorSpec(name, "FP32", (-1, size), aliases=aliases)


def test_a_manifest_means_the_tensor_of_that_name() -> None:
    """An alias of a tensor before it is not taken, nor its place."""
    actual = [spec("a", "x", size=2), spec("x", size=3)]
    bound = bind_specs(actual, [spec("x", size=3)], "output")
    assert [(each.name, each.shape) for each in bound.specs] == [
        ("a", (-1, 2)),
        ("x", (-1, 3)),
    ]
    assert bound.by_name["x"][1] == "x" and bound.by_name["a"][1] == "a"


def test_a_caller_means_the_tensor_of_that_name() -> None:
    """Also where a manifest calls it otherwise; an alias that is nobody's name means what it did."""
    bound = bind_specs(
        [spec("a", "x", "y"), spec("x")], [spec("renamed"), spec("other")], "input"
    )
    assert {name: own for name, (_, own) in bound.by_name.items()} == {
        **{"a": "a", "renamed": "a", "y": "a"},
        **{"x": "x", "other": "x"},
    }
