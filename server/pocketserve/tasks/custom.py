"""Run the owner's task, ``task.py`` beside the model.

It is code, under the same rule as ``model.py``. It defines one or both of

    def prepare(body: bytes, hints) -> dict
    def answer(outputs: dict, options, context) -> list[dict]

and optionally ``labels``. ``prepare`` returns input arrays by name, or ``Prepared`` for
a context or several runs. Missing parts work as in the task ``tensors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tensors import Tensors
from pocketserve.tensors import Array, datatype_of
from pocketserve.trust.modules import modules_beside, run_file
from pocketserve_wire import ApiError, ErrorCode

FILE_NAME = "task.py"

MAX_BITS = 4096
"""Limit of an integer in an answer; Python refuses to write much longer ones."""


def fits(facts: ModelFacts) -> bool:
    """Return whether there is such a file."""
    return facts.beside(FILE_NAME) is not None


class Custom:
    """Call the functions of the trusted file.

    A ValueError of theirs is the input's fault, any other exception their own.

    Attributes:
        source: the function that made the input arrays, for errors; empty if the client did.
    """

    name = "custom"

    def __init__(self, facts: ModelFacts) -> None:
        path = facts.beside(FILE_NAME)
        if path is None:
            raise ModelLoadError(
                f"model.toml: task custom needs a file {FILE_NAME} beside the model"
            )
        with modules_beside(path, facts.trusted):
            module = run_file(path, facts.trusted)
        self._prepare = getattr(module, "prepare", None)
        self._answer = getattr(module, "answer", None)
        if not callable(self._prepare) and not callable(self._answer):
            raise ModelLoadError(
                f"{FILE_NAME} defines neither prepare(body, hints) nor "
                "answer(outputs, options, context)"
            )
        self.labels = [str(label) for label in getattr(module, "labels", ())]
        self.source = ""
        if self._prepare is not None:
            self.source = f"prepare() in {FILE_NAME}"
        self._plain = Tensors(facts.inputs, facts.filled_inputs)
        self._inputs: list[str] = []
        for spec in facts.inputs:
            self._inputs += [spec.name, *spec.aliases]

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        if self._prepare is None:
            return self._plain.prepare(body, hints)
        prepared = _call("prepare", self._prepare, bytes(body), hints)
        if not isinstance(prepared, Prepared):
            prepared = Prepared((prepared,))
        if not isinstance(prepared.runs, list | tuple) or not prepared.runs:
            raise _fault(
                "prepare",
                "returned no runs: Prepared takes a list of dicts of arrays by input "
                "name",
            )
        runs = [self._checked(run) for run in prepared.runs]
        return prepared._replace(runs=tuple(runs))

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return the owner's answer, or a list of several."""
        if self._answer is None:
            return self._plain.answer(runs, options, context)
        outputs: Any = [dict(run) for run in runs]
        if len(outputs) == 1:
            outputs = outputs[0]
        entries = _call("answer", self._answer, outputs, options, context)
        if isinstance(entries, dict):
            entries = [entries]
        if not _is_list_of_dicts(entries):
            raise _fault("answer", "must return a list of dicts")
        try:
            plain: Answer = _plain_value(entries)
        except RecursionError:
            raise _fault(
                "answer",
                "returned values that are nested too deeply, or contain themselves",
            ) from None
        return plain

    def form(self) -> Form:
        """Return the task's inputs.

        The functions' parameters are unknown.
        """
        if self._prepare is None:
            return self._plain.form()
        return Form(("file",))

    def _checked(self, run: Any) -> dict[str, Array]:
        if not isinstance(run, dict):
            raise _fault(
                "prepare",
                f"returned {type(run).__name__}, not a dict of arrays by input name",
            )
        arrays = {}
        for key, value in run.items():
            name = str(key)
            if name not in self._inputs:
                takes = ", ".join(map(repr, self._inputs))
                raise _fault(
                    "prepare",
                    f"returned an unknown input {name!r:.80}; the model takes {takes}",
                )
            arrays[name] = _array(name, value)
        return arrays


def _is_list_of_dicts(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(entry, dict) for entry in value)


def _array(name: str, value: Any) -> Array:
    """Convert an input from ``prepare`` to an array."""
    try:
        array = np.asarray(value)
        datatype_of(array.dtype)
    except (ValueError, TypeError) as error:
        # A ragged list, complex numbers or dates.
        raise _fault(
            "prepare", f"returned no array for input {name!r}: {str(error)[:200]}"
        ) from None
    return array


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ApiError:
        raise
    except Exception as error:
        if name == "prepare" and isinstance(error, ValueError):
            raise invalid_input(
                f"{FILE_NAME} rejected this input: {str(error)[:300]}"
            ) from error
        raise _fault(
            name, f"failed: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def _fault(function: str, detail: str) -> ApiError:
    return ApiError(ErrorCode.INFERENCE_FAILED, f"{function}() in {FILE_NAME} {detail}")


def _plain_value(value: Any) -> Any:
    """Return NumPy's numbers and arrays as JSON's."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, int):
        if value.bit_length() <= MAX_BITS:
            return value
        raise _fault("answer", "returned an integer that is too large for JSON")
    if value is None or isinstance(value, str | float):
        return value
    raise _fault(
        "answer", f"returned a {type(value).__name__}, which JSON cannot represent"
    )


TASK = TaskDefinition("custom", fits, Custom)
