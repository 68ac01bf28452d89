"""The interface of a task: what its module exports as ``TASK``, and what that creates for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pocketserve.repository.toml_table import Section
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.tasks.model_facts import ModelFacts

Answer = list[dict[str, Any]]
Arrays = Mapping[str, Array]
Runs = Sequence[Arrays]
_NO_VALUES: Mapping[str, Any] = {}


class ExtendedAnswer(NamedTuple):
    """An answer with something besides its entries, such as a mask; it stands beside ``predictions``."""

    entries: Answer
    more: Mapping[str, Any]


class Hints(NamedTuple):
    """The caller's description of the raw input. The bytes themselves are believed first.

    Attributes:
        content_type: as sent, such as ``audio/wav``; often nothing or ``application/octet-stream``.
        values: the request's parameters of :mod:`pocketserve.tasks.parameters`, checked, by name.
    """

    content_type: str = ""
    values: Mapping[str, Any] = _NO_VALUES


class AnswerOptions(NamedTuple):
    """The caller's wishes for the answer.

    Attributes:
        top_k: entries at most; None leaves it to the task.
        threshold: lowest score that is answered; None leaves it to the model.
        language: of the labels, such as ``de`` or ``en-US``; None leaves it to the model.
        values: all of the request's parameters, as in :class:`Hints`.
    """

    top_k: int | None = None
    threshold: float | None = None
    language: str | None = None
    values: Mapping[str, Any] = _NO_VALUES


class Prepared(NamedTuple):
    """The model's input.

    Attributes:
        runs: the input arrays of each run, such as a window of a recording, by the names that callers see.
        context: what :meth:`Task.answer` needs to know of the input, such as a picture's size.
        chained: the runs are steps of one sequence: a stateful model keeps its state from one to the next.
    """

    runs: Runs
    context: Any = None
    chained: bool = False


NO_HINTS = Hints()


class Task(Protocol):
    """Turns one raw input into a model's input arrays and its output arrays into an answer.

    Both directions are pure functions; they are called from many threads.

    Attributes:
        name: as in a manifest's ``task``.
    """

    name: str

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return the input arrays.

        Raises:
            ApiError: INVALID_INPUT with one sentence that says what is wrong with the input; INVALID_PARAMETER.
        """
        ...

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer | ExtendedAnswer:
        """Return the labelled answer to the outputs of each run, best first where there is an order.

        The outputs are real numbers where the input was real.
        """
        ...


@runtime_checkable
class Annotator(Protocol):
    """A task that can draw its answer: ``?annotate=png``."""

    def annotate(self, body: memoryview, hints: Hints, runs: Runs, answer: Answer, context: Any) -> bytes:
        """Return the input with the answer drawn on it, as a PNG file; INVALID_INPUT if it is nothing to draw on."""
        ...


@runtime_checkable
class Describer(Protocol):
    """A task that describes itself for model cards."""

    def describe(self) -> Mapping[str, str]:
        """Return facts by name: ``input``, ``preprocessing``, ``answer``, each one sentence."""
        ...


class TaskDefinition(NamedTuple):
    """All about a task that others need to know.

    Attributes:
        name: as in a manifest's ``task``: the module's name, with dashes.
        fits: tells whether a model without ``task`` in its manifest certainly has this task; None for never.
        create: sets the task up for a model; ``ModelLoadError`` where its tensors or manifest do not fit.
        sections: tables of the manifest that the task reads. Others may read them as well.
        takes_pictures: the raw input is a picture.
    """

    name: str
    fits: Callable[[ModelFacts], bool] | None
    create: Callable[[ModelFacts], Task]
    sections: tuple[Section, ...] = ()
    takes_pictures: bool = False


def invalid_input(message: str) -> ApiError:
    """Return an error about the raw input."""
    return ApiError(ErrorCode.INVALID_INPUT, message)


def invalid_parameter(message: str) -> ApiError:
    """Return an error about a request parameter."""
    return ApiError(ErrorCode.INVALID_PARAMETER, message)
