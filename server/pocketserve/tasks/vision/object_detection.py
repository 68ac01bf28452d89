"""Find objects and their boxes in a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata_parts import BoundingBoxProperties
from pocketserve.tasks.arrays import is_npy, read_npy
from pocketserve.tasks.base import (
    Answer,
    AnswerOptions,
    Arrays,
    Runs,
    Task,
    TaskDefinition,
)
from pocketserve.tasks.entries import BOX, RANKED, TaskCall
from pocketserve.tasks.labels import find_labels, label_of
from pocketserve.tasks.model_facts import CONFIG, MetadataError, ModelFacts, literal
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.scores import threshold_of
from pocketserve.tasks.vision.boxes import generate_anchors, suppress
from pocketserve.tasks.vision.detection_options import DETECTION, DetectionOptions
from pocketserve.tasks.vision.detection_outputs import (
    Candidates,
    DetectionOutputs,
    is_postprocessed,
)
from pocketserve.tasks.vision.geometry import box_entry
from pocketserve.tasks.vision.picture_input import (
    PictureTask,
    picture_input,
    takes_picture,
)
from pocketserve.tasks.vision.preprocessing import IMAGE, is_ultralytics, is_yolov5
from pocketserve.tasks.vision.yolo import instances
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.files.plain_file import lies_in

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

NAME = "object-detection"
_INSTANCES = {"segment": instances.SEGMENTS, "obb": instances.ROTATED}
"""Formats of Ultralytics' tasks that answer more than boxes."""

THRESHOLD = 0.3
IOU = 0.5
FINAL_COLUMNS = 6  # a box, its score and its class
MAX_ANCHORS_BYTES = 16 * 2**20
NO_OBJECT_MODELS = ("detr", "yolos", "table-transformer")
"""Model types whose last class is "no object".

Source: huggingface/transformers, image_processing_detr.py.
"""

SIGMOID_MODELS = (
    *("conditional_detr", "dab-detr", "deformable_detr", "deta", "lw_detr", "rf_detr"),
    *("rt_detr", "rt_detr_v2", "d_fine", "deimv2"),
)
"""Model types with one sigmoid per class.

Source: their ``post_process_object_detection`` in the same project.
"""


def fits(facts: ModelFacts) -> bool:
    """Return whether outputs or files are those of a detector of pictures."""
    return takes_picture(facts) and (
        is_postprocessed(facts.outputs) or _format_of_files(facts) is not None
    )


def _options(facts: ModelFacts) -> DetectionOptions:
    """Return the manifest's options, completed by the model's files."""
    options = facts.manifest.section(DetectionOptions)
    if options.format is None and not options.classes:
        options = dataclasses.replace(options, format=_format_of_files(facts))
    for tensor in facts.metadata.outputs:
        if options.threshold is None:
            options = dataclasses.replace(options, threshold=threshold_of(tensor))
        properties = None
        if tensor.content is not None:
            properties = tensor.content.properties
        if options.coordinates is not None:
            continue
        if isinstance(properties, BoundingBoxProperties):
            coordinates = properties.coordinate_type
            options = dataclasses.replace(options, coordinates=coordinates)
    return options


def _format_of_files(facts: ModelFacts) -> str | None:
    """Return the format in Ultralytics' or Hugging Face's files, if outputs fit."""
    tables = [spec.shape for spec in facts.outputs if len(spec.shape) == 3]
    if is_ultralytics(facts) and tables:
        task = facts.properties.get("task")
        if task in _INSTANCES:
            return _INSTANCES[task]
        if task == "detect" and facts.properties.get("head") == "RTDETRDecoder":
            return "yolo-rtdetr"
        if task == "detect":
            return _format_of_ultralytics(facts, tables[0])
    if tables and is_yolov5(facts):
        columns = len(find_labels(facts).names) + 5
        if tables[0][-1] == columns:
            return "yolov5"
    architectures = facts.json_beside(CONFIG).get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return None
    if "ForObjectDetection" in str(architectures[0]):
        return "detr"
    return None


def _format_of_ultralytics(facts: ModelFacts, shape: Sequence[int]) -> str:
    """Return the format of a detector's rows.

    A final row has six numbers, and so has a row of scores for two classes. The exporter
    writes the scores as columns; other converters transpose them. Source:
    ultralytics/ultralytics, nn/autobackend.py (``end2end`` or ``args["nms"]``).
    """
    properties = facts.properties
    arguments = literal(properties.get("args", ""))
    has_suppression = isinstance(arguments, dict) and bool(arguments.get("nms"))
    if properties.get("end2end") == "True":
        return "yolov10"
    columns = 4 + len(find_labels(facts).names)
    is_raw = properties.get("end2end") == "False" and not has_suppression
    if shape[-1] == FINAL_COLUMNS and not (is_raw and columns == FINAL_COLUMNS):
        return "yolov10"
    is_transposed = shape[-1] == columns > 4 and shape[1] != columns
    if is_transposed:
        return "yolov8-rows"
    return "yolov8"


