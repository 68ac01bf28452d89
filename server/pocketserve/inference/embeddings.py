"""Check the embeddings that an engine computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pocketserve_wire import ApiError, ErrorCode


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
