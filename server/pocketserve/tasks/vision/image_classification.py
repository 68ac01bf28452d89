"""A picture in, the likeliest classes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.entries import RANKED, TaskCall
from pocketserve.tasks.labels import find_labels
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.parameters import Parameter
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tasks.scores import CLASSIFICATION, ClassificationOptions
from pocketserve.tasks.vision.picture_input import (
    PictureInput,
    PictureTask,
    picture_input,
    takes_picture,
)
from pocketserve.tasks.vision.preprocessing import IMAGE

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

NAME = "image-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether the model turns a picture into one row of named scores."""
    classes = class_count(facts)
    if classes < 1 or not takes_picture(facts):
        return False
    if classes == 1:  # the probability of the second of two labels
        return len(find_labels(facts).names) == 2
    content = None
    if facts.metadata.inputs:
        content = facts.metadata.inputs[0].content
    if (
        content is not None
        and content.kind == "image"
        and facts.output_metadata(0).associated_files
    ):
        return True
    # A list without its background class, or with one, is off by one.
    return abs(len(find_labels(facts).names) - classes) <= 1


def class_count(facts: ModelFacts) -> int:
    """Return the number of scores in the output's only row; 0 for other outputs.

    Of several outputs, ``logits`` counts if Hugging Face's file describes a picture
    classifier.
    """
    specs = [spec for spec in facts.outputs if spec.datatype != "BYTES"]
    if len(facts.outputs) > 1:
        specs = [
            spec
            for spec in specs
            if spec.name == "logits" and _is_library_classifier(facts)
        ]
    if len(specs) != 1:
        return 0
    shape = specs[0].shape
    if shape and all(dim in (1, -1) for dim in shape[:-1]):
        return shape[-1]
    return 0


def _is_library_classifier(facts: ModelFacts) -> bool:
    architectures = facts.json_beside(CONFIG).get("architectures")
    return isinstance(architectures, list) and "ForImageClassification" in str(
        architectures[:1]
    )


def create(facts: ModelFacts) -> ImageClassification:
    """Build the task from the manifest, completed by the model's files."""
    if not facts.outputs:
        raise ModelLoadError(
            f"model.toml: task {NAME} needs an output, the model has none"
        )
    picture = picture_input(facts, NAME)
    ranking = ranking_of(facts, _scores_output(facts), NAME)
    return ImageClassification(picture, ranking)


def _scores_output(facts: ModelFacts) -> str:
    """Return the only output with a number per label."""
    count = len(find_labels(facts).names)
    if count < 2 or facts.manifest.section(ClassificationOptions).output:
        return ""
    matches = []
    for spec in facts.outputs:
        if spec.datatype != "BYTES" and spec.shape[-1:] == (count,):
            matches.append(spec.name)
    if len(matches) == 1:
        return matches[0]
    return ""


class ImageClassification(PictureTask):
    """Ranks the first row of the output with the scores."""

    name = NAME
    answer_text = "label, index and score of the likeliest classes, best first"

    def __init__(self, picture: PictureInput, ranking: Ranking) -> None:
        super().__init__(picture, ranking.labels)
        self.problem = ranking.problem
        self.label_offset = ranking.options.label_offset
        self._ranking = ranking

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}`` of the best classes, ties by class."""
        scores = runs[0][self._ranking.spec.name]
        row = (scores[0] if scores.ndim > 1 else scores).reshape(-1)
        return self._ranking.best(self._ranking.rows(row).reshape(-1), options)

    def _answer_parameters(self) -> tuple[Parameter, ...]:
        return self._ranking.score_parameters

    def _draw(self, canvas: Canvas, runs: Runs, answer: Answer, context: Any) -> None:
        canvas.bars([(entry["label"], entry["score"]) for entry in answer])


CALL = TaskCall("classify", "picture", "Classification", RANKED)
TASK = TaskDefinition(
    NAME, fits, create, (IMAGE, CLASSIFICATION), takes_pictures=True, calls=(CALL,)
)
