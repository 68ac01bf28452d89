"""From a row of numbers to the likeliest labels, for tasks on sound, text and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import AnswerOptions, Arrays
from pocketserve.tasks.classification_options import ClassificationOptions
from pocketserve.tasks.labels import Labels, find_labels, label_of, mismatch
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.scores import Calibration, activate, calibration_of, real_values, threshold_of
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire.records import dataclass

TOP_K = 5
TELLING = ("scores", "logits", "probability", "probabilities")


@dataclass(frozen=True, slots=True)
class Ranking:
    """How an output becomes labels with scores.

    Attributes:
        spec: the output, its last axis the classes.
        options: the manifest's ``[classification]``, completed by what the files say.
        keys: the output that tells the classes' names with every run, as scikit-learn's classifiers in ONNX do; empty
            where there is none, or where the labels are known.
    """

    spec: TensorSpec
    labels: Labels
    options: ClassificationOptions
    calibration: Calibration | None = None
    keys: str = ""

    def named_by(self, run: Arrays) -> Ranking:
        """With the class names that a run's outputs tell, if they do."""
        if not self.keys:
            return self
        names = [
            key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in run[self.keys].tolist()
        ]
        return replace(self, labels=Labels(names))

    @property
    def problem(self) -> str:
        """Return what is wrong with the labels; empty if nothing is."""
        return mismatch(self.labels, self.spec.shape[-1] if self.spec.shape else 1, self.options.label_offset)

    def rows(self, array: Array) -> Array:
        """An output as scores, float64 [rows, classes]; one number for two labels is the second one's probability."""
        values = real_values(array, self.spec)
        classes = values.shape[-1] if values.ndim else 1
        rows = values.reshape(-1, classes) if values.size else np.zeros((0, classes))
        rows = activate(rows.astype(np.float64), self.options.activation)
        if classes == 1 and len(self.labels.names) == 2:
            rows = np.concatenate([1 - rows, rows], axis=1)
        if self.calibration is not None:
            rows = np.array([self.calibration.apply(row) for row in rows]).reshape(rows.shape)
        return rows

    def best(self, row: Array, options: AnswerOptions, /, **more: Any) -> list[dict[str, Any]]:
        """``{"label", "index", "score"}`` of the best classes, ties in order of the class; ``more`` in each entry."""
        lowest = self.options.threshold if options.threshold is None else options.threshold
        floor = -np.inf if lowest is None else lowest
        names = self.labels.in_language(options.language)
        shift = self.options.label_offset
        order = np.argsort(-row, kind="stable")[: TOP_K if options.top_k is None else options.top_k]
        return [
            {**more, "label": label_of(names, int(index) + shift), "index": int(index), "score": float(row[index])}
            for index in order
            if row[index] >= floor and np.isfinite(row[index])
        ]


def ranking_of(facts: ModelFacts, name: str, task: str) -> Ranking:
    """Set up with the manifest's ``[classification]``, labels and what the files say.

    Args:
        name: the output with the scores; empty takes the one that can be meant.

    Raises:
        ModelLoadError: there is no such output, or a file cannot be read.
    """
    number = output_number(facts, name, task)
    described = facts.metadata.outputs[number : number + 1] if facts.metadata is not None else ()
    labels = find_labels(facts, number if described and described[0].associated_files else None)
    options = _options(facts, threshold_of(described[0]) if described else None)
    spec = facts.outputs[number]
    keys = "" if labels.names else _keys_of(spec.name, [output.name for output in facts.outputs])
    return Ranking(spec, labels, options, calibration_of(facts, number), keys)


def output_number(facts: ModelFacts, name: str, task: str) -> int:
    """Return which output holds the scores: the named one, the only one, else the one with labels or a telling name.

    Raises:
        ModelLoadError: there is no such output, or several and none is named.
    """
    names = [spec.name for spec in facts.outputs]
    if name and name not in names:
        raise ModelLoadError(f"model.toml: task {task} names output {name!r}; the model has {', '.join(names)}")
    if name or len(names) == 1:
        return names.index(name) if name else 0
    described: Sequence[Any] = facts.metadata.outputs if facts.metadata is not None else ()
    labelled = [index for index, output in enumerate(described[: len(names)]) if output.associated_files]
    telling = [index for index, own in enumerate(names) if own.casefold() in TELLING]
    keyed = [index for index, own in enumerate(names) if _keys_of(own, names)]
    for found in (labelled, telling, keyed):
        if len(found) == 1:
            return found[0]
    listed = ", ".join(names)
    raise ModelLoadError(
        f"model.toml: task {task}: the model has {len(names)} outputs ({listed}); name one as {_NAMED_IN[task]}"
    )


_NAMED_IN = {
    "audio-classification": "audio.output",
    "text-classification": "text.output",
    "tabular-classification": "scores, in [[outputs]]",
}
"""Where a manifest says which output has the scores."""


def _keys_of(name: str, names: Sequence[str]) -> str:
    """The output with the keys of a map whose values are the output ``name``; empty where it is no map's."""
    keys = name.removesuffix(".values") + ".keys"
    return keys if name.endswith(".values") and keys in names else ""


def _options(facts: ModelFacts, threshold: float | None) -> ClassificationOptions:
    """The manifest's; a Hugging Face classifier gives logits, and says how they are meant."""
    if ClassificationOptions in facts.manifest.sections:
        options = facts.manifest.section(ClassificationOptions)
    else:
        config = facts.json_beside(CONFIG)
        architectures = config.get("architectures")
        logits = isinstance(architectures, list) and str(architectures[:1]).endswith("Classification']")
        several = config.get("problem_type") == "multi_label_classification"
        options = ClassificationOptions(activation=("sigmoid" if several else "softmax") if logits else "none")
    found = options.threshold if options.threshold is not None else threshold
    return ClassificationOptions(options.activation, options.label_offset, found)
