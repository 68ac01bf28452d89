"""A picture in, the likeliest classes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition, single_run
from pocketserve.tasks.classification_options import CLASSIFICATION, ClassificationOptions
from pocketserve.tasks.labels import Labels, find_labels, label_of, mismatch
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.scores import Calibration, activate, calibration_of, real_values, threshold_of
from pocketserve.tasks.vision.options import IMAGE
from pocketserve.tasks.vision.picture_input import PictureInput, picture_input, takes_picture
from pocketserve.tensors import TensorSpec

NAME = "image-classification"
TOP_K = 5
NO_OPTIONS = ClassificationOptions()


def fits(facts: ModelFacts) -> bool:
    """A picture in and one row of scores out for which there are as many names; anything less is not guessed."""
    if not takes_picture(facts) or len(facts.outputs) != 1:
        return False
    shape = facts.outputs[0].shape
    classes = shape[-1] if shape and all(dim in (1, -1) for dim in shape[:-1]) else 0
    if classes < 2 or facts.outputs[0].datatype == "BYTES":
        return False
    if facts.metadata is not None and facts.metadata.inputs and facts.metadata.outputs:
        content = facts.metadata.inputs[0].content
        if content is not None and content.kind == "image" and facts.metadata.outputs[0].associated_files:
            return True
    # A list without its background class, or with one, is off by one.
    return abs(len(find_labels(facts).names) - classes) <= 1


def create(facts: ModelFacts) -> ImageClassification:
    """Set up with the manifest's ``[image]``, ``[classification]`` and labels, completed by what the files say.

    Raises:
        ModelLoadError: the input is no picture, or the manifest's numbers do not fit its channels.
    """
    if not facts.outputs:
        raise ModelLoadError(f"model.toml: task {NAME} needs an output, the model has none")
    metadata = facts.metadata.outputs if facts.metadata is not None else ()
    return ImageClassification(
        picture_input(facts, NAME),
        facts.outputs[0],
        find_labels(facts, 0 if metadata and metadata[0].associated_files else None),
        _options(facts, threshold_of(metadata[0]) if metadata else None),
        calibration_of(facts, 0),
    )


def _options(facts: ModelFacts, threshold: float | None) -> ClassificationOptions:
    """The manifest's; a Hugging Face classifier gives logits, and says how they are meant."""
    if ClassificationOptions in facts.manifest.sections:
        options = facts.manifest.section(ClassificationOptions)
    else:
        architectures = facts.json_beside(CONFIG).get("architectures")
        logits = isinstance(architectures, list) and str(architectures[:1]).endswith("ForImageClassification']")
        several = facts.json_beside(CONFIG).get("problem_type") == "multi_label_classification"
        options = ClassificationOptions(activation=("sigmoid" if several else "softmax") if logits else "none")
    found = options.threshold if options.threshold is not None else threshold
    return ClassificationOptions(options.activation, options.label_offset, found)


class ImageClassification:
    """Takes a picture; also the input tensor's values as JSON or ``.npy``.

    Args:
        picture: the only input.
        output: the scores, one per class.
        labels: class names; empty where none are known. Too few or too many are told as the task's ``problem``.
        options: how scores are read.
        calibration: of the scores, applied last.
    """

    name = NAME

    def __init__(
        self,
        picture: PictureInput,
        output: TensorSpec,
        labels: Labels,
        options: ClassificationOptions = NO_OPTIONS,
        calibration: Calibration | None = None,
    ) -> None:
        self.labels = labels.names
        self.problem = mismatch(labels, output.shape[-1] if output.shape else 1, options.label_offset)
        self._labels = labels
        self._picture = picture
        self._output = output
        self._options = options
        self._calibration = calibration

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        array, placement = self._picture.read(body, hints)
        return single_run({self._picture.spec.name: array}, placement)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """The best classes of the first row: ``{"label", "index", "score"}``, ties in order of the class."""
        scores = real_values(runs[0][self._output.name], self._output)
        row = (scores[0] if scores.ndim > 1 else scores).reshape(-1).astype(np.float64)
        row = activate(row, self._options.activation)
        row = row if self._calibration is None else self._calibration.apply(row)
        lowest = options.threshold if options.threshold is not None else self._options.threshold
        floor = -np.inf if lowest is None else lowest
        best = np.argsort(-row, kind="stable")[: TOP_K if options.top_k is None else options.top_k]
        names = self._labels.in_language(options.language)
        shift = self._options.label_offset
        return [
            {"label": label_of(names, int(index) + shift), "index": int(index), "score": float(row[index])}
            for index in best
            if row[index] >= floor and np.isfinite(row[index])
        ]

    def annotate(self, body: memoryview, hints: Hints, runs: Sequence[Arrays], answer: Answer, context: Any) -> bytes:
        """See :class:`~pocketserve.tasks.base.Annotator`: the classes as bars below the picture."""
        from pocketserve.tasks.vision import drawing  # late: few answers are drawn

        canvas = drawing.Canvas(body, hints, self._picture.max_pixels)
        canvas.bars([(entry["label"], entry["score"]) for entry in answer])
        return canvas.png()

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": "label, index and score of the likeliest classes, best first",
            "example": "photo.jpg",
        }


TASK = TaskDefinition(NAME, fits, create, (IMAGE, CLASSIFICATION), takes_pictures=True)