def _detr_activation(facts: ModelFacts, outputs: DetectionOutputs) -> str | None:
    """Return the activation of a Hugging Face detector's logits; None if unknown.

    Softmax has a last class "no object", so there is one more logit than there are names.

    Raises:
        MetadataError: the number of logits fits neither, and the model type is unknown.
    """
    config = facts.json_beside(CONFIG)
    model_type = config.get("model_type")
    names = config.get("id2label")
    logits = outputs.class_count
    labels = 0
    if isinstance(names, dict):
        labels = len(names)
    if model_type in NO_OBJECT_MODELS:
        return "softmax"
    if model_type in SIGMOID_MODELS or (labels and logits == labels):
        return "sigmoid"
    if labels and logits == labels + 1:
        return "softmax"
    if model_type is None:
        return None
    raise MetadataError(
        f"config.json beside the model has {plural(labels, 'label')}, and the model gives {logits} logits a box, so "
        "that it isn't known how they become scores; set [detection] activation in model.toml to sigmoid, or to "
        'softmax if the last class is "no object"'
    )


def _no_anchors_file(folder: Path, name: str) -> ModelLoadError:
    fault = "is not beside the model"
    if not lies_in(folder / name, folder):
        fault = "cannot be used: it is a link that leaves the model's folder"
    return ModelLoadError(f"model.toml: detection.anchors_file {name} {fault}")


def _anchors(
    facts: ModelFacts, options: DetectionOptions, width: int, height: int
) -> Array | None:
    """Return [n, (center y, center x, height, width)]; None if boxes are final."""
    if options.anchors is not None:
        return generate_anchors(options.anchors, width, height)
    if options.anchors_file is None:
        return None
    path = facts.beside(options.anchors_file)
    if path is None:
        raise _no_anchors_file(facts.entry.folder, options.anchors_file)
    content = memoryview(facts.read_beside(path, MAX_ANCHORS_BYTES))
    try:
        if is_npy(content):
            anchors = read_npy(content)
        else:
            text = bytes(content).decode().replace(",", " ")
            anchors = np.loadtxt(text.splitlines(), ndmin=2)
        return anchors.astype(np.float64).reshape(-1, 4)
    except (ApiError, ValueError) as error:
        raise ModelLoadError(
            f"model.toml: detection.anchors_file {path.name} cannot be used: {error}"
        ) from None


def create(facts: ModelFacts) -> Task:
    """Build the task from the manifest, completed by the model's files."""
    options = _options(facts)
    if options.format in instances.FORMATS:
        return instances.InstanceDetection(facts, options)
    return ObjectDetection(facts)


class ObjectDetection(PictureTask):
    """Read boxes by their layout.

    The manifest's ``[image]``, ``[detection]`` and labels apply, completed by the model's
    files. For numbers instead of a picture, boxes are in pixels of the input.
    """

    name = NAME
    answer_text = "label, index, score and box of each object, best first; boxes in pixels of the picture"

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__(picture_input(facts, NAME), find_labels(facts))
        self._options = options = _options(facts)
        self.label_offset = options.label_offset
        anchors = _anchors(facts, options, *self._picture.size)
        self._outputs = DetectionOutputs(
            options, facts.outputs, facts.metadata, anchors
        )
        if self._outputs.format == "detr" and options.activation is None:
            self._outputs.activation = _detr_activation(facts, self._outputs)

    @property
    def threshold(self) -> float:
        """Return the default of the lowest score."""
        if self._options.threshold is None:
            return THRESHOLD
        return self._options.threshold

    @property
    def _iou(self) -> float | None:
        """Return the overlap above which weaker boxes are dropped; None drops none."""
        if self._options.iou is None and not self._outputs.suppressed:
            return IOU
        return self._options.iou

    def _candidates(
        self, outputs: Arrays, size: tuple[int, int], floor: float
    ) -> Candidates:
        try:
            return self._outputs.candidates(outputs, size, floor)
        except ValueError as error:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED,
                f"the outputs do not fit [detection]: {error}",
            ) from None

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score", "box"}``, best first.

        The box is in pixels of the upright picture.
        """
        size = self._picture.size if context is None else context.input
        floor = self.threshold if options.threshold is None else options.threshold
        candidates = self._candidates(runs[0], size, floor)
        iou = options.values.get("iou", self._iou)
        maximum = options.top_k or self._options.max
        best = np.arange(min(maximum, len(candidates.boxes)))
        if iou is not None:
            best = suppress(candidates.boxes, candidates.classes, iou, maximum)
        corners = candidates.boxes[best] * np.array([*size, *size])
        names = self._labels.in_language(options.language)
        entries: Answer = []
        for position, box in zip(best, context.boxes_to_picture(corners), strict=True):
            if not (box[2] > box[0] and box[3] > box[1]):
                continue
            number = int(candidates.classes[position])
            entries.append(
                {
                    "label": label_of(names, number + self._options.label_offset),
                    "index": number,
                    "score": float(candidates.scores[position]),
                    "box": box_entry(box),
                }
            )
        return entries

    def _answer_parameters(self) -> tuple[Parameter, ...]:
        top_k = parameter("top_k", default=self._options.max)
        return (
            top_k,
            parameter("threshold", default=self.threshold),
            parameter("iou", default=self._iou),
        )

    def _draw(self, canvas: Canvas, runs: Runs, answer: Answer, context: Any) -> None:
        canvas.boxes(
            [
                (entry["box"], f"{entry['label']} {entry['score']:.0%}", entry["index"])
                for entry in answer
            ]
        )


CALL = TaskCall("detect", "picture", "Detection", (*RANKED, BOX))
TASK = TaskDefinition(
    NAME, fits, create, (IMAGE, DETECTION), takes_pictures=True, calls=(CALL,)
)
