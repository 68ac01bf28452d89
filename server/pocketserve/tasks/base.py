"""Define the interface of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pocketserve.repository.toml_table import Section
from pocketserve.tasks.entries import TaskCall
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.tasks.model_facts import ModelFacts

Answer = list[dict[str, Any]]
Arrays = Mapping[str, Array]
Runs = Sequence[Arrays]
_NO_VALUES: Mapping[str, Any] = {}


class ExtendedAnswer(NamedTuple):
    """An answer with more than entries, such as a mask, beside ``predictions``."""

    entries: Answer
    more: Mapping[str, Any]


class Hints(NamedTuple):
    """The client's description of the raw input.

    The bytes take precedence.
    """

    content_type: str = ""  # as sent, such as ``audio/wav``; often nothing or ``application/octet-stream``
    values: Mapping[str, Any] = (
        _NO_VALUES  # the request's parameters, checked, by name; see tasks/parameters.py
    )


class AnswerOptions(NamedTuple):
    """The client's options for the answer."""

    top_k: int | None = None  # entries at most; None leaves it to the task
    threshold: float | None = (
        None  # lowest score that is answered; None leaves it to the model
    )
    language: str | None = (
        None  # of the labels, such as ``de`` or ``en-US``; None leaves it to the model
    )
    values: Mapping[str, Any] = (
        _NO_VALUES  # all of the request's parameters, as in ``Hints``
    )


class Prepared(NamedTuple):
    """The model's input."""

    runs: Runs  # input arrays of each run, such as a window of a recording, by the names that callers see
    context: Any = None  # facts of the input for ``Task.answer``, such as its size
    chained: bool = False  # the runs are steps of one sequence: a stateful model keeps its state from one to the next


NO_HINTS = Hints()


class Task(Protocol):
    """Convert raw input to arrays, and outputs to answers.

    Both directions are pure functions, called from many threads.
    """

    name: str  # as in a manifest's ``task``

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return the input arrays.

        Raises:
            ApiError: INVALID_INPUT, with one sentence about the fault; INVALID_PARAMETER.
        """
        ...

    def answer(
        self, runs: Runs, options: AnswerOptions, context: Any = None
    ) -> Answer | ExtendedAnswer:
        """Return the labelled answer to each run's outputs, best first if ordered.

        The outputs are reals if the input was.
        """
        ...


@runtime_checkable
class Annotator(Protocol):
    """A task that can draw its answer: ``?annotate=png`` or ``jpeg``."""

    def annotate(
        self, body: memoryview, hints: Hints, runs: Runs, answer: Answer, context: Any
    ) -> bytes:
        """Draw the answer on the input.

        Return a JPEG file if ``hints`` ask for one, else PNG.

        Raises:
            ApiError: INVALID_INPUT if the input can't be drawn on.
        """
        ...


@runtime_checkable
class TensorForm(Protocol):
    """A task that takes the model's inputs as fields of a form."""

    def prepare_tensors(self, contents: Mapping[str, memoryview]) -> Prepared:
        """Return the input arrays of JSON or ``.npy`` contents by input name.

        Raises:
            ApiError: as :meth:`Task.prepare`.
        """
        ...


@runtime_checkable
class Describer(Protocol):
    """A task that describes itself for model cards."""

    def describe(self) -> Mapping[str, str]:
        """Return facts by name: ``input``, ``preprocessing``, ``answer``, each one sentence."""
        ...


class TaskDefinition(NamedTuple):
    """All about a task that others need to know."""

    name: str  # as in a manifest's ``task``: the module's name, with dashes
    # Whether a model without ``task`` certainly has this task; None for never.
    fits: Callable[[ModelFacts], bool] | None
    # Raises ``ModelLoadError`` if tensors or manifest don't fit.
    create: Callable[[ModelFacts], Task]
    # Tables of the manifest that the task reads; other tasks may read them, too.
    sections: tuple[Section, ...] = ()
    takes_pictures: bool = False  # the raw input is a picture
    # Calls of generated classes; empty if only the model's author knows the answer.
    calls: tuple[TaskCall, ...] = ()


class AdvisedError(ApiError):
    """An INVALID_INPUT that ends in advice on the model's settings.

    Attributes:
        fault: the sentence without the advice, for when something else must be done first.
    """

    def __init__(self, fault: str, advice: str) -> None:
        super().__init__(ErrorCode.INVALID_INPUT, f"{fault}; {advice}")
        self.fault = fault


def invalid_input(message: str) -> ApiError:
    """Return an error about the raw input."""
    return ApiError(ErrorCode.INVALID_INPUT, message)


def invalid_parameter(message: str, field: str | None = None) -> ApiError:
    """Return an error about a request parameter."""
    return ApiError(ErrorCode.INVALID_PARAMETER, message, field=field)
