"""Ranking: a row of numbers becomes the likeliest labels, for tasks on sound, text and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import AnswerOptions, Arrays
from pocketserve.tasks.foreign.activations import configured_activation
from pocketserve.tasks.labels import Labels, find_labels, label_of, mismatch
from pocketserve.tasks.model_facts import ModelFacts, named_tensor
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.scores import (
    Calibration,
    ClassificationOptions,
    activate,
    calibration_of,
    real_values,
    threshold_of,
)
from pocketserve.tensors import Array, TensorSpec

TOP_K = 5
_SCORE_NAMES = ("scores", "logits", "probability", "probabilities")
_OUTPUT_KEYS = {
    "audio-classification": "audio.output",
    "image-classification": "classification.output",
    "text-classification": "text.output",
    "tabular-classification": "scores, in [[outputs]]",
}
"""Where a manifest says which output has the scores."""


class Ranking(NamedTuple):
    """The way from an output to labels with scores."""

    spec: TensorSpec  # the output, its last axis the classes
    labels: Labels
    options: ClassificationOptions  # the manifest's ``[classification]``, completed by what the files say
    calibration: Calibration | None = None
    keys: str = ""  # the output with the classes' names, as scikit-learn's classifiers in ONNX have one; else empty

    def with_labels_of(self, run: Arrays) -> Ranking:
        """Return the ranking with the class names that a run's outputs have, if they do."""
        names = self.names_in(run)
        if not names or (self.labels.names and are_numbers(names)):
            return self
        return self._replace(labels=Labels(names))

    def names_in(self, run: Arrays) -> Sequence[str]:
        """Return the class names that a run's outputs have; empty if they have none."""
        if not self.keys:
            return ()
        keys = run[self.keys].tolist()
        return [
            key.decode(errors="replace") if isinstance(key, bytes) else str(key)
            for key in keys
        ]

    @property
    def problem(self) -> str:
        """The fault of the labels; empty if there is none."""
        return mismatch(
            self.labels,
            self.spec.shape[-1] if self.spec.shape else 1,
            self.options.label_offset,
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters that :meth:`best` reads."""
        return (*self.score_parameters, *self.labels.parameters)

    @property
    def score_parameters(self) -> tuple[Parameter, ...]:
        """Return those of :attr:`parameters` that choose entries by their score."""
        return parameter("top_k", default=TOP_K), parameter(
            "threshold", default=self.options.threshold
        )

    def rows(self, array: Array) -> Array:
        """Return scores, float64 [rows, classes]; one number for two labels is the probability of the second."""
        values = real_values(array, self.spec)
        classes = values.shape[-1] if values.ndim else 1
        rows = values.reshape(-1, classes) if values.size else np.zeros((0, classes))
        rows = activate(rows.astype(np.float64), self.options.activation)
        if classes == 1 and len(self.labels.names) == 2:
            rows = np.concatenate([1 - rows, rows], axis=1)
        if self.calibration is not None:
            rows = np.array([self.calibration.apply(row) for row in rows]).reshape(
                rows.shape
            )
        return rows

    def best(
        self, row: Array, options: AnswerOptions, /, **more: Any
    ) -> list[dict[str, Any]]:
        """Return ``{"label", "index", "score"}`` of the best classes, ties in order of the class; ``more`` in each."""
        threshold = (
            self.options.threshold if options.threshold is None else options.threshold
        )
        floor = -np.inf if threshold is None else threshold
        names = self.labels.in_language(options.language)
        shift = self.options.label_offset
        order = np.argsort(-row, kind="stable")[
            : TOP_K if options.top_k is None else options.top_k
        ]
        return [
            {
                **more,
                "label": label_of(names, int(index) + shift),
                "index": int(index),
                "score": float(row[index]),
            }
            for index in order
            if row[index] >= floor and np.isfinite(row[index])
        ]


def ranking_of(facts: ModelFacts, name: str, task: str) -> Ranking:
    """Set up with the manifest's ``[classification]``, labels and what the files say of an output; see
    :func:`_output_number`.
    """
    number = _output_number(
        facts, name or facts.manifest.section(ClassificationOptions).output, task
    )
    metadata = facts.output_metadata(number)
    labels = find_labels(facts, number if metadata.associated_files else None)
    spec = facts.outputs[number]
    keys = "" if facts.manifest.labels is not None else keys_of(facts, spec.name)
    if not labels.names and not keys:
        labels = Labels(_names_in_graph(facts, spec))
    options = _options(facts, spec, len(labels.names), task)
    if options.threshold is None:
        options = options._replace(threshold=threshold_of(metadata))
    return Ranking(spec, labels, options, calibration_of(facts, number), keys)


def _names_in_graph(facts: ModelFacts, spec: TensorSpec) -> Sequence[str]:
    """Return the class names that the graph shows for the columns of an output; empty if there are none."""
    columns = spec.shape[-1] if spec.shape else 1
    for name in (spec.name, *spec.aliases, *facts.class_outputs):
        graph_output = facts.class_outputs.get(name)
        if (
            graph_output is not None
            and len(graph_output.targets) == 1
            and len(graph_output.targets[0]) == columns
        ):
            return graph_output.targets[0]
    return ()


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether class names are no more than the numbers of the columns."""
    return all(name == str(number) for number, name in enumerate(names))


def _output_number(facts: ModelFacts, name: str, task: str) -> int:
    """Return which output holds the scores: the named one, the only one, else the one with labels or a usual name."""
    names = [spec.name for spec in facts.outputs]
    if name:
        return facts.outputs.index(
            named_tensor(facts.outputs, _OUTPUT_KEYS.get(task, ""), name)
        )
    if len(names) == 1:
        return 0
    signs = (
        [
            bool(facts.output_metadata(number).associated_files)
            for number in range(len(names))
        ],
        [is_score_name(output) for output in names],
        [bool(keys_of(facts, output)) for output in names],
    )
    for sign in signs:
        if sum(sign) == 1:
            return sign.index(True)
    listed = ", ".join(names)
    raise ModelLoadError(
        f"model.toml: task {task}: the model has {len(names)} outputs ({listed}); name one as {_OUTPUT_KEYS[task]}"
    )


def is_score_name(name: str) -> bool:
    """Return whether converters give this name to an output of scores."""
    return name.casefold() in _SCORE_NAMES


def keys_of(facts: ModelFacts, name: str) -> str:
    """Return the output with the class names of an output of scores; empty if there is none.

    It is the keys of a map, or what sklearn-onnx writes with ``output_class_labels=True``.
    """
    names = [spec.name for spec in facts.outputs]
    keys = (
        name.removesuffix(".values") + ".keys"
        if name.endswith(".values")
        else "class_labels"
    )
    return keys if keys in names else ""


def _options(
    facts: ModelFacts, spec: TensorSpec, labels: int, task: str
) -> ClassificationOptions:
    """Complete the manifest's ``[classification]`` by the files beside the model, key by key."""
    options = facts.manifest.section(ClassificationOptions)
    if options.activation is not None:
        return options
    classes = spec.shape[-1] if spec.shape and not spec.open else -1
    return options._replace(
        activation=configured_activation(
            facts, task, classes if classes > 0 else labels
        )
    )
