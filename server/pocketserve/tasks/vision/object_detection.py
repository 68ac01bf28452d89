"""A picture in, boxes of what is on it out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import BoundingBoxProperties
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition, single_run
from pocketserve.tasks.labels import Labels, find_labels, label_of
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.scores import threshold_of
from pocketserve.tasks.vision.boxes import generate_anchors, suppress
from pocketserve.tasks.vision.detection_outputs import Layout, find_layout, is_postprocessed, read_candidates
from pocketserve.tasks.vision.geometry import Placement, box_entry
from pocketserve.tasks.vision.options import DETECTION, IMAGE, DetectionOptions
from pocketserve.tasks.vision.picture_input import PictureInput, picture_input, takes_picture
from pocketserve.tasks.vision.preprocessing import is_ultralytics
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

NAME = "object-detection"
THRESHOLD = 0.3
IOU = 0.5
MAX = 100
MAX_ANCHORS_BYTES = 16 * 2**20


def fits(facts: ModelFacts) -> bool:
    """A picture in and the four outputs of the detection operator out, or a file that says of itself what it is."""
    return takes_picture(facts) and (is_postprocessed(facts.outputs) or _said_format(facts) is not None)


def create(facts: ModelFacts) -> ObjectDetection:
    """Set up with the manifest's ``[image]``, ``[detection]`` and labels, completed by what the files say.

    Raises:
        ModelLoadError: input or outputs do not fit, or the anchors cannot be read.
    """
    options = _options(facts)
    picture = picture_input(facts, NAME)
    layout = find_layout(options, facts.outputs, facts.metadata)
    return ObjectDetection(picture, layout, find_labels(facts), options, _anchors(facts, options, picture))


def _options(facts: ModelFacts) -> DetectionOptions:
    """The manifest's options, completed by what the files say."""
    options = facts.manifest.section(DetectionOptions)
    said: dict[str, Any] = {}
    if options.format is None and options.classes is None:
        said["format"] = _said_format(facts)
    tensors = facts.metadata.outputs if facts.metadata is not None else ()
    if options.threshold is None:
        said["threshold"] = next((value for one in tensors if (value := threshold_of(one)) is not None), None)
    if options.coordinates is None:
        contents = [one.content.properties for one in tensors if one.content is not None]
        boxes = next((one for one in contents if isinstance(one, BoundingBoxProperties)), None)
        said["coordinates"] = boxes.coordinate_type if boxes is not None else None
    return dataclasses.replace(options, **said)


def _said_format(facts: ModelFacts) -> str | None:
    """Return what Ultralytics' or Hugging Face's files say; only for outputs that look like it."""
    if is_ultralytics(facts) and facts.properties.get("task") == "detect":
        tables = [spec.shape for spec in facts.outputs if len(spec.shape) == 3]
        if tables:
            return "yolov10" if tables[0][-1] == 6 else "yolov8"
    architectures = facts.json_beside(CONFIG).get("architectures")
    if isinstance(architectures, list) and architectures and "ForObjectDetection" in str(architectures[0]):
        return "detr"
    return None


def _anchors(facts: ModelFacts, options: DetectionOptions, picture: PictureInput) -> Array | None:
    if options.anchors is not None:
        return generate_anchors(options.anchors, *picture.size)
    if options.anchors_file is None:
        return None
    name, folder = options.anchors_file, facts.entry.folder
    path = folder / name
    try:
        if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
            raise ValueError("it is a link that leaves the model's folder")
        if path.stat().st_size > MAX_ANCHORS_BYTES:
            raise ValueError(f"it is larger than {MAX_ANCHORS_BYTES} bytes")
        if path.suffix == ".npy":
            anchors = np.load(path, allow_pickle=False)
        else:
            anchors = np.loadtxt(path.read_text().replace(",", " ").splitlines(), ndmin=2)
        anchors = np.asarray(anchors, dtype=np.float64).reshape(-1, 4)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"model.toml: detection.anchors_file {name} cannot be used: {error}") from None
    return anchors


class ObjectDetection:
    """Takes a picture; also the input tensor's values as JSON or ``.npy``, then boxes are in pixels of the input.

    Args:
        picture: the only input.
        layout: which output is what.
        labels: class names.
        options: how the outputs are read.
        anchors: [n, (center y, center x, height, width)] for raw boxes; None where boxes are boxes already.
    """

    name = NAME

    def __init__(
        self, picture: PictureInput, layout: Layout, labels: Labels, options: DetectionOptions, anchors: Array | None
    ) -> None:
        self.labels = labels.names
        self._labels = labels
        self._picture = picture
        self._layout = layout
        self._options = options
        self._anchors = anchors

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        array, placement = self._picture.read(body, hints)
        return single_run({self._picture.spec.name: array}, placement)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"label", "index", "score", "box"}``, best first; the box in pixels of the upright picture.

        Raises:
            ApiError: INFERENCE_FAILED when the outputs do not have the layout's shapes.
        """
        placement: Placement = context
        mine = self._options
        floor = next((v for v in (options.threshold, mine.threshold) if v is not None), THRESHOLD)
        try:
            found = read_candidates(self._layout, mine, runs[0], self._anchors, self._picture.size, floor)
        except ValueError as error:
            raise ApiError(ErrorCode.INFERENCE_FAILED, f"the outputs do not fit [detection]: {error}") from None
        iou = options.values.get("iou", mine.iou)
        if iou is None and self._layout.format not in ("postprocess", "yolov10", "detr"):
            iou = IOU  # the others have been through it
        maximum = options.top_k or mine.max or MAX
        kept = np.arange(min(maximum, len(found.boxes)))
        if iou is not None:
            kept = suppress(found.boxes, found.classes, iou, maximum)
        boxes = placement.boxes_to_picture(found.boxes[kept] * np.array([*self._picture.size] * 2))
        names = self._labels.in_language(options.language)
        return [
            {
                "label": label_of(names, int(number) + mine.label_offset),
                "index": int(number),
                "score": float(score),
                "box": box_entry(box),
            }
            for number, score, box in zip(found.classes[kept], found.scores[kept], boxes, strict=True)
            if box[2] > box[0] and box[3] > box[1]
        ]

    def annotate(self, body: memoryview, hints: Hints, runs: Sequence[Arrays], answer: Answer, context: Any) -> bytes:
        """See :class:`~pocketserve.tasks.base.Annotator`."""
        from pocketserve.tasks.vision import drawing  # late: few answers are drawn

        canvas = drawing.Canvas(body, hints, self._picture.max_pixels)
        canvas.boxes([(entry["box"], f"{entry['label']} {entry['score']:.0%}", entry["index"]) for entry in answer])
        return canvas.png()

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": "label, index, score and box of each object, best first; boxes in pixels of the picture",
            "example": "photo.jpg",
        }


TASK = TaskDefinition(NAME, fits, create, (IMAGE, DETECTION), takes_pictures=True)
