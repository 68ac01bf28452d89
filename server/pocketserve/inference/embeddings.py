"""Have an engine embed texts, one at a time, and check its vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pocketserve_wire import ApiError, ErrorCode


def embed_texts(
    ask: Callable[[str], Any], texts: Sequence[str], check: Callable[[], None]
) -> dict[str, Any]:
    """Return the vectors of texts in the engine's form.

    An engine computes all texts of a request to their end, so it gets one at a time.

    Args:
        ask: has the engine embed one text.
        check: called before each text; raises to give up.

    Raises:
        ApiError: INFERENCE_FAILED for vectors that aren't finite numbers.
    """
    data: list[Any] = []
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    for text in texts:
        check()
        answer = check_embeddings(ask(text))
        data.extend(answer["data"])
        counts = answer.get("usage") or {}
        for name in usage:
            usage[name] += counts.get(name, 0)
    return {"data": data, "usage": usage}


def check_embeddings(answer: Any) -> Mapping[str, Any]:
    """Return the engine's answer if its vectors are finite numbers.

    Raises:
        ApiError: INFERENCE_FAILED.
    """
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise _bad_vectors()
    for entry in entries:
        vector = entry.get("embedding") if isinstance(entry, dict) else None
        if not isinstance(vector, list) or not vector:
            raise _bad_vectors()
        if not all(_is_finite(number) for number in vector):
            raise _bad_vectors()
    return dict(answer)


def _is_finite(number: Any) -> bool:
    return isinstance(number, int | float) and math.isfinite(number)


def _bad_vectors() -> ApiError:
    return ApiError(
        ErrorCode.INFERENCE_FAILED,
        "the model computed embeddings that are not finite numbers; its file is"
        " damaged or unsuitable, so add another model",
    )
