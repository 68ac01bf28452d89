"""Items that somebody has liked in, items that they may like next out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import numpy as np

from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.arrays import first_sign
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
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
    """The manifest's ``[items]``; see ``docs/tasks.md``. Names are needed where the model has several tensors."""

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
    """Return a main tensor, named or the only one beside the second, and the second, if there is one."""
    by_name = {spec.name: spec for spec in specs}
    first = [main] if main else [name for name in by_name if name not in second]
    if len(first) != 1 or len(second) > 1 or not {*first, *second} <= by_name.keys():
        raise ModelLoadError(
            f"model.toml: task {NAME}: name {keys} of {', '.join(by_name)}"
        )
    return by_name[first[0]], by_name[second[0]] if second else None


class Recommendation:
    """Takes a JSON list of items, or ``{"items": [...], "user": 5}``; items are numbers or titles in ``labels``."""

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(ItemsOptions)
        names = [spec.name for spec in facts.inputs]
        users = (
            [options.user_input]
            if options.user_input
            else [name for name in names if "user" in name.casefold()]
        )
        self._spec, self._user = _pair(
            facts.inputs, options.input, users, "items.input and items.user_input"
        )
        # A model that ranks by itself has an output of integers.
        ids = [
            spec.name
            for spec in facts.outputs
            if spec.datatype in ("INT32", "INT64") and len(facts.outputs) == 2
        ]
        ids = [options.ids_output] if options.ids_output else ids
        self._outputs = _pair(
            facts.outputs, options.output, ids, "items.output and items.ids_output"
        )
        self._activation = facts.manifest.section(ClassificationOptions).activation
        self._labels = find_labels(facts)
        self.labels = self._labels.names
        self._by_title = {
            title.strip().casefold(): index
            for index, title in enumerate(self.labels)
            if title.strip()
        }

    def structure(self) -> dict[str, Any]:
        return {"labels": answer_labels(self.labels), "user": self._user is not None}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        if first_sign(body) not in (b"[", b"{"):
            raise invalid_input(
                'this model takes a JSON list of items, or {"items": [...]}'
            )
        content = strict_json.loads(body)
        content = {"items": content} if isinstance(content, list) else content
        keys = ("items", "user") if self._user is not None else ("items",)
        unknown = [name for name in content if name not in keys]
        if unknown:
            raise invalid_input(
                f"unknown key {unknown[0]!r:.80}; this model takes {' and '.join(keys)}"
            )
        items, user = content.get("items"), content.get("user")
        if not isinstance(items, list) or not 0 < len(items) <= MAX_ITEMS:
            raise invalid_input(
                f"items must be a list of 1 to {MAX_ITEMS} numbers or titles"
            )
        numbers = [self._number(item) for item in items]
        arrays = {self._spec.name: self._array(numbers)}
        if self._user is not None:
            if type(user) is not int or not 0 <= user < 2**31:
                raise invalid_input(
                    'this model needs the user\'s number: {"items": [...], "user": 5}'
                )
            shape = [1] * len(self._user.shape)
            arrays[self._user.name] = np.full(
                shape, user, DATATYPES[self._user.datatype].typestr
            )
        return Prepared([arrays], frozenset(numbers))

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first, without the items of the request."""
        scores, ids = self._outputs
        row = activate(
            real_values(runs[0][scores.name], scores).reshape(-1).astype(np.float64),
            self._activation,
        )
        items = (
            np.arange(len(row))
            if ids is None
            else runs[0][ids.name].reshape(-1).astype(np.int64)
        )
        names = self._labels.in_language(options.language)
        excluded = {
            *(context if self._options.exclude_seen else ()),
            self._options.padding,
            NO_ITEM,
        }
        threshold = -np.inf if options.threshold is None else options.threshold
        ranked = (
            (int(items[index]), float(row[index]))
            for index in np.argsort(-row, kind="stable")
        )
        best = (
            (item, score)
            for item, score in ranked
            if item not in excluded and score >= threshold
        )
        return [
            {"label": label_of(names, item), "index": item, "score": score}
            for item, score in islice(
                best, TOP_K if options.top_k is None else options.top_k
            )
        ]

    def form(self) -> Form:
        """Return what the task takes."""
        parameters = (
            parameter("top_k", default=TOP_K),
            parameter("threshold"),
            *self._labels.parameters,
        )
        return Form(("items",), parameters)

    def describe(self) -> dict[str, str]:
        user = ', or {"items": [...], "user": 5}' if self._user is not None else ""
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
        """Return the items in the input's shape: the last ones that fit, filled up with the padding."""
        size = self._spec.shape[-1] if self._spec.shape else -1
        if size > 0:
            numbers = numbers[-size:]
            filling = [self._options.padding or 0] * (size - len(numbers))
            numbers = (
                filling + numbers if self._options.pad == "left" else numbers + filling
            )
        shape = (1,) * (len(self._spec.shape) - 1) + (len(numbers),)
        return np.asarray(numbers, DATATYPES[self._spec.datatype].typestr).reshape(
            shape
        )


ITEMS = Section("items", ItemsOptions)
FIELDS = (
    AnswerField("label", "label", "the item"),
    AnswerField("score", "real", "how well it fits, by the model's scale"),
)
CALL = TaskCall("recommend", "items", "Recommendation", FIELDS)
TASK = TaskDefinition(
    NAME, None, Recommendation, (ITEMS, CLASSIFICATION), calls=(CALL,)
)
