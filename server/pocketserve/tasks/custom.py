"""A task of the model's owner: ``task.py`` beside the model. It is code, under the same rule as ``model.py``.

It defines one or both of

    def prepare(body: bytes, hints) -> dict        # input arrays by name; or Prepared, for context or several runs
    def answer(outputs: dict, options, context) -> list[dict]

and optionally ``labels``. What is left out works as in the task ``tensors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Arrays,
    Hints,
    Prepared,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tensors import Tensors
from pocketserve.tensors import Array, datatype_of
from pocketserve.trust.modules import modules_beside, run_file
from pocketserve_wire import ApiError, ErrorCode

FILE_NAME = "task.py"

MAX_BITS = 4096
"""Of an integer in an answer. Python refuses to write one of many more digits."""


def fits(facts: ModelFacts) -> bool:
    """Return whether there is such a file."""
    return facts.beside(FILE_NAME) is not None


def create(facts: ModelFacts) -> Custom:
    """Run the file and take its functions.

    Raises:
        ModelLoadError: it is missing, not to be trusted, fails or defines neither function.
    """
    path = facts.beside(FILE_NAME)
    if path is None:
        raise ModelLoadError(f"model.toml: task custom needs a file {FILE_NAME} beside the model")
    with modules_beside(path, facts.trusted):
        module = run_file(path, facts.trusted)
    functions = {name: getattr(module, name, None) for name in ("prepare", "answer")}
    if not any(callable(function) for function in functions.values()):
        raise ModelLoadError(f"{FILE_NAME} defines neither prepare(body, hints) nor answer(outputs, options, context)")
    labels = getattr(module, "labels", ())
    numbers = Tensors(facts.inputs, facts.manifest.state.feedback)
    known = [name for spec in facts.inputs for name in (spec.name, *spec.aliases)]
    return Custom(numbers, functions["prepare"], functions["answer"], labels, known)


class Custom:
    """Calls the owner's functions; a ValueError of theirs is the input's fault, anything else their own.

    Args:
        known: names of inputs that ``prepare`` may use.

    Attributes:
        source: see :class:`~pocketserve.tasks.base.OwnTensors`.
    """

    name = "custom"

    def __init__(
        self,
        plain: Tensors,
        prepare: Callable[..., Any] | None,
        answer: Callable[..., Any] | None,
        labels: Sequence[str],
        known: Sequence[str],
    ) -> None:
        self.labels = [str(label) for label in labels]
        self._known = known
        self._plain = plain
        self._prepare = prepare
        self._answer = answer
        self.source = f"prepare() in {FILE_NAME}" if prepare is not None else ""

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if self._prepare is None:
            return self._plain.prepare(body, hints)
        made = _call("prepare", self._prepare, bytes(body), hints)
        if not isinstance(made, Prepared):
            made = Prepared((made,))
        if not isinstance(made.runs, list | tuple) or not made.runs:
            raise _fault("prepare", "returned no runs: Prepared takes a list of dicts of arrays by input name")
        return Prepared(tuple(self._checked(run) for run in made.runs), made.context, made.chained)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """See :class:`~pocketserve.tasks.base.Task`. One run's outputs are given bare, several as a list."""
        if self._answer is None:
            return self._plain.answer(runs, options, context)
        given = dict(runs[0]) if len(runs) == 1 else [dict(run) for run in runs]
        entries = _call("answer", self._answer, given, options, context)
        if isinstance(entries, dict):
            entries = [entries]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise _fault("answer", "must return a list of dicts")
        try:
            return [{str(key): _plain_value(value) for key, value in entry.items()} for entry in entries]
        except RecursionError:
            raise _fault("answer", "returned values that nest too deeply, or hold themselves") from None

    def _checked(self, run: Any) -> dict[str, Array]:
        """One run's arrays, of names and kinds that can go to the model."""
        if not isinstance(run, dict):
            raise _fault("prepare", f"returned {type(run).__name__}, not a dict of arrays by input name")
        arrays = {}
        for key, value in run.items():
            name = str(key)
            if name not in self._known:
                takes = ", ".join(map(repr, self._known))
                raise _fault("prepare", f"returned an unknown input {name!r:.80}; the model takes {takes}")
            try:
                array = np.asarray(value)
                datatype_of(array.dtype)
            except (ValueError, TypeError) as error:  # a ragged list; complex numbers, dates
                raise _fault("prepare", f"returned no array for input {name!r}: {str(error)[:200]}") from None
            arrays[name] = array
        return arrays


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ApiError:
        raise
    except Exception as error:
        if name == "prepare" and isinstance(error, ValueError):
            raise invalid_input(f"{FILE_NAME} refused this input: {str(error)[:300]}") from error
        raise _fault(name, f"failed: {type(error).__name__}: {str(error)[:300]}") from error


def _fault(function: str, detail: str) -> ApiError:
    return ApiError(ErrorCode.INFERENCE_FAILED, f"{function}() in {FILE_NAME} {detail}")


def _plain_value(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON's.

    Raises:
        ApiError: INFERENCE_FAILED, JSON cannot hold it.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return value
    what = "an integer that is too large" if isinstance(value, int) else f"a {type(value).__name__}"
    raise _fault("answer", f"returned {what}, which JSON cannot hold")


TASK = TaskDefinition("custom", fits, create)
