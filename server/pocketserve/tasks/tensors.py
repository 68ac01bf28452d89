"""The task of last resort: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Arrays,
    Hints,
    Prepared,
    TaskDefinition,
    invalid_input,
    single_run,
)
from pocketserve.tasks.labels import find_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec, to_tensor
from pocketserve_wire import strict_json
from pocketserve_wire.tensor import to_json_values


def fits(facts: ModelFacts) -> bool:
    """Return True: any model takes numbers."""
    return True


def create(facts: ModelFacts, problem: str = "") -> Tensors:
    """Set up with the labels that there are.

    Args:
        problem: see :class:`Tensors`.

    Raises:
        ModelLoadError: the manifest's labels cannot be read.
    """
    try:
        labels = find_labels(facts).names
    except ModelLoadError:
        if facts.manifest.labels is not None:
            raise
        labels = ()  # what lies beside the model may be meant for something else
    return Tensors(facts.inputs, facts.manifest.state.feedback, labels, problem)


class Tensors:
    """Takes a JSON array (one input), an object of arrays by input name, or a ``.npy`` file.

    Args:
        optional: inputs that the server fills in where they are missing: the state of a model with a memory.
        labels: names of classes, for those who ask for classes of an output.
        problem: why a model whose file names another task is served by this one; empty for all others.
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
        self._inputs = inputs
        self._needed = [spec for spec in inputs if not any(name in optional for name in (spec.name, *spec.aliases))]

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if arrays.is_npy(body):
            spec = self._single()
            return single_run({spec.name: arrays.fit_array(arrays.read_npy(body), spec)})
        if not arrays.looks_like_json(body):
            raise invalid_input(
                "this model takes numbers: send a JSON array, an object of arrays by input name, or a .npy file; "
                "for pictures or text set a task in a model.toml, beside the file in a folder of its own"
            )
        values = strict_json.loads(body)
        if not isinstance(values, dict):
            spec = self._single()
            return single_run({spec.name: arrays.fit_values(values, spec)})
        return single_run(self._by_name(values))

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """Every output whole; ``top_k`` and ``threshold`` do not apply."""
        tensors = [to_tensor(name, array) for outputs in runs for name, array in outputs.items()]
        return [
            {"name": t.name, "datatype": t.datatype, "shape": list(t.shape), "data": to_json_values(t)} for t in tensors
        ]

    def _by_name(self, values: dict[str, object]) -> dict[str, Array]:
        specs = {spec.name: spec for spec in self._inputs}
        unknown = [name for name in values if name not in specs]
        missing = [spec.name for spec in self._needed if spec.name not in values]
        if unknown or missing:
            fault = f"unknown input {unknown[0]!r}" if unknown else f"input {missing[0]!r} is missing"
            raise invalid_input(f"{fault}; the model takes {', '.join(map(repr, specs))}")
        return {name: arrays.fit_values(values[name], spec) for name, spec in specs.items() if name in values}

    def _single(self) -> TensorSpec:
        if len(self._needed) != 1:
            names = ", ".join(repr(spec.name) for spec in self._needed)
            raise invalid_input(f"this model takes {len(self._needed)} inputs; send a JSON object with {names}")
        return self._needed[0]


TASK = TaskDefinition("tensors", fits, create)
