"""Turn texts into embeddings, and compare texts with a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
# Exports with this output contain all modules of sentence-transformers.
COMPLETE_OUTPUT = "sentence_embedding"
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


class _Request(NamedTuple):
    """The input arrays of the texts, and the number of prompt tokens in each."""

    inputs: Sequence[Arrays]
    prompt_sizes: list[int]
    with_query: bool  # the first text is the query


class TextEmbedding:
    """Embed texts, or compare them with a query.

    The output is [1, size], or [1, tokens, size] to be pooled.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        self._output = _output(facts, options.output)
        modules = SentenceModules()
        if self._output.name != COMPLETE_OUTPUT:
            modules = sentence_modules(facts)
        self._pooling = modules.pooling or Pooling()
        if options.pooling:
            self._pooling = Pooling((options.pooling,))
        elif modules.pooling is None:
            self._check_needs_no_pooling(facts)
        self._steps = modules.steps
        self._normalize = options.normalize
        if options.normalize is None:
            self._normalize = not has_modules(facts)
        self._encoder = encoder_of(facts, options, NAME)
        self._prompts = sentence_prompts(facts)

    def _check_needs_no_pooling(self, facts: ModelFacts) -> None:
        """Raise if no module pools the tokens' vectors."""
        gives_tokens = len(self._output.shape) == 3
        complete = self._output.name == COMPLETE_OUTPUT
        if has_modules(facts) and gives_tokens and not complete:
            raise MetadataError(
                "modules.json of sentence-transformers lists no pooling, and the model "
                "gives a vector for each token; set pooling in [text] of model.toml"
            )

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return a run for each text.

        A query comes first.
        """
        comparison = _comparison(body)
        limit = self._options.max_chars
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
        sizes = [counts[prefix] for prefix in prefixes]
        return Prepared(runs, _Request(runs, sizes, comparison is not None))

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"index", "embedding"}`` for each text, in order.

        With a query, return ``{"index", "score"}``, the most similar first. ``score`` is
        the cosine, from -1 to 1, unless sentence-transformers' files name another
        function.
        """
        request: _Request = context
        vectors = []
        for run, sent, prompt_size in zip(
            runs, request.inputs, request.prompt_sizes, strict=True
        ):
            vectors.append(self._vector(run[self._output.name], sent, prompt_size))
        if request.with_query:
            return self._compared(vectors[0], vectors[1:], options)
        entries: Answer = []
        for index, vector in enumerate(vectors):
            entries.append({"index": index, "embedding": vector.tolist()})
        return entries

    def _compared(
        self, query: Array, vectors: Sequence[Array], options: AnswerOptions
    ) -> Answer:
        """Return index and score of each text, the most similar first."""
        similarity = SIMILARITIES[self._prompts.similarity]
        scores = [similarity(query, vector) for vector in vectors]
        order = np.argsort([-score for score in scores], kind="stable")
        threshold = -np.inf if options.threshold is None else options.threshold
        entries: Answer = []
        for index in order[: options.top_k]:
            if scores[index] >= threshold:  # not NaN
                entries.append({"index": int(index), "score": scores[index]})
        return entries

    def form(self) -> Form:
        """Return the task's inputs and parameters, which apply to a query."""
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
        """Return how many tokens a prompt has."""
        if not prompt or isinstance(self._encoder, StringEncoder):
            return 0
        tokenizer = self._encoder.tokenizer
        return len(tokenizer.special.first) + sum(1 for _ in tokenizer.tokens(prompt))

    def _pooled(self, values: Array, sent: Arrays, prompt_size: int) -> Array:
        """Pool the vectors of all tokens.

        Return the first one's if the counts differ.
        """
        is_text = np.ones(len(values), bool)
        if isinstance(self._encoder, TokenEncoder):
            is_text = self._encoder.is_text(sent)
        if len(is_text) != len(values):
            first: Array = values[0]
            return first
        return self._pooling.apply(values, is_text, prompt_size)

    def _vector(self, array: Array, sent: Arrays, prompt_size: int) -> Array:
        array = real_values(array, self._output)
        values = array.astype(np.float32).reshape(-1, array.shape[-1])
        vector: Array = values[0]
        if array.ndim == 3:
            vector = self._pooled(values, sent, prompt_size)
        for step in self._steps:
            vector = step.apply(vector)
        size = float(np.linalg.norm(vector))
        if self._normalize and size:
            return vector / size
        return vector


def cosine(a: Array, b: Array) -> float:
    """Return the cosine, from -1 to 1; 0 if a vector is zero."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if size:
        return float(np.dot(a, b)) / size
    return 0.0


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
    """Return the output with the vectors.

    If the files say how tokens are pooled, BERT's pooler output is not used.
    """
    by_name = {spec.name: spec for spec in facts.outputs}
    candidates = list(OUTPUT_NAMES)
    if facts.beside(POOLING) is not None:
        candidates = list(TOKEN_OUTPUTS)
    if len(by_name) == 1:
        candidates += by_name
    if name:
        candidates = [name]
    for candidate in candidates:
        if candidate in by_name:
            return by_name[candidate]
    raise ModelLoadError(
        f"model.toml: task {NAME}: text.output must be one of {', '.join(by_name)}"
    )


def _comparison(body: memoryview) -> dict[str, Any] | None:
    """Return a request with a query; None for any other."""
    if first_sign(body[:64]) != b"{":
        return None
    try:
        content = strict_json.loads_object(body)
    except ApiError:
        return None  # a text that starts with a brace
    if content.keys() != {"query", "texts"} or not isinstance(content["query"], str):
        return None
    return content


INDEX = AnswerField("index", "integer", "the number of the text, from 0")
VECTOR = AnswerField("embedding", "reals", "its vector")
COSINE = AnswerField("score", "real", "the cosine, from -1 to 1")
CALLS = (
    TaskCall("embed", "text", "Embedding", (INDEX, VECTOR)),
    TaskCall("compare", "comparison", "Match", (INDEX, COSINE)),
)
TASK = TaskDefinition(NAME, None, TextEmbedding, (TEXT,), calls=CALLS)
