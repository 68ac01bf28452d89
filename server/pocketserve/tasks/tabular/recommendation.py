"""Recommend items to somebody who liked other items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from pocketserve.repository.toml_table import Section, TomlTable
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
    invalid_input,
)
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels, find_labels, label_of
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.scores import (
    CLASSIFICATION,
    ClassificationOptions,
    activate,
    real_values,
)
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES, strict_json

NAME = "recommendation"
TOP_K = 10
MAX_ITEMS = 10_000
NO_ITEM = -1


class ItemsOptions(NamedTuple):
    """The manifest's ``[items]``; see ``docs/tasks.md``.

    Names are needed if the model has several tensors.
    """

    input: Annotated[str, TomlTable.text] = ""
    user_input: Annotated[str, TomlTable.text] = ""
    output: Annotated[str, TomlTable.text] = ""
    ids_output: Annotated[str, TomlTable.text] = ""
    padding: Annotated[int | None, TomlTable.integer, -(2**31), 2**31 - 1] = None
    pad: Annotated[str, TomlTable.choice, ("right", "left")] = "right"
    exclude_seen: Annotated[bool, TomlTable.flag] = True


def _pair(
    specs: Sequence[TensorSpec], main: str, second: list[str], keys: str
) -> tuple[TensorSpec, TensorSpec | None]:
    """Return the main tensor and the optional second one.

    The main tensor is the named one, else the only one beside the second.
    """
    by_name = {spec.name: spec for spec in specs}
    first = [main] if main else [name for name in by_name if name not in second]
    if len(first) != 1 or len(second) > 1 or not {*first, *second} <= by_name.keys():
        raise ModelLoadError(
            f"model.toml: task {NAME}: name {keys} of {', '.join(by_name)}"
        )
    return by_name[first[0]], by_name[second[0]] if second else None


class Recommendation:
    """Take a JSON list of items, or ``{"items": [...], "user": 5}``.

    Items are numbers, or titles in ``labels``.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(ItemsOptions)
        users = _named_or(options.user_input, _user_inputs(facts))
        self._spec, self._user = _pair(
            facts.inputs, options.input, users, "items.input and items.user_input"
        )
        ids = _named_or(options.ids_output, _ids_outputs(facts))
        self._outputs = _pair(
            facts.outputs, options.output, ids, "items.output and items.ids_output"
        )
        self._activation = facts.manifest.section(ClassificationOptions).activation
        self._labels = find_labels(facts)
        self.labels = self._labels.names
        self._by_title: dict[str, int] = {}
        for index, title in enumerate(self.labels):
            if title.strip():
                self._by_title[title.strip().casefold()] = index

    def structure(self) -> dict[str, Any]:
        return {"labels": answer_labels(self.labels), "user": self._user is not None}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        if first_sign(body) not in (b"[", b"{"):
            raise invalid_input(
                'this model takes a JSON list of items, or {"items": [...]}'
            )
        content = strict_json.loads(body)
        if isinstance(content, list):
            content = {"items": content}
        self._check_keys(content)
        items = content.get("items")
        if not isinstance(items, list) or not 0 < len(items) <= MAX_ITEMS:
            raise invalid_input(
                f"items must be a list of 1 to {MAX_ITEMS} numbers or titles"
            )
        numbers = [self._number(item) for item in items]
        arrays = {self._spec.name: self._array(numbers)}
        if self._user is not None:
            arrays[self._user.name] = _user_array(self._user, content.get("user"))
        return Prepared([arrays], frozenset(numbers))

    def _check_keys(self, content: Iterable[str]) -> None:
        """Reject a request with other keys than those of this model."""
        keys = ["items"]
        if self._user is not None:
            keys.append("user")
        for key in content:
            if key not in keys:
                raise invalid_input(
                    f"unknown key {key!r:.80}; this model takes {' and '.join(keys)}"
                )

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first.

        The request's items are left out.
        """
        row, items = self._scored_items(runs[0])
        excluded = {self._options.padding, NO_ITEM}
        if self._options.exclude_seen:
            excluded |= context
        names = self._labels.in_language(options.language)
        top_k = options.top_k
        if top_k is None:
            top_k = TOP_K
        threshold = options.threshold
        if threshold is None:
            threshold = -np.inf
        entries: Answer = []
        for position in np.argsort(-row, kind="stable"):
            if len(entries) >= top_k:
                break
            item = int(items[position])
            score = float(row[position])
            if item not in excluded and score >= threshold:  # not NaN
                label = label_of(names, item)
                entries.append({"label": label, "index": item, "score": score})
        return entries

    def _scored_items(self, run: Arrays) -> tuple[Array, Array]:
        """Return all scores, and the items that they belong to."""
        scores, ids = self._outputs
        values = real_values(run[scores.name], scores).reshape(-1)
        row = activate(values.astype(np.float64), self._activation)
        items = np.arange(len(row))
        if ids is not None:
            items = run[ids.name].reshape(-1).astype(np.int64)
        return row, items

    def form(self) -> Form:
        """Return the task's input and parameters."""
        parameters = (
            parameter("top_k", default=TOP_K),
            parameter("threshold"),
            *self._labels.parameters,
        )
        return Form(("items",), parameters)

    def describe(self) -> dict[str, str]:
        user = ""
        if self._user is not None:
            user = ', or {"items": [...], "user": 5}'
        return {
            "input": f"a JSON list of items by number or title{user}",
            "preprocessing": "none",
            "answer": "items with scores, best first, without those of the request",
            "content_type": "application/json",
            "example": "items.json",
        }

    def _number(self, item: Any) -> int:
        if isinstance(item, str):
            number = self._by_title.get(item.strip().casefold())
            if number is None:
                raise invalid_input(
                    f"unknown item {item[:80]!r}; items are numbers or titles of the model's labels"
                )
            return number
        limits = np.iinfo(np.int32 if self._spec.datatype == "INT32" else np.int64)
        maximum = len(self.labels) - 1 if self.labels else int(limits.max)
        if type(item) is not int or not 0 <= item <= maximum:
            raise invalid_input(
                f"item {item!r:.40} must be a number from 0 to {maximum}, or a title"
            )
        return item

    def _array(self, numbers: list[int]) -> Array:
        """Return the last items that fit, padded."""
        rank = len(self._spec.shape)
        size = -1
        if rank:
            size = self._spec.shape[-1]
        if size > 0:
            numbers = self._padded(numbers[-size:], size)
        array = np.asarray(numbers, DATATYPES[self._spec.datatype].typestr)
        shape = [1] * (rank - 1)
        return array.reshape((*shape, len(numbers)))

    def _padded(self, numbers: list[int], size: int) -> list[int]:
        """Return items with padding up to a size."""
        padding = self._options.padding or 0
        filling = [padding] * (size - len(numbers))
        if self._options.pad == "left":
            return filling + numbers
        return numbers + filling


def _named_or(name: str, others: list[str]) -> list[str]:
    if name:
        return [name]
    return others


def _user_inputs(facts: ModelFacts) -> list[str]:
    return [spec.name for spec in facts.inputs if "user" in spec.name.casefold()]


def _ids_outputs(facts: ModelFacts) -> list[str]:
    """Return the outputs with ranked item numbers."""
    if len(facts.outputs) != 2:
        return []
    return [spec.name for spec in facts.outputs if spec.datatype in ("INT32", "INT64")]


def _user_array(spec: TensorSpec, user: object) -> Array:
    if type(user) is not int or not 0 <= user < 2**31:
        raise invalid_input(
            'this model needs the user\'s number: {"items": [...], "user": 5}'
        )
    shape = [1] * len(spec.shape)
    return np.full(shape, user, DATATYPES[spec.datatype].typestr)


ITEMS = Section("items", ItemsOptions)
FIELDS = (
    AnswerField("label", "label", "the item"),
    AnswerField("score", "real", "the score on the model's scale"),
)
CALL = TaskCall("recommend", "items", "Recommendation", FIELDS)
TASK = TaskDefinition(
    NAME, None, Recommendation, (ITEMS, CLASSIFICATION), calls=(CALL,)
)
