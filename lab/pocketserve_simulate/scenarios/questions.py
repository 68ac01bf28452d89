"""Requests whose right answers are known in advance, each with its own answer.

The answers come from an undisturbed server: the same models on the same machine, before
the simulation starts. Pictures have known labels: a sample is named after its label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pocketserve.local.own_server import own_server
from pocketserve.tensors import Array
from pocketserve_client import Client, ServerError
from pocketserve_simulate.scenarios.scenario import PICTURES, ScenarioError, Stream
from pocketserve_wire import DATATYPES

COUNT: Final = 64
"""Questions of a stream.

More than are in flight, so that a swapped answer is noticed."""

FIRST_DEADLINE_S: Final = 60.0
"""Deadline of the first requests, which load the model."""

MAX_ELEMENTS: Final = 1 << 22
RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5
"""Tolerances of an answer: rows of a batch are summed in another order."""

DISTINCT: Final = 10.0
"""Least difference of two answers, in tolerances; other questions are left out."""


@dataclass(frozen=True)
class Question:
    """A request and its answer.

    Arrays by name; or a picture file, its label and ``score``, that of the label.
    """

    inputs: Mapping[str, Array]
    picture: bytes
    label: str
    expected: Mapping[str, Array]

    def ask(self, client: Client, stream: Stream) -> str:
        """Send the request.

        Return the error in the answer, empty if it is right.
        """
        return self.check(_ask(client, stream, self.inputs, self.picture))

    def check(self, answer: tuple[str, Mapping[str, Array]]) -> str:
        """Return the error in an answer; empty if it is right."""
        label, outputs = answer
        if label != self.label:
            return f"a picture of {self.label} was read as {label}"
        if outputs.keys() != self.expected.keys():
            return f"outputs {sorted(outputs)} instead of {sorted(self.expected)}"
        for name, array in self.expected.items():
            shape = list(outputs[name].shape)
            expected = list(array.shape)
            if shape != expected:
                return f"output {name!r} of shape {shape} instead of {expected}"
        different = next(self._different(outputs, 1), None)
        if different is not None:
            return f"output {different!r} is another request's, or wrong"
        return ""

    def is_distinct(self, other: Question) -> bool:
        """Return whether its answer differs from that of another question."""
        if self.label != other.label:
            return True
        return any(self._different(other.expected, DISTINCT))

    def _different(self, outputs: Mapping[str, Array], factor: float) -> Iterator[str]:
        """Yield the names of outputs that differ by more than so many tolerances."""
        relative = factor * RELATIVE
        absolute = factor * ABSOLUTE
        for name, array in self.expected.items():
            if not np.allclose(outputs[name], array, relative, absolute):
                yield name


@dataclass(frozen=True)
class _Request:
    """A request without its answer; ``label`` is that of the picture."""

    inputs: Mapping[str, Array]
    picture: bytes = b""
    label: str = ""


def prepare_questions(
    streams: Sequence[Stream], models: Path, state_dir: Path
) -> dict[str, list[Question]]:
    """Return the questions of each stream, by its name.

    Args:
        state_dir: keeps the trials of the model files.
    """
    questions = {}
    with (
        own_server(models, "--state-dir", str(state_dir)) as server,
        Client(server.socket, token_file=server.token_file) as client,
    ):
        for seed, stream in enumerate(streams):
            questions[stream.name] = _questions(client, stream, models, seed)
    return questions


def _questions(
    client: Client, stream: Stream, models: Path, seed: int
) -> list[Question]:
    """Return the stream's questions that have distinct answers."""
    stream = dataclasses.replace(stream, deadline=FIRST_DEADLINE_S)
    questions: list[Question] = []
    try:
        for request in _requests(client, stream, models, seed):
            answer, expected = _ask(client, stream, request.inputs, request.picture)
            if answer != request.label:
                raise ScenarioError(
                    f"stream {stream.name!r}: {stream.model!r} reads its sample "
                    f"{request.label!r} as {answer!r}"
                )
            question = Question(
                request.inputs, request.picture, request.label, expected
            )
            if all(question.is_distinct(other) for other in questions):
                questions.append(question)
    except ServerError as error:
        raise ScenarioError(
            f"stream {stream.name!r} cannot ask {stream.model!r}: {error}"
        ) from None
    return questions


def _requests(
    client: Client, stream: Stream, models: Path, seed: int
) -> list[_Request]:
    if stream.ask == PICTURES:
        return _pictures(stream, models)
    return _random_inputs(client, stream, seed)


def _ask(
    client: Client, stream: Stream, inputs: Mapping[str, Array], picture: bytes
) -> tuple[str, Mapping[str, Array]]:
    """Return the label of an answer, empty for tensors, and its numbers."""
    parameters: dict[str, Any] = {}
    if stream.fresh:
        parameters["stream"] = stream.name
    if stream.priority:
        parameters["priority"] = stream.priority
    options: dict[str, Any] = {
        "version": stream.version or None,
        "parameters": parameters,
        "wait": stream.deadline,
    }
    if not picture:
        return "", client.infer(stream.model, inputs, **options)
    answer = client.predict(stream.model, picture, top_k=1, **options)
    best = answer["predictions"][0]
    return best["label"], {"score": np.asarray(best["score"])}


def _pictures(stream: Stream, models: Path) -> list[_Request]:
    """Return requests with a model's sample pictures."""
    folder = models / stream.model / "samples"
    paths = sorted(folder.glob("*.png"))[:COUNT]
    if not paths:
        raise ScenarioError(
            f"stream {stream.name!r}: there are no pictures in {stream.model}/samples"
        )
    requests = []
    for path in paths:
        requests.append(_Request({}, path.read_bytes(), path.stem))
    return requests


def _random_inputs(client: Client, stream: Stream, seed: int) -> list[_Request]:
    random = np.random.default_rng(seed)
    specs = client.model_metadata(stream.model, stream.version or None)["inputs"]
    requests = []
    for _ in range(COUNT):
        inputs = {}
        for spec in specs:
            inputs[spec["name"]] = _random_array(spec, stream, random)
        requests.append(_Request(inputs))
    return requests


def _random_array(
    spec: Mapping[str, Any], stream: Stream, random: np.random.Generator
) -> Array:
    """Return random numbers for an input; raise if it is too large, or takes texts."""
    first, *further = spec["shape"]
    rows = first
    if first < 0:
        rows = stream.rows
    shape = [rows]
    for size in further:
        shape.append(max(1, size))
    elements = int(np.prod(shape, dtype=np.float64))
    if spec["datatype"] == "BYTES" or elements > MAX_ELEMENTS:
        raise ScenarioError(
            f"stream {stream.name!r}: no numbers can be made up for input "
            f"{spec['name']!r}; choose a model with smaller, numeric inputs"
        )
    dtype = DATATYPES[spec["datatype"]].typestr
    numbers = random.random(shape, np.float32)
    return numbers.astype(dtype)
