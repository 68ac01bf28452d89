"""Check the embeddings that an engine returns."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.inference.embeddings import check_embeddings, embed_texts
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


def vector_of(text: str) -> Any:
    usage = {"prompt_tokens": len(text), "total_tokens": len(text)}
    return {"data": [{"embedding": [float(len(text))]}], "usage": usage}


def test_texts_are_embedded_in_order_and_tokens_are_added() -> None:
    answer = embed_texts(vector_of, ["a", "bcd", "ef"], Cancellation().check)
    assert [entry["embedding"] for entry in answer["data"]] == [
        [1.0],
        [3.0],
        [2.0],
    ]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_no_text_is_embedded_after_the_request_is_abandoned() -> None:
    cancellation = Cancellation()
    asked = []

    def ask(text: str) -> Any:
        asked.append(text)
        if len(asked) == 2:
            cancellation.cancel()
        return vector_of(text)

    with pytest.raises(ApiError) as caught:
        embed_texts(ask, ["a", "b", "c", "d"], cancellation.check)
    assert caught.value.code is ErrorCode.CANCELLED
    assert asked == ["a", "b"]
