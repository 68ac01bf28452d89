"""Requests whose right answers are known beforehand, each with an answer of its own.

The answers come from a server that nothing happens to: the same models on the same machine, asked before the
simulation begins. Pictures are known without it too: a sample is named by what it shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pocketserve.cli.own_server import own_server
from pocketserve.tensors import Array
from pocketserve_client import Client, ServerError
from pocketserve_simulate.scenarios.scenario import PICTURES, ScenarioError, Stream
from pocketserve_wire import DATATYPES

COUNT: Final = 64
"""Different questions of a stream: more than it has under way, so that an answer given to another is noticed."""

FIRST_DEADLINE_S: Final = 60.0
"""The first of them loads the model."""

MAX_ELEMENTS: Final = 1 << 22
RELATIVE, ABSOLUTE = 1e-3, 1e-5
"""How far an answer may lie from the known one: rows that run together are summed in another order."""

DISTINCT: Final = 10.0
"""By how many of these tolerances two answers differ at least, or one of the questions is left out."""


@dataclass(frozen=True)
class Question:
    """One request and its answer.

    Attributes:
        inputs: arrays by input name, for ``infer``; empty for a picture.
        picture: bytes of a picture file, for ``predict``; empty for tensors.
        label: what the picture shows.
        expected: arrays by output name, or the score of the label under the name ``score``.
    """

    inputs: Mapping[str, Array]
    picture: bytes
    label: str
    expected: Mapping[str, Array]

    def ask(self, client: Client, stream: Stream) -> str:
        """Ask it and compare.

        Returns:
            What is wrong with the answer; empty if nothing is.

        Raises:
            ServerError, ServerUnreachableError: there was no answer.
        """
        return self.check(_ask(client, stream, self.inputs, self.picture))

    def check(self, answer: tuple[str, Mapping[str, Array]]) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        label, found = answer
        if label != self.label:
            return f"a picture of {self.label} was read as {label}"
        if found.keys() != self.expected.keys():
            return f"outputs {sorted(found)} instead of {sorted(self.expected)}"
        for name, array in self.expected.items():
            if found[name].shape != array.shape:
                return f"output {name!r} of shape {list(found[name].shape)} instead of {list(array.shape)}"
            if not np.allclose(found[name], array, RELATIVE, ABSOLUTE):
                return f"output {name!r} is another request's, or wrong"
        return ""


def prepare(streams: Sequence[Stream], models: Path, state_dir: Path) -> dict[str, list[Question]]:
    """The questions of every stream, by its name.

    Args:
        state_dir: where the trials of the model files are remembered, for the simulated server too.

    Raises:
        ScenarioError: a stream's model cannot be asked.
    """
    with (
        own_server(models, "--state-dir", str(state_dir)) as server,
        Client(server.socket, token_file=server.token_file) as client,
    ):
        return {stream.name: _questions(client, stream, models, seed) for seed, stream in enumerate(streams)}


def _questions(client: Client, stream: Stream, models: Path, seed: int) -> list[Question]:
    stream = dataclasses.replace(stream, deadline=FIRST_DEADLINE_S)
    try:
        if stream.ask == PICTURES:
            asked: list[tuple[Mapping[str, Array], bytes, str]]
            asked = [({}, path.read_bytes(), path.stem) for path in _pictures(stream, models)]
        else:
            asked = [(inputs, b"", "") for inputs in _random_inputs(client, stream, seed)]
        return _distinct([_known(client, stream, *question) for question in asked])
    except ServerError as error:
        raise ScenarioError(f"stream {stream.name!r} cannot ask {stream.model!r}: {error}") from None


def _known(client: Client, stream: Stream, inputs: Mapping[str, Array], picture: bytes, label: str) -> Question:
    found, expected = _ask(client, stream, inputs, picture)
    if found != label:
        raise ScenarioError(f"stream {stream.name!r}: {stream.model!r} reads its sample {label!r} as {found!r}")
    return Question(inputs, picture, label, expected)


def _ask(
    client: Client, stream: Stream, inputs: Mapping[str, Array], picture: bytes
) -> tuple[str, Mapping[str, Array]]:
    """The label, which tensors have not, and the numbers of an answer."""
    parameters: dict[str, Any] = {"stream": stream.name} if stream.fresh else {}
    parameters |= {"priority": stream.priority} if stream.priority else {}
    version, wait = stream.version or None, stream.deadline
    if not picture:
        return "", client.infer(stream.model, inputs, version=version, parameters=parameters, wait=wait)
    answer = client.predict(stream.model, picture, top_k=1, version=version, parameters=parameters, wait=wait)
    best = answer["predictions"][0]
    return best["label"], {"score": np.asarray(best["score"])}


def _pictures(stream: Stream, models: Path) -> list[Path]:
    found = sorted((models / stream.model / "samples").glob("*.png"))[:COUNT]
    if not found:
        raise ScenarioError(f"stream {stream.name!r}: there are no pictures in {stream.model}/samples")
    return found


def _random_inputs(client: Client, stream: Stream, seed: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    specs = client.model_metadata(stream.model, stream.version or None)["inputs"]
    return [{spec["name"]: _random_array(spec, stream, random) for spec in specs} for _ in range(COUNT)]


def _random_array(spec: Mapping[str, Any], stream: Stream, random: np.random.Generator) -> Array:
    first, *rest = spec["shape"]
    shape = (stream.rows if first < 0 else first, *(max(1, size) for size in rest))
    if spec["datatype"] == "BYTES" or int(np.prod(shape, dtype=np.float64)) > MAX_ELEMENTS:
        raise ScenarioError(
            f"stream {stream.name!r}: no numbers can be made up for input {spec['name']!r}; "
            "choose a model with smaller, numeric inputs"
        )
    return random.random(shape, np.float32).astype(DATATYPES[spec["datatype"]].typestr)


def _distinct(questions: Sequence[Question]) -> list[Question]:
    """Those whose answers can be told from all earlier ones."""
    kept: list[Question] = []
    for question in questions:
        if all(_differ(question, other) for other in kept):
            kept.append(question)
    return kept


def _differ(one: Question, other: Question) -> bool:
    if one.label != other.label:
        return True
    return any(
        not np.allclose(array, other.expected[name], DISTINCT * RELATIVE, DISTINCT * ABSOLUTE)
        for name, array in one.expected.items()
    )
