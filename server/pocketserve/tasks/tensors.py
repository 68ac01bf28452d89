"""The task of last resort: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import (
    NO_HINTS,
    AdvisedError,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import find_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec, to_tensor
from pocketserve_wire import strict_json
from pocketserve_wire.tensor import to_json_values

TASK_ADVICE = "for pictures, sounds or text give it a task: `pocketserve init MODEL` writes its model.toml"


def fits(facts: ModelFacts) -> bool:
    """Return True: any model takes numbers."""
    return True


def create(facts: ModelFacts, problem: str = "") -> Tensors:
    """Set up with the labels that there are."""
    try:
        labels = find_labels(facts).names
    except ModelLoadError:
        if facts.manifest.labels is not None:
            raise
        labels = ()  # files beside the model may belong to something else
    return Tensors(facts.inputs, facts.filled_inputs, labels, problem)


class Tensors:
    """Take tensors as JSON or ``.npy``.

    JSON is an array for one input, or an object of arrays by input name.

    Args:
        optional: inputs that the server fills in if missing: a model's state.
        labels: class names, for clients that request an output's classes.
        problem: why this task serves a model whose file names another; else empty.

    Attributes:
        advice: how to set the task that the model seems to have; empty if unclear.
    """

    name = "tensors"

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        optional: Container[str] = (),
        labels: Sequence[str] = (),
        problem: str = "",
    ) -> None:
        self.labels = labels
        self.problem = problem
        self.advice = ""
        self._specs = {spec.name: spec for spec in inputs}
        self._required = [
            spec
            for spec in inputs
            if not any(name in optional for name in (spec.name, *spec.aliases))
        ]

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        if arrays.is_npy(body):
            spec = self._single()
            return Prepared(
                [{spec.name: arrays.fit_array(arrays.read_npy(body), spec)}]
            )
        if not arrays.looks_like_json(body):
            fault = "this model takes numbers: send a JSON array, an object of arrays by input name, or a .npy file"
            raise AdvisedError(fault, self.advice or self.problem or TASK_ADVICE)
        values = strict_json.loads(body)
        if isinstance(values, dict):
            return Prepared([self._by_name(values)])
        spec = self._single()
        return Prepared([{spec.name: arrays.fit_values(values, spec)}])

    def prepare_tensors(self, contents: Mapping[str, memoryview]) -> Prepared:
        """Return the input arrays of JSON or ``.npy`` contents by input name."""
        self._check_names(contents)
        inputs: dict[str, Array] = {}
        for name, content in contents.items():
            spec = self._specs[name]
            if arrays.is_npy(content):
                inputs[name] = arrays.fit_array(arrays.read_npy(content), spec)
            else:
                inputs[name] = arrays.fit_values(strict_json.loads(content), spec)
        return Prepared([inputs])

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return every output whole; ``top_k`` and ``threshold`` do not apply."""
        tensors = [
            to_tensor(name, array)
            for outputs in runs
            for name, array in outputs.items()
        ]
        return [
            {
                "name": t.name,
                "datatype": t.datatype,
                "shape": list(t.shape),
                "data": to_json_values(t),
            }
            for t in tensors
        ]

    def form(self) -> Form:
        """Return the task's inputs."""
        return Form(("tensors",))

    def _by_name(self, values: Mapping[str, object]) -> dict[str, Array]:
        self._check_names(values)
        return {
            name: arrays.fit_values(values[name], spec)
            for name, spec in self._specs.items()
            if name in values
        }

    def _check_names(self, values: Mapping[str, object]) -> None:
        unknown = [
            f"unknown input {name!r}" for name in values if name not in self._specs
        ]
        missing = []
        for spec in self._required:
            if spec.name not in values:
                missing.append(f"input {spec.name!r} is missing")
        if faults := unknown + missing:
            raise invalid_input(
                f"{faults[0]}; the model takes {', '.join(map(repr, self._specs))}"
            )

    def _single(self) -> TensorSpec:
        if len(self._required) != 1:
            names = ", ".join(repr(spec.name) for spec in self._required)
            raise invalid_input(
                f"this model takes {len(self._required)} inputs; send a JSON object with {names}"
            )
        return self._required[0]


TASK = TaskDefinition("tensors", fits, create)
