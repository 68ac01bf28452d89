"""Read a row classifier's outputs: winning classes, scores and column names.

Converters write a winner (``label``) beside the scores, whose columns have no names. A
column's number is a class name only if the graph says so: a model's classes may be 10,
20 and 30, or -1 and 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ClassOutput
from pocketserve.tasks.base import AnswerOptions, Arrays
from pocketserve.tasks.labels import Labels, label_of
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import (
    TOP_K,
    Ranking,
    are_numbers,
    is_score_name,
    keys_of,
    ranking_of,
)
from pocketserve.tensors import Array, TensorSpec

MAX_TARGETS = 1000
_REAL = ("FP16", "FP32", "FP64")
_NO_LABELS = (".keys", ".shapes", "class_labels")
_COLUMN_PREFIXES = {"BYTES": "s", "INT64": "i"}
"""Prefixes of the output names that sklearn-onnx gives to one score column each (``zipmap="columns"``)."""

_OUTLIER_CLASSES = (("-1", "1"), ("0", "1"))


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """A target of a classifier: each row has one class of it.

    Attributes:
        name: its name; empty for the only target.
        label: the output with the winning classes; None if the model has none.
        scores: the output with all scores, one output for each column, or no output.
        number: the position among several targets that share outputs.
        count: the number of targets that share outputs.
        classes: class names by score column from the graph; None if it has none.
        ranking: the owner's or a file's labels, and options for scores.
        owner_names: whether the manifest names the labels, which then replace the graph's.
    """

    name: str
    label: TensorSpec | None
    scores: tuple[TensorSpec, ...]
    number: int
    count: int
    classes: ClassOutput | None
    ranking: Ranking
    owner_names: bool

    @property
    def names(self) -> Sequence[str]:
        """Return class names by index, as far as known before a run."""
        own = self._graph_names(self._column_count())
        return self._shown_names(own, self.ranking.labels.names)

    @property
    def problem(self) -> str:
        """Return the labels' fault; empty if the graph's own names are used."""
        if self.names is self.ranking.labels.names:
            return self.ranking.problem
        return ""

    def table(self, run: Arrays, rows: int) -> TargetTable:
        """Return the winners and scores of all rows."""
        winners = self._winners(run, rows)
        scores = self._scores(run, rows)
        if scores is None:
            return TargetTable(self, winners, None, self._graph_names(0))
        if len(scores) != rows:
            winners = None  # the model's rows are not the request's
        keys = self.ranking.names_in(run)
        own = self._graph_names(scores.shape[1])
        if keys and sorted(keys) == sorted(own):
            # The keys of a map are sorted, the model's classes need not be.
            columns = _first_positions(keys)
            scores = scores[:, [columns[name] for name in own]]
        return TargetTable(self, winners, scores, own or keys)

    def shown_names(self, own: Sequence[str], language: str | None) -> Sequence[str]:
        """Return an answer's class names: the owner's, the model's or a file's."""
        return self._shown_names(own, self.ranking.labels.in_language(language))

    def _shown_names(self, own: Sequence[str], labels: Sequence[str]) -> Sequence[str]:
        if not labels or self.owner_names:
            return labels or own
        if are_numbers(own):
            return labels
        return own

    def _column_count(self) -> int:
        if len(self.scores) != 1:
            return len(self.scores)
        shape = self.scores[0].shape
        if len(shape) > 1:
            return shape[-1]
        return 1

    def _graph_names(self, columns: int) -> Sequence[str]:
        """Return the graph's class names by column.

        They are empty if the graph has none for this count.
        """
        if self.classes is None or len(self.classes.targets) <= self.number:
            return ()
        names = self.classes.targets[self.number]
        if not names:
            return tuple(str(column) for column in range(max(columns, 0)))
        if columns in (len(names), 0, 1, -1):
            return names
        return ()

    def _winners(self, run: Arrays, rows: int) -> Sequence[str] | None:
        if self.label is None:
            return None
        values = run[self.label.name]
        if not rows or values.size != rows * self.count:
            return None
        column = values.reshape(rows, self.count)[:, self.number]
        return [_text(value) for value in column.tolist()]

    def _scores(self, run: Arrays, rows: int) -> Array | None:
        """Return the scores of all rows; None without an output of scores."""
        if not self.scores:
            return None
        ranking = self.ranking
        if self.label is not None:
            ranking = ranking._replace(labels=Labels())
        if len(self.scores) > 1:
            columns = [run[spec.name].reshape(-1) for spec in self.scores]
            return ranking.rows(np.stack(columns, axis=1))
        array = self._score_array(run)
        if rows and array.size % rows == 0:
            array = array.reshape(rows, -1)
        return ranking.rows(array)

    def _score_array(self, run: Arrays) -> Array:
        """Return this target's part of the only output of scores."""
        name = self.scores[0].name
        array = run[name]
        if self.count == 1:
            return array
        shapes = run.get(f"{name}.shapes")
        array = _part_of_target(array, shapes, self.number, self.count)
        # Converters pad the columns of targets with fewer classes.
        classes = len(self._graph_names(0)) or array.shape[-1]
        return array[..., :classes]


