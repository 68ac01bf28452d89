"""Find sizes that a result has fixed, without a framework."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pocketserve.tensors import Array, TensorSpec
from pocketserve_lab.convert.variants import (
    Axis,
    ResultShapes,
    VariantResult,
    VariantSearch,
    frozen_axes,
    other_sizes,
)
from pocketserve_wire import ApiError, ErrorCode

LENGTH = Axis("ids", 1)
MASK_LENGTH = Axis("mask", 1)


def answer(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Answer as a model whose ids and mask must have one shape, up to length 16."""
    if inputs["ids"].shape != inputs["mask"].shape or inputs["ids"].shape[1] > 16:
        raise ApiError(ErrorCode.INVALID_TENSOR, "shapes differ")
    return {"sum": (inputs["ids"] * inputs["mask"]).sum(axis=1)}


def test_the_original_decides_which_sizes_are_valid() -> None:
    """Axes that only fit together are changed together."""
    specs = [TensorSpec(name, "INT64", (-1, -1)) for name in ("ids", "mask")]
    sample = {"ids": np.arange(12).reshape(1, 12), "mask": np.ones((1, 12), int)}
    search = VariantSearch(specs, sample, takes_rows=True, answer=answer)
    shorter = {name: array[:, :5] for name, array in sample.items()}
    variants = list(search.find([shorter]))
    shapes = [variant.inputs["ids"].shape for variant in variants]
    assert shapes == [
        (1, 5),
        (2, 12),
        (4, 12),
        (1, 15),
        (1, 9),
        (4, 15),
    ]
    both = (LENGTH, MASK_LENGTH)
    assert [variants[0].axes, variants[3].axes] == [both, both]


def test_sizes_lie_on_both_sides() -> None:
    """A size of 1 has larger ones only."""
    assert list(other_sizes(20))[:4] == [25, 15, 40, 10]
    assert list(other_sizes(1))[:3] == [2, 8, 33]


def test_failures_are_attributed_to_their_axes() -> None:
    """A change of several axes is explained by one that fails alone."""
    rows = Axis("ids", 0)
    results = [
        VariantResult((LENGTH,), is_rejected=True),
        VariantResult((rows, LENGTH), is_rejected=True),
        VariantResult((MASK_LENGTH,), is_rejected=False, error=float("nan")),
        VariantResult((rows,), is_rejected=False, error=1e-6),
    ]
    frozen = frozen_axes(results, 1e-3)
    assert frozen.rejected == {LENGTH}
    assert frozen.wrong == {MASK_LENGTH}


def test_an_empty_axis_is_left_alone() -> None:
    """A decoder's first cache has the length 0, which can't be repeated."""
    specs = [TensorSpec("past", "FP32", (1, 2, -1, 4))]
    sample = {"past": np.zeros((1, 2, 0, 4), np.float32)}
    search = VariantSearch(
        specs, sample, takes_rows=False, answer=lambda inputs: {"y": inputs["past"]}
    )
    assert list(search.find([])) == []


def test_variants_are_made_one_at_a_time() -> None:
    """Large inputs would take the memory."""
    asked = []

    def count(inputs: Mapping[str, Array]) -> dict[str, Array]:
        asked.append(inputs["x"].shape)
        return {"y": inputs["x"]}

    specs = [TensorSpec("x", "FP32", (-1, -1))]
    sample = {"x": np.zeros((1, 4), np.float32)}
    search = VariantSearch(specs, sample, takes_rows=True, answer=count)
    next(search.find([]))
    assert asked == [(2, 4)]


def test_a_file_without_a_rank_gets_the_samples_rank() -> None:
    """TorchScript tells no shapes."""
    tensor = {"name": "x", "shape": [-1]}
    facts = {
        "inputs": [tensor],
        "sample_shapes": {"x": [1, 4]},
        "rows": {"x": True},
    }
    shapes = ResultShapes(facts, facts, {})
    assert shapes.fixed({Axis("x", 0)}) == {"x": (1, -1)}
    assert shapes.undeclared({Axis("x", 1)}) == {Axis("x", 1)}
