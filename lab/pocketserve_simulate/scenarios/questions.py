"""Requests whose right answers are known beforehand, each with an answer of its own.

The answers come from a server that nothing happens to: the same models on the same machine, asked before the
simulation begins. Pictures are known without it too: a sample is named by what it shows.
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

COUNT: Final = 64  # questions of a stream: more than it has under way, so that an exchanged answer is noticed
FIRST_DEADLINE_S: Final = 60.0  # the first of them loads the model
MAX_ELEMENTS: Final = 1 << 22
RELATIVE, ABSOLUTE = (
    1e-3,
    1e-5,
)  # tolerances of an answer: rows that run together are summed in another order
DISTINCT: Final = 10.0  # tolerances by which two answers differ at least, or one of the questions is left out


@dataclass(frozen=True)
class Question:
    """A request and its answer: arrays by name; or a picture file, its label and ``score``, that of the label."""

    inputs: Mapping[str, Array]
    picture: bytes
    label: str
    expected: Mapping[str, Array]

    def ask(self, client: Client, stream: Stream) -> str:
        """Ask it; returns what is wrong with the answer, empty if nothing is."""
        return self.check(_ask(client, stream, self.inputs, self.picture))

    def check(self, answer: tuple[str, Mapping[str, Array]]) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        label, outputs = answer
        if label != self.label:
            return f"a picture of {self.label} was read as {label}"
        if outputs.keys() != self.expected.keys():
            return f"outputs {sorted(outputs)} instead of {sorted(self.expected)}"
        for name, array in self.expected.items():
            if outputs[name].shape != array.shape:
                return f"output {name!r} of shape {list(outputs[name].shape)} instead of {list(array.shape)}"
        return next(
            (
                f"output {name!r} is another request's, or wrong"
                for name in self._different(outputs, 1)
            ),
            "",
        )

    def is_distinct(self, other: Question) -> bool:
        """Return whether its answer can be told from that of another question of the stream."""
        return self.label != other.label or any(
            self._different(other.expected, DISTINCT)
        )

    def _different(self, outputs: Mapping[str, Array], factor: float) -> Iterator[str]:
        """Yield the names of the outputs that lie further away than this multiple of the tolerances."""
        for name, array in self.expected.items():
            if not np.allclose(
                outputs[name], array, factor * RELATIVE, factor * ABSOLUTE
            ):
                yield name


def prepare_questions(
    streams: Sequence[Stream], models: Path, state_dir: Path
) -> dict[str, list[Question]]:
    """Return the questions of every stream, by its name; ``state_dir`` keeps the trials of the model files."""
    with (
        own_server(models, "--state-dir", str(state_dir)) as server,
        Client(server.socket, token_file=server.token_file) as client,
    ):
        return {
            stream.name: _questions(client, stream, models, seed)
            for seed, stream in enumerate(streams)
        }


def _questions(
    client: Client, stream: Stream, models: Path, seed: int
) -> list[Question]:
    """Return the stream's questions whose answers can be told apart."""
    stream = dataclasses.replace(stream, deadline=FIRST_DEADLINE_S)
    questions: list[Question] = []
    try:
        requests = (
            _pictures(stream, models)
            if stream.ask == PICTURES
            else _random_inputs(client, stream, seed)
        )
        for inputs, picture, label in requests:
            answer, expected = _ask(client, stream, inputs, picture)
            if answer != label:
                raise ScenarioError(
                    f"stream {stream.name!r}: {stream.model!r} reads its sample {label!r} as {answer!r}"
                )
            question = Question(inputs, picture, label, expected)
            if all(question.is_distinct(other) for other in questions):
                questions.append(question)
    except ServerError as error:
        raise ScenarioError(
            f"stream {stream.name!r} cannot ask {stream.model!r}: {error}"
        ) from None
    return questions


def _ask(
    client: Client, stream: Stream, inputs: Mapping[str, Array], picture: bytes
) -> tuple[str, Mapping[str, Array]]:
    """Return the label, which tensors have not, and the numbers of an answer."""
    parameters: dict[str, Any] = {"stream": stream.name} if stream.fresh else {}
    parameters |= {"priority": stream.priority} if stream.priority else {}
    version, wait = stream.version or None, stream.deadline
    if not picture:
        return "", client.infer(
            stream.model, inputs, version=version, parameters=parameters, wait=wait
        )
    answer = client.predict(
        stream.model,
        picture,
        top_k=1,
        version=version,
        parameters=parameters,
        wait=wait,
    )
    best = answer["predictions"][0]
    return best["label"], {"score": np.asarray(best["score"])}


def _pictures(
    stream: Stream, models: Path
) -> list[tuple[dict[str, Array], bytes, str]]:
    paths = sorted((models / stream.model / "samples").glob("*.png"))[:COUNT]
    if not paths:
        raise ScenarioError(
            f"stream {stream.name!r}: there are no pictures in {stream.model}/samples"
        )
    return [({}, path.read_bytes(), path.stem) for path in paths]


def _random_inputs(
    client: Client, stream: Stream, seed: int
) -> list[tuple[dict[str, Array], bytes, str]]:
    random = np.random.default_rng(seed)
    specs = client.model_metadata(stream.model, stream.version or None)["inputs"]
    return [
        ({spec["name"]: _random_array(spec, stream, random) for spec in specs}, b"", "")
        for _ in range(COUNT)
    ]


def _random_array(
    spec: Mapping[str, Any], stream: Stream, random: np.random.Generator
) -> Array:
    first, *rest = spec["shape"]
    shape = (stream.rows if first < 0 else first, *(max(1, size) for size in rest))
    if (
        spec["datatype"] == "BYTES"
        or int(np.prod(shape, dtype=np.float64)) > MAX_ELEMENTS
    ):
        raise ScenarioError(
            f"stream {stream.name!r}: no numbers can be made up for input {spec['name']!r}; "
            "choose a model with smaller, numeric inputs"
        )
    return random.random(shape, np.float32).astype(DATATYPES[spec["datatype"]].typestr)