@dataclass(frozen=True, eq=False)
class TargetTable:
    """The winners and scores of one target.

    Attributes:
        winners: one per row; None if the model has no such output.
        scores: [rows, columns], or None.
        own_names: the model's class names by column; empty if unknown.
    """

    target: ClassTarget
    winners: Sequence[str] | None
    scores: Array | None
    own_names: Sequence[str]

    def __len__(self) -> int:
        """Return the number of rows."""
        if self.scores is not None:
            return len(self.scores)
        if self.winners is None:
            return 0
        return len(self.winners)

    def best(
        self, row: int, options: AnswerOptions, more: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return ``{"label", "index", "score"}`` of a row's best classes.

        The winner comes first. ``more`` has further keys of each entry.
        """
        winner = None
        if self.winners is not None:
            winner = self.winners[row]
        names = self.target.shown_names(self.own_names, options.language)
        index = self._column_of(winner, len(names))
        label = self._winner_name(winner, names, index)
        if self.scores is None:
            return [{**more, "label": label, "index": index or 0}]
        scores = self.scores[row]
        if winner is not None and (len(scores) == 1 or not names):
            column = int(np.argmax(scores))
            entry = {
                **more,
                "label": label,
                "index": index or column,
                "score": float(scores[column]),
            }
            return self._above_threshold([entry], options)
        entries = self._ranked(scores, winner, names, options, more)
        return self._above_threshold(entries, options)

    def _above_threshold(
        self, entries: Sequence[dict[str, Any]], options: AnswerOptions
    ) -> list[dict[str, Any]]:
        """Return the entries with a finite score from the threshold on."""
        threshold = options.threshold
        if threshold is None:
            threshold = self.target.ranking.options.threshold
        if threshold is None:
            threshold = -np.inf
        selected = []
        for entry in entries:
            if entry["score"] >= threshold and np.isfinite(entry["score"]):
                selected.append(entry)
        return selected

    def _ranked(
        self,
        scores: Array,
        winner: str | None,
        names: Sequence[str],
        options: AnswerOptions,
        more: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Return an entry for each of the best classes."""
        shift = 0
        if names is not self.own_names:
            shift = self.target.ranking.options.label_offset
        if self._is_reversed(scores, winner):
            scores = scores[::-1]
        top_k = options.top_k
        if top_k is None:
            top_k = TOP_K
        entries = []
        for column in self._order(scores, winner)[:top_k]:
            label = label_of(names, column + shift)
            score = float(scores[column])
            entries.append({**more, "label": label, "index": column, "score": score})
        return entries

    def _is_reversed(self, scores: Array, winner: str | None) -> bool:
        """Return whether two decision values are in swapped columns.

        sklearn-onnx writes those of SVC so: opposite values, with the winner's negative.
        """
        column = self._column_of(winner, len(scores))
        if column is None or len(scores) != 2:
            return False
        return bool(scores[0] == -scores[1] and scores[column] < 0)

    def _order(self, scores: Array, winner: str | None) -> list[int]:
        """Return columns, best first.

        The model's own winner precedes higher scores.
        """
        classes = self.target.classes
        keys = -scores
        if classes is not None and classes.lowest_wins:
            keys = scores
        order: list[int] = np.argsort(keys, kind="stable").tolist()
        column = self._column_of(winner, len(scores))
        if column is not None and column < len(order) and column != order[0]:
            order.remove(column)
            order.insert(0, column)
        return order

    def _column_of(self, winner: str | None, count: int) -> int | None:
        """Return a class's column; None if unknown."""
        if winner is None:
            return None
        if winner in self._columns:
            return self._columns[winner]
        for classes in _OUTLIER_CLASSES:
            if winner in classes and count == len(classes):
                return classes.index(winner)
        return None

    @functools.cached_property
    def _columns(self) -> dict[str, int]:
        """Columns by class; the model's names take precedence over the owner's."""
        owner_columns = _first_positions(self.target.ranking.labels.names)
        return {**owner_columns, **_first_positions(self.own_names)}

    def _winner_name(
        self, winner: str | None, names: Sequence[str], column: int | None
    ) -> str:
        if column is not None and column < len(names):
            return label_of(names, column)
        return winner or ""


def class_targets(facts: ModelFacts, task: str) -> list[ClassTarget]:
    """Return a row classifier's targets; usually there is one.

    Raises:
        ModelLoadError: the model's outputs can't be told apart.
    """
    labels = _label_outputs(facts)
    scores = [spec for spec in facts.outputs if spec.datatype in _REAL]
    if not labels:
        ranking = ranking_of(facts, "", task)
        return [_target(facts, "", None, (ranking.spec,), ranking)]
    if len(labels) > 1:
        return _targets_of_pairs(facts, labels, scores, task)
    label = labels[0]
    count = _target_count(facts, label)
    if count > 1:
        return _targets_of_one_output(facts, label, scores, count, task)
    columns = _score_outputs(facts, scores, task)
    ranking = _ranking_of_outputs(facts, label, columns, task)
    return [_target(facts, "", label, columns, ranking)]


def _ranking_of_outputs(
    facts: ModelFacts, label: TensorSpec, scores: Sequence[TensorSpec], task: str
) -> Ranking:
    """Return the ranking of the first output of scores, else of the winners."""
    spec = label
    if scores:
        spec = scores[0]
    return ranking_of(facts, spec.name, task)


def _targets_of_one_output(
    facts: ModelFacts,
    label: TensorSpec,
    scores: Sequence[TensorSpec],
    count: int,
    task: str,
) -> list[ClassTarget]:
    """Return several targets whose winners are columns of one output."""
    names = facts.manifest.target_names
    if len(names) != count:
        names = tuple(f"{label.name}[{number}]" for number in range(count))
    columns = tuple(scores[:1])
    ranking = _ranking_of_outputs(facts, label, columns, task)
    targets = []
    for number, name in enumerate(names):
        targets.append(_target(facts, name, label, columns, ranking, number, count))
    return targets


def answers_classes(facts: ModelFacts) -> bool:
    """Return whether the outputs are winners and scores of a converted classifier."""
    labels = _label_outputs(facts)
    scores = [spec for spec in facts.outputs if spec.datatype in _REAL]
    if len(labels) != 1 or not scores or not _is_marked_label(facts, labels[0]):
        return False
    return all(len(spec.shape) <= 2 for spec in scores)


def _label_outputs(facts: ModelFacts) -> list[TensorSpec]:
    """Return the outputs with winning classes, without integers such as tree leaves."""
    labels = [spec for spec in facts.outputs if _is_label(facts, spec)]
    marked = [spec for spec in labels if _is_marked_label(facts, spec)]
    if len(marked) == 1:
        return marked
    return labels


def _is_marked_label(facts: ModelFacts, spec: TensorSpec) -> bool:
    """Return whether graph or name show that an output has classes."""
    graph_output = _class_output(facts, spec)
    if graph_output is not None and graph_output.is_label:
        return True
    return "label" in spec.name.casefold()


def _targets_of_pairs(
    facts: ModelFacts,
    labels: Sequence[TensorSpec],
    scores: Sequence[TensorSpec],
    task: str,
) -> list[ClassTarget]:
    """Pair outputs of winners and of scores by position."""
    if scores and len(scores) != len(labels):
        listed = ", ".join(spec.name for spec in facts.outputs)
        raise ModelLoadError(
            f"model.toml: task {task}: the model has {len(labels)} outputs of classes "
            f"and {len(scores)} of scores ({listed}); it needs as many of both"
        )
    names = facts.manifest.target_names
    if len(names) != len(labels):
        names = tuple(spec.name for spec in labels)
    targets = []
    for number, label in enumerate(labels):
        columns = tuple(scores[number : number + 1])
        ranking = _ranking_of_outputs(facts, label, columns, task)
        ranking = ranking._replace(labels=Labels())
        targets.append(_target(facts, names[number], label, columns, ranking))
    return targets


def _target(
    facts: ModelFacts,
    name: str,
    label: TensorSpec | None,
    scores: tuple[TensorSpec, ...],
    ranking: Ranking,
    number: int = 0,
    count: int = 1,
) -> ClassTarget:
    """Return a target of these outputs."""
    if count > 1:
        ranking = ranking._replace(labels=Labels())
    if scores:
        ranking = ranking._replace(keys=keys_of(facts, scores[0].name))
    return ClassTarget(
        name=name,
        label=label,
        scores=scores,
        number=number,
        count=count,
        classes=_classes_of_outputs(facts, label, scores),
        ranking=ranking,
        owner_names=facts.manifest.labels is not None and bool(ranking.labels.names),
    )


def _classes_of_outputs(
    facts: ModelFacts, label: TensorSpec | None, scores: Sequence[TensorSpec]
) -> ClassOutput | None:
    """Return the classes in the graph, else in the names of several outputs."""
    classes = None
    if label is not None:
        classes = _class_output(facts, label)
    if classes is None and scores:
        classes = _class_output(facts, scores[0])
    if classes is None and len(scores) > 1 and label is not None:
        classes = ClassOutput((_names_of_columns(label, scores),))
    return classes


def _names_of_columns(
    label: TensorSpec, scores: Sequence[TensorSpec]
) -> tuple[str, ...]:
    """Return class names from output names, without sklearn-onnx's prefix."""
    prefix = _COLUMN_PREFIXES.get(label.datatype, "")
    names = [spec.name for spec in scores]
    if prefix and all(name.startswith(prefix) and len(name) > 1 for name in names):
        names = [name[1:] for name in names]
    return tuple(names)


def _class_output(facts: ModelFacts, spec: TensorSpec) -> ClassOutput | None:
    """Return the graph's facts of an output, which the manifest may rename."""
    own_name = spec.name.removesuffix(".values")
    for name in (own_name, *spec.aliases):
        if name in facts.class_outputs:
            return facts.class_outputs[name]
    return None


def _is_label(facts: ModelFacts, spec: TensorSpec) -> bool:
    """Return whether an output has the winning class of each row."""
    if spec.datatype in _REAL or spec.quantization is not None or len(spec.shape) > 2:
        return False
    if spec.name.endswith(_NO_LABELS):
        return False
    if len(facts.outputs) > 1 or spec.datatype == "BYTES":
        return True
    graph_output = _class_output(facts, spec)
    if graph_output is not None and graph_output.is_label:
        return True
    return len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] == 1)


