"""The tensors of a graph model, from the signature in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.tfjs.files import ModelFiles
from pocketserve.runtimes.tfjs.specs import output_specs

DESCRIPTION = {"nodes": ["y"], "outputs": [{"name": "y"}]}


def outputs_of(shape: Any) -> Any:
    info = {
        "name": "y:0",
        "dtype": "DT_FLOAT",
        "tensorShape": shape,
    }
    signature = {"outputs": {"y": info}}
    files = ModelFiles(
        Path("model.json"),
        "m",
        (),
        True,
        signature,
        0,
        False,
    )
    (spec,) = output_specs(DESCRIPTION, files)
    return spec


def test_sizes_are_texts_or_numbers_and_may_be_free() -> None:
    shape = {"dim": [{"size": "-1"}, {"size": 3}, {}]}
    assert outputs_of(shape).shape == (-1, 3, -1)
    assert outputs_of({}).shape == ()
    assert outputs_of({"unknownRank": True}).open


@pytest.mark.parametrize(
    "dim",
    [
        5,
        [5],
        [{"size": "x"}],
        [{"size": None}],
        [{"size": []}],
        [{"size": 1e400}],
    ],
)
def test_a_damaged_shape_is_refused_with_a_sentence(dim: Any) -> None:
    with pytest.raises(ModelLoadError, match="a signature's shape is damaged"):
        outputs_of({"dim": dim})
