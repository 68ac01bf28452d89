"""Texts in, vectors out: near ones mean the same. With a query, also how near each text is to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.arrays import first_sign
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Hints, Prepared, Runs, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.scores import real_values
from pocketserve.tasks.text.encoders import encoder_of
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import checked_text, read_texts, texts_in_json
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, strict_json

NAME = "text-embedding"
OUTPUT_NAMES = ("sentence_embedding", "embedding", "embeddings", "pooler_output", "last_hidden_state")


class TextEmbedding:
    """Takes a text, a JSON list of texts, or ``{"query": ..., "texts": [...]}``. The output is [1, size], or
    [1, tokens, size] to be pooled.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        self._pooling = options.pooling or _configured_pooling(facts)
        self._encoder = encoder_of(facts, options, NAME)
        self._output = _output(facts, options.output)

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return a run a text; the context is the number of tokens of each, and whether the first is a query."""
        comparison, limit = _comparison(body), self._options.max_chars
        if comparison is None:
            texts, _ = read_texts(body, hints, limit)
        else:
            texts, _ = texts_in_json(comparison["texts"], limit)
            texts.insert(0, checked_text(comparison["query"], limit))
        runs = [self._encoder.encode(text) for text in cancellable(texts)]
        return Prepared(runs, ([self._encoder.token_count(run) for run in runs], comparison is not None))

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"index", "embedding"}`` in the order of the texts; with a query ``{"index", "score"}``, nearest
        first. ``score`` is the cosine, from -1 to 1.
        """
        counts, with_query = context
        vectors = [self._vector(run[self._output.name], count) for run, count in zip(runs, counts, strict=True)]
        if not with_query:
            return [{"index": index, "embedding": vector.tolist()} for index, vector in enumerate(vectors)]
        scores = [cosine(vectors[0], vector) for vector in vectors[1:]]
        threshold = float("-inf") if options.threshold is None else options.threshold
        order = np.argsort([-score for score in scores], kind="stable")[: options.top_k]
        return [{"index": int(i), "score": scores[i]} for i in order if scores[i] >= threshold]

    def form(self) -> Form:
        """Return what the task takes; the parameters count for a query."""
        return Form(("text", "texts", "query"), (parameter("top_k"), parameter("threshold")))

    def describe(self) -> dict[str, str]:
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
        vector: Array = values[0]
        if array.ndim == 3 and self._pooling != "cls":
            values = values[: tokens or len(values)]
            vector = values.max(axis=0) if self._pooling == "max" else values.mean(axis=0)
        size = float(np.linalg.norm(vector))
        return vector / size if self._options.normalize and size else vector


def cosine(a: Array, b: Array) -> float:
    """Return how near two vectors are, from -1 to 1; 0 where one has no direction."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / size if size else 0.0


def _output(facts: ModelFacts, name: str) -> TensorSpec:
    by_name = {spec.name: spec for spec in facts.outputs}
    names = [name] if name else [*OUTPUT_NAMES, *(by_name if len(by_name) == 1 else ())]
    output = next((by_name[candidate] for candidate in names if candidate in by_name), None)
    if output is None:
        raise ModelLoadError(f"model.toml: task {NAME}: text.output must be one of {', '.join(by_name)}")
    return output


def _configured_pooling(facts: ModelFacts) -> str:
    """Return the pooling that sentence-transformers wrote down."""
    config = facts.json_beside("1_Pooling/config.json")
    for mode, key in (("cls", "pooling_mode_cls_token"), ("max", "pooling_mode_max_tokens")):
        if config.get(key) is True:
            return mode
    return "mean"


def _comparison(body: memoryview) -> dict[str, Any] | None:
    """Return a request with a query; None for any other."""
    if first_sign(body[:64]) != b"{":
        return None
    try:
        content = strict_json.loads_object(body)
    except ApiError:
        return None  # no JSON: a text that starts with a brace
    return content if content.keys() == {"query", "texts"} and isinstance(content["query"], str) else None


INDEX = AnswerField("index", "integer", "the number of the text, from 0")
VECTOR = AnswerField("embedding", "reals", "its vector")
COSINE = AnswerField("score", "real", "the cosine, from -1 to 1")
CALLS = (
    TaskCall("embed", "text", "Embedding", (INDEX, VECTOR)),
    TaskCall("compare", "comparison", "Match", (INDEX, COSINE)),
)
TASK = TaskDefinition(NAME, None, TextEmbedding, (TEXT,), calls=CALLS)
