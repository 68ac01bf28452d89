"""What a task is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

Answer = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What a caller wants of the answer: at most ``top_k`` entries, none with a score below ``threshold``."""

    top_k: int = 5
    threshold: float = float("-inf")


class Task(Protocol):
    """Turns one raw input into a model's input arrays and its output arrays into an answer.

    Both directions are pure functions; they are called from many threads.

    Attributes:
        name: as in a manifest's ``task``.
    """

    name: str

    def prepare(self, body: memoryview) -> dict[str, Array]:
        """Input arrays by the name that callers see.

        Raises:
            ApiError: INVALID_INPUT with one sentence that says what is wrong with the input.
        """
        ...

    def answer(self, outputs: Mapping[str, Array], options: AnswerOptions) -> Answer:
        """The labelled answer to the model's outputs, best first where there is an order."""
        ...


def invalid_input(message: str) -> ApiError:
    """An error about the raw input."""
    return ApiError(ErrorCode.INVALID_INPUT, message)
