"""Texts in, vectors out: near ones mean the same. With a query, also how near each text is to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.arrays import first_sign
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Arrays,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
)
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import MetadataError, ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.scores import real_values
from pocketserve.tasks.text.encoders import StringEncoder, TokenEncoder, encoder_of
from pocketserve.tasks.text.hugging_face.sentence_modules import (
    POOLING,
    Pooling,
    SentenceModules,
    has_modules,
    sentence_modules,
)
from pocketserve.tasks.text.hugging_face.sentence_prompts import sentence_prompts
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import checked_text, read_texts, texts_in_json
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, strict_json

NAME = "text-embedding"
COMPLETE_OUTPUT = (
    "sentence_embedding"  # of exports that contain all modules of sentence-transformers
)
OUTPUT_NAMES = (
    COMPLETE_OUTPUT,
    "embedding",
    "embeddings",
    "pooler_output",
    "last_hidden_state",
    "token_embeddings",
)
TOKEN_OUTPUTS = (
    COMPLETE_OUTPUT,
    "token_embeddings",
    "last_hidden_state",
    "embedding",
    "embeddings",
)


class TextEmbedding:
    """Takes a text, a JSON list of texts, or ``{"query": ..., "texts": [...]}``. The output is [1, size], or
    [1, tokens, size] to be pooled.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        self._output = _output(facts, options.output)
        modules = SentenceModules()
        if self._output.name != COMPLETE_OUTPUT:
            modules = sentence_modules(facts)
        self._pooling = (
            Pooling((options.pooling,))
            if options.pooling
            else modules.pooling or Pooling()
        )
        if (
            has_modules(facts)
            and modules.pooling is None
            and not options.pooling
            and len(self._output.shape) == 3
            and self._output.name != COMPLETE_OUTPUT
        ):
            raise MetadataError(
                "modules.json of sentence-transformers lists no pooling, and the model gives a vector for each token; "
                "set pooling in [text] of model.toml"
            )
        self._steps = modules.steps
        self._normalize = (
            not has_modules(facts) if options.normalize is None else options.normalize
        )
        self._encoder = encoder_of(facts, options, NAME)
        self._prompts = sentence_prompts(facts)

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return a run a text; the context is the number of prompt tokens of each, and whether the first is a query."""
        comparison, limit = _comparison(body), self._options.max_chars
        prompts = self._prompts
        if comparison is None:
            texts, _ = read_texts(body, hints, limit)
            prefixes = [prompts.default] * len(texts)
        else:
            texts, _ = texts_in_json(comparison["texts"], limit)
            prefixes = [prompts.query, *[prompts.document] * len(texts)]
            texts.insert(0, checked_text(comparison["query"], limit))
        runs = []
        for prefix, text in zip(prefixes, cancellable(texts), strict=True):
            runs.append(self._encoder.encode(prefix + text))
        counts = {prefix: self._prompt_tokens(prefix) for prefix in set(prefixes)}
        return Prepared(
            runs,
            (runs, [counts[prefix] for prefix in prefixes], comparison is not None),
        )

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"index", "embedding"}`` in the order of the texts; with a query ``{"index", "score"}``, nearest
        first. ``score`` is the cosine, from -1 to 1, unless sentence-transformers' files name another function.
        """
        inputs, prompts, with_query = context
        vectors = []
        for run, sent, prompt in zip(runs, inputs, prompts, strict=True):
            vectors.append(self._vector(run[self._output.name], sent, prompt))
        if not with_query:
            return [
                {"index": index, "embedding": vector.tolist()}
                for index, vector in enumerate(vectors)
            ]
        similarity = SIMILARITIES[self._prompts.similarity]
        scores = [similarity(vectors[0], vector) for vector in vectors[1:]]
        threshold = float("-inf") if options.threshold is None else options.threshold
        order = np.argsort([-score for score in scores], kind="stable")[: options.top_k]
        return [
            {"index": int(i), "score": scores[i]}
            for i in order
            if scores[i] >= threshold
        ]

    def form(self) -> Form:
        """Return what the task takes; the parameters count for a query."""
        return Form(
            ("text", "texts", "query"), (parameter("top_k"), parameter("threshold"))
        )

    def describe(self) -> dict[str, str]:
        return {
            "input": 'a text, a JSON list of texts, or {"query": "...", "texts": [...]} to compare',
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "one vector a text; with a query the texts' cosines, nearest first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }

    def _prompt_tokens(self, prompt: str) -> int:
        """Return how many tokens a prompt takes at the start of a text."""
        if not prompt or isinstance(self._encoder, StringEncoder):
            return 0
        special = self._encoder.tokenizer.special
        return len(special.first) + sum(
            1 for _ in self._encoder.tokenizer.tokens(prompt)
        )

    def _vector(self, array: Array, sent: Arrays, prompt: int) -> Array:
        array = real_values(array, self._output)
        values = array.astype(np.float32).reshape(-1, array.shape[-1])
        vector: Array = values[0]
        if array.ndim == 3:
            is_text = np.ones(len(values), bool)
            if isinstance(self._encoder, TokenEncoder):
                is_text = self._encoder.is_text(sent)
            if len(is_text) == len(values):
                vector = self._pooling.apply(values, is_text, prompt)
        for step in self._steps:
            vector = step.apply(vector)
        size = float(np.linalg.norm(vector))
        return vector / size if self._normalize and size else vector


def cosine(a: Array, b: Array) -> float:
    """Return how near two vectors are, from -1 to 1; 0 where one has no direction."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / size if size else 0.0


def euclidean(a: Array, b: Array) -> float:
    """Return the negative distance."""
    return -float(np.linalg.norm(a - b))


def manhattan(a: Array, b: Array) -> float:
    """Return the negative sum of absolute differences."""
    return -float(np.abs(a - b).sum())


def dot(a: Array, b: Array) -> float:
    """Return the dot product."""
    return float(np.dot(a, b))


SIMILARITIES: Mapping[str, Callable[[Array, Array], float]] = {
    "cosine": cosine,
    "dot": dot,
    "euclidean": euclidean,
    "manhattan": manhattan,
}


def _output(facts: ModelFacts, name: str) -> TensorSpec:
    """Return the output with the vectors; BERT's pooler is not meant if the files say how tokens are pooled."""
    by_name = {spec.name: spec for spec in facts.outputs}
    usual = TOKEN_OUTPUTS if facts.beside(POOLING) is not None else OUTPUT_NAMES
    names = [name] if name else [*usual, *(by_name if len(by_name) == 1 else ())]
    output = next(
        (by_name[candidate] for candidate in names if candidate in by_name), None
    )
    if output is None:
        raise ModelLoadError(
            f"model.toml: task {NAME}: text.output must be one of {', '.join(by_name)}"
        )
    return output


def _comparison(body: memoryview) -> dict[str, Any] | None:
    """Return a request with a query; None for any other."""
    if first_sign(body[:64]) != b"{":
        return None
    try:
        content = strict_json.loads_object(body)
    except ApiError:
        return None  # no JSON: a text that starts with a brace
    return (
        content
        if content.keys() == {"query", "texts"} and isinstance(content["query"], str)
        else None
    )


INDEX = AnswerField("index", "integer", "the number of the text, from 0")
VECTOR = AnswerField("embedding", "reals", "its vector")
COSINE = AnswerField("score", "real", "the cosine, from -1 to 1")
CALLS = (
    TaskCall("embed", "text", "Embedding", (INDEX, VECTOR)),
    TaskCall("compare", "comparison", "Match", (INDEX, COSINE)),
)
TASK = TaskDefinition(NAME, None, TextEmbedding, (TEXT,), calls=CALLS)
