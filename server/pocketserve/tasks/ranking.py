"""Rank rows of scores for tasks on sound, text and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import TensorMetadata
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
"""The manifest's key for the output with the scores, by task."""


class Ranking(NamedTuple):
    """The conversion of an output to labels with scores.

    Attributes:
        spec: the output; its last axis is the classes.
        options: the manifest's ``[classification]``, completed by the model's files.
        keys: the output with the class names, as of scikit-learn's classifiers in ONNX;
            empty without one.
    """

    spec: TensorSpec
    labels: Labels
    options: ClassificationOptions
    calibration: Calibration | None = None
    keys: str = ""

    def with_labels_of(self, run: Arrays) -> Ranking:
        """Return the ranking with a run's class names."""
        names = self.names_in(run)
        if not names or (self.labels.names and are_numbers(names)):
            return self
        return self._replace(labels=Labels(names))

    def names_in(self, run: Arrays) -> Sequence[str]:
        """Return the class names in a run's outputs; empty without any."""
        if not self.keys:
            return ()
        names = []
        for key in run[self.keys].tolist():
            is_bytes = isinstance(key, bytes)
            names.append(key.decode(errors="replace") if is_bytes else str(key))
        return names

    @property
    def problem(self) -> str:
        """Return the labels' fault; empty if there is none."""
        classes = 1
        if self.spec.shape:
            classes = self.spec.shape[-1]
        return mismatch(self.labels, classes, self.options.label_offset)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters that :meth:`best` reads."""
        return (*self.score_parameters, *self.labels.parameters)

    @property
    def score_parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters that choose entries by score."""
        return parameter("top_k", default=TOP_K), parameter(
            "threshold", default=self.options.threshold
        )

    def rows(self, array: Array) -> Array:
        """Return scores, float64 [rows, classes].

        One number for two labels is the probability of the second.
        """
        values = real_values(array, self.spec)
        classes = 1
        if values.ndim:
            classes = values.shape[-1]
        rows = values.reshape(-1, classes) if values.size else np.zeros((0, classes))
        rows = activate(rows.astype(np.float64), self.options.activation)
        if classes == 1 and len(self.labels.names) == 2:
            rows = np.concatenate([1 - rows, rows], axis=1)
        if self.calibration is not None:
            calibrated = [self.calibration.apply(row) for row in rows]
            rows = np.array(calibrated).reshape(rows.shape)
        return rows

    def best(
        self, row: Array, options: AnswerOptions, /, **more: Any
    ) -> list[dict[str, Any]]:
        """Return ``{"label", "index", "score"}`` of the best classes, ties by class.

        ``more`` has further keys of each entry.
        """
        threshold = options.threshold
        if threshold is None:
            threshold = self.options.threshold
        floor = -np.inf if threshold is None else threshold
        names = self.labels.in_language(options.language)
        shift = self.options.label_offset
        top_k = TOP_K if options.top_k is None else options.top_k
        entries = []
        for number in np.argsort(-row, kind="stable")[:top_k]:
            index = int(number)
            score = float(row[number])
            if score >= floor and np.isfinite(score):
                label = label_of(names, index + shift)
                entries.append({**more, "label": label, "index": index, "score": score})
        return entries


def ranking_of(facts: ModelFacts, name: str, task: str) -> Ranking:
    """Build the ranking of an output from the manifest, labels and files.

    Args:
        name: the output; empty for the only one, or one that has labels or a usual name.
    """
    declared = facts.manifest.section(ClassificationOptions).output
    number = _output_number(facts, name or declared, task)
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
    """Return the graph's class names of an output's columns; empty without any."""
    columns = 1
    if spec.shape:
        columns = spec.shape[-1]
    for name in (spec.name, *spec.aliases, *facts.class_outputs):
        graph_output = facts.class_outputs.get(name)
        if graph_output is None or len(graph_output.targets) != 1:
            continue
        if len(graph_output.targets[0]) == columns:
            return graph_output.targets[0]
    return ()


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether class names are just the column numbers."""
    return all(name == str(number) for number, name in enumerate(names))


def _output_number(facts: ModelFacts, name: str, task: str) -> int:
    """Return the position of the output with the scores.

    It is the named or only one, else the only one with labels, a usual name or keys.
    """
    key = _OUTPUT_KEYS.get(task, "")
    if name:
        return facts.outputs.index(named_tensor(facts.outputs, key, name))
    names = [spec.name for spec in facts.outputs]
    if len(names) == 1:
        return 0
    labelled = [bool(tensor.associated_files) for tensor in _output_metadata(facts)]
    with_usual_name = [is_score_name(output) for output in names]
    with_keys = [bool(keys_of(facts, output)) for output in names]
    for sign in (labelled, with_usual_name, with_keys):
        if sum(sign) == 1:
            return sign.index(True)
    listed = ", ".join(names)
    raise ModelLoadError(
        f"model.toml: task {task}: the model has {len(names)} outputs ({listed}); name one as {_OUTPUT_KEYS[task]}"
    )


def _output_metadata(facts: ModelFacts) -> list[TensorMetadata]:
    return [facts.output_metadata(number) for number in range(len(facts.outputs))]


def is_score_name(name: str) -> bool:
    """Return whether converters use this name for an output of scores."""
    return name.casefold() in _SCORE_NAMES


def keys_of(facts: ModelFacts, name: str) -> str:
    """Return the output with class names, or "".

    It has the keys of a map, or is sklearn-onnx's ``output_class_labels=True``.
    """
    keys = "class_labels"
    if name.endswith(".values"):
        keys = name.removesuffix(".values") + ".keys"
    if any(spec.name == keys for spec in facts.outputs):
        return keys
    return ""


def _options(
    facts: ModelFacts, spec: TensorSpec, labels: int, task: str
) -> ClassificationOptions:
    """Complete the manifest's ``[classification]`` by files, key by key."""
    options = facts.manifest.section(ClassificationOptions)
    if options.activation is not None:
        return options
    classes = -1
    if spec.shape and not spec.open:
        classes = spec.shape[-1]
    if classes <= 0:
        classes = labels
    activation = configured_activation(facts, task, classes)
    return options._replace(activation=activation)
