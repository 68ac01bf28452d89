"""Texts in, vectors out: near ones mean the same. With a query, also how near each text is to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.scores import real_values
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.text_classification import TextEncoder, text_encoder
from pocketserve.tasks.text.texts import checked_text, read_texts
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, strict_json

NAME = "text-embedding"
PREFERRED = ("sentence_embedding", "embedding", "embeddings", "pooler_output", "last_hidden_state")


def fits(facts: ModelFacts) -> bool:
    """Never: a row of numbers may be anything."""
    return False


def create(facts: ModelFacts) -> TextEmbedding:
    """Set up with the manifest's ``[text]`` and the files beside the model.

    Raises:
        ModelLoadError: there is no tokenizer, or the model's tensors do not fit.
    """
    options = facts.manifest.section(TextOptions)
    pooling = options.pooling or _said_pooling(facts)
    normalize = True if options.normalize is None else options.normalize
    encoder = text_encoder(facts, options, NAME)
    return TextEmbedding(encoder, _output(facts, options.output), pooling, normalize, options.max_chars)


@dataclass(frozen=True, slots=True)
class Batch:
    """How many tokens each run has that are no padding; whether the first text is a query to compare with."""

    lengths: Sequence[int]
    query: bool


class TextEmbedding:
    """Takes a text, a JSON list of texts, or ``{"query": ..., "texts": [...]}``.

    Args:
        output: [1, size], or [1, tokens, size] to be pooled.
        pooling: ``mean``, ``cls`` or ``max``.
        normalize: scale vectors to length 1.
    """

    name = NAME

    def __init__(self, encoder: TextEncoder, output: TensorSpec, pooling: str, normalize: bool, max_chars: int) -> None:
        self._encoder = encoder
        self._output = output
        self._pooling = pooling
        self._normalize = normalize
        self._max_chars = max_chars

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`. One run a text, the query first."""
        query, rest = _split_query(body)
        texts, _ = read_texts(rest, Hints("application/json") if query is not None else hints, self._max_chars)
        if query is not None:
            texts.insert(0, checked_text(query, self._max_chars))
        runs = [self._encoder.arrays(text) for text in cancellable(texts)]
        inputs = self._encoder.inputs
        lengths = [inputs.mask(run) if inputs is not None else 0 for run in runs]
        return Prepared(runs, Batch(lengths, query is not None))

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"index", "embedding"}`` in the order of the texts; with a query ``{"index", "score"}``, nearest first.

        ``score`` is the cosine, from -1 to 1.
        """
        vectors = [
            self._vector(run[self._output.name], length) for run, length in zip(runs, context.lengths, strict=True)
        ]
        if not context.query:
            return [{"index": index, "embedding": vector.tolist()} for index, vector in enumerate(vectors)]
        scores = [cosine(vectors[0], vector) for vector in vectors[1:]]
        lowest = float("-inf") if options.threshold is None else options.threshold
        order = np.argsort([-score for score in scores], kind="stable")[: options.top_k]
        return [{"index": int(i), "score": scores[i]} for i in order if scores[i] >= lowest]

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": 'a text, a JSON list of texts, or {"query": "...", "texts": [...]} to compare',
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "one vector a text; with a query the texts' cosines, nearest first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }

    def _vector(self, array: Array, tokens: int) -> Array:
        array = real_values(array, self._output)
        values = array.astype(np.float32).reshape(-1, array.shape[-1])
        if array.ndim == 3:
            inside = values[: tokens or len(values)]
            pooled = {"cls": lambda: inside[0], "max": lambda: inside.max(axis=0), "mean": lambda: inside.mean(axis=0)}
            vector = pooled[self._pooling]()
        else:
            vector = values[0]
        size = float(np.linalg.norm(vector))
        result: Array = vector / size if self._normalize and size else vector
        return result


def cosine(one: Array, other: Array) -> float:
    """Return how near two vectors are, from -1 to 1; 0 where one has no direction."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / size if size else 0.0


def _output(facts: ModelFacts, name: str) -> TensorSpec:
    by_name = {spec.name: spec for spec in facts.outputs}
    wanted = (name,) if name else PREFERRED
    found = next((by_name[candidate] for candidate in wanted if candidate in by_name), None)
    if found is None and not name and len(by_name) == 1:
        return facts.outputs[0]
    if found is None:
        raise ModelLoadError(f"model.toml: task {NAME}: text.output must be one of {', '.join(by_name)}")
    return found


def _said_pooling(facts: ModelFacts) -> str:
    """As sentence-transformers writes it down."""
    said = facts.json_beside("1_Pooling/config.json")
    for mode, key in (("cls", "pooling_mode_cls_token"), ("max", "pooling_mode_max_tokens")):
        if said.get(key) is True:
            return mode
    return "mean"


def _split_query(body: memoryview) -> tuple[str | None, memoryview]:
    """A query and the rest of the request, as a list of texts."""
    if bytes(body[:64]).lstrip()[:1] != b"{":
        return None, body
    try:
        content = strict_json.loads_object(body)
    except ApiError:
        return None, body  # no JSON: a text that starts with a brace
    if content.keys() != {"query", "texts"} or not isinstance(content["query"], str):
        return None, body
    return content["query"], memoryview(strict_json.dumps(content["texts"]))


TASK = TaskDefinition(NAME, fits, create, (TEXT,))