def _target_count(facts: ModelFacts, label: TensorSpec) -> int:
    """Return the number of targets whose winners an output has."""
    graph_output = _class_output(facts, label)
    if graph_output is not None and graph_output.is_label:
        count = len(graph_output.targets)
        if count > 1:
            return count
    if len(label.shape) != 2 or label.shape[0] == 1:
        return 1
    if 1 < label.shape[1] <= MAX_TARGETS:
        return label.shape[1]
    return 1


def _score_outputs(
    facts: ModelFacts, scores: Sequence[TensorSpec], task: str
) -> tuple[TensorSpec, ...]:
    """Return the output of scores, or one output for each class."""
    if len(scores) < 2:
        return tuple(scores)
    usual = []
    for spec in scores:
        if is_score_name(spec.name) or keys_of(facts, spec.name):
            usual.append(spec)
    if len(usual) == 1:
        return (usual[0],)
    if all(len(spec.shape) == 1 or spec.shape[1:] == (1,) for spec in scores):
        return tuple(scores)
    return (ranking_of(facts, "", task).spec,)


def _part_of_target(
    array: Array, shapes: Array | None, number: int, count: int
) -> Array:
    """Return the scores of one of several targets.

    Args:
        array: [targets, rows, classes], [rows, targets, classes], [rows, targets], or flat.
        shapes: [targets, 2], if the targets differ in their number of classes.
    """
    if array.ndim == 1 and shapes is not None:
        sizes = shapes.prod(axis=1)
        start = int(sizes[:number].sum())
        return array[start : start + int(sizes[number])].reshape(shapes[number])
    if array.ndim == 3:
        return array[number] if array.shape[0] == count else array[:, number]
    return array.reshape(-1, count)[:, number : number + 1]


def _first_positions(names: Sequence[str]) -> dict[str, int]:
    """Return the position of each name, the first if it occurs twice."""
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, position)
    return positions


def _text(value: object) -> str:
    """Return a class as text: a float such as 1.0 as ``1``."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
