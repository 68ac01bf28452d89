"""Checks of the embeddings that an engine computes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pocketserve.inference.embeddings import check_embeddings
from pocketserve_wire import ApiError, ErrorCode


def test_finite_vectors_pass() -> None:
    answer = {"data": [{"embedding": [0.5, -1]}], "usage": {"prompt_tokens": 3}}
    assert check_embeddings(answer) == answer


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"data": [{}]},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": [1.0, None]}]},
        {"data": [{"embedding": [1.0, math.nan]}]},
        {"data": [{"embedding": [math.inf]}]},
        {"data": [{"embedding": ["1"]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": [math.nan]}]},
    ],
)
def test_other_vectors_are_an_error(answer: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_embeddings(answer)
    assert caught.value.code is ErrorCode.INFERENCE_FAILED
