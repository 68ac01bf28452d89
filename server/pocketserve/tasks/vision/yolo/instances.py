"""Detect objects with masks or rotated boxes, as Ultralytics exports them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.tasks.base import Answer, AnswerOptions, Arrays, Runs
from pocketserve.tasks.labels import find_labels, label_of
from pocketserve.tasks.model_facts import MetadataError, ModelFacts
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.scores import real_values
from pocketserve.tasks.vision.boxes import suppress, to_corners
from pocketserve.tasks.vision.detection_options import DetectionOptions
from pocketserve.tasks.vision.geometry import Area, Placement, box_entry
from pocketserve.tasks.vision.picture_input import PictureTask, picture_input
from pocketserve.tasks.vision.pictures import CheckedFile
from pocketserve.tasks.vision.yolo.rows import (
    Detections,
    RowReader,
    corners_of,
    mask_inside,
    rows_output,
    suppress_rotated,
)
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

SEGMENTS, ROTATED = "yolov8-seg", "yolov8-obb"
FORMATS = (SEGMENTS, ROTATED)
THRESHOLD = 0.25  # with IOU: the defaults of these models' own tool
IOU = 0.7
GROUND = 1 << 16  # a class that no model has


class InstanceDetection(PictureTask):
    """Find objects with their masks, or with rotated boxes."""

    name = "object-detection"
    answer_text = (
        "label, index, score and box of each object, best first, in pixels of the "
        "picture; a rotated box has corners, and with ?mask=png another object has its "
        "mask"
    )

    def __init__(self, facts: ModelFacts, options: DetectionOptions) -> None:
        super().__init__(picture_input(facts, self.name), find_labels(facts))
        self._options = options
        self.label_offset = options.label_offset
        self._is_rotated = options.format == ROTATED
        spec = rows_output(facts.outputs, "detection.boxes", options.boxes)
        extra = 1  # the angle
        self._prototypes = None if self._is_rotated else _prototypes(facts)
        self._channel_axis = 1
        if self._prototypes is not None:
            self._channel_axis = _channel_axis(self._prototypes, spec, len(self.labels))
            extra = self._prototypes.shape[self._channel_axis]
        self._reader = RowReader(spec, extra, len(self.labels))

    @property
    def threshold(self) -> float:
        """Return the default of the lowest score."""
        if self._options.threshold is None:
            return THRESHOLD
        return self._options.threshold

    @property
    def _iou(self) -> float | None:
        """Return the overlap above which weaker boxes are dropped; None drops none."""
        return self._default_iou(self._reader.suppressed)

    def _default_iou(self, is_suppressed: bool) -> float | None:
        """Return the default overlap, which depends on the model's own suppression."""
        if self._options.iou is None and not is_suppressed:
            return IOU
        return self._options.iou

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score", "box"}``, best first.

        Rotated boxes also have ``corners``. With ``mask=png`` other objects have ``mask``
        and ``mask_box``.
        """
        floor = self.threshold if options.threshold is None else options.threshold
        rows = self._best(self._rows(runs[0], floor), options)
        names = self._labels.in_language(options.language)
        places = self._places(rows)
        boxes = context.boxes_to_picture(_bounds(places))
        entries: Answer = []
        for position, box in enumerate(boxes):
            left, top, right, bottom = box
            if not (right > left and bottom > top):
                continue
            entry = self._entry(rows, position, names)
            entry["box"] = box_entry(box)
            if self._is_rotated:
                entry["corners"] = _points(context.to_picture(places[position]))
            elif "mask" in options.values:
                entry |= self._mask_entry(runs[0], rows, position, context)
            entries.append(entry)
        return entries

    def _rows(self, outputs: Arrays, floor: float) -> Detections:
        values = outputs[self._reader.spec.name]
        try:
            return self._reader.read(values, self._picture.size, floor)
        except ValueError as error:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED,
                f"the outputs do not fit [detection]: {error}",
            ) from None

    def _entry(
        self, rows: Detections, position: int, names: Sequence[str]
    ) -> dict[str, Any]:
        number = int(rows.classes[position])
        return {
            "label": label_of(names, number + self._options.label_offset),
            "index": number,
            "score": float(rows.scores[position]),
        }

    def _best(self, rows: Detections, options: AnswerOptions) -> Detections:
        """Return the rows that suppression leaves."""
        maximum = options.top_k or self._options.max
        # An output of an open shape shows only now whether its rows are suppressed.
        iou = options.values.get("iou", self._default_iou(rows.suppressed))
        if iou is None:
            best = np.arange(min(maximum, len(rows.boxes)))
        elif self._is_rotated:
            best = suppress_rotated(
                rows.boxes, rows.extras[:, -1], rows.classes, iou, maximum
            )
        else:
            best = suppress(self._corners(rows), rows.classes, iou, maximum)
        return rows._replace(
            boxes=rows.boxes[best],
            scores=rows.scores[best],
            classes=rows.classes[best],
            extras=rows.extras[best],
        )

    def _corners(self, rows: Detections) -> Array:
        """Return boxes (left, top, right, bottom) in pixels of the input."""
        return to_corners(rows.boxes, "boundaries" if rows.suppressed else "center")

    def _places(self, rows: Detections) -> Array:
        """Return the points [n, k, (x, y)] around each object, in pixels of the input."""
        if self._is_rotated:
            return corners_of(rows.boxes, rows.extras[:, -1])
        return self._corners(rows).reshape(-1, 2, 2)

    def _mask_entry(
        self, outputs: Arrays, rows: Detections, position: int, placement: Placement
    ) -> dict[str, Any]:
        """Return an object's mask as base64 PNG, and its box in the picture."""
        area, inside = self._mask(outputs, rows, position, placement)
        corners = np.array(
            [[area.x, area.y], [area.x + area.width, area.y + area.height]]
        )
        box = placement.to_picture(corners).reshape(-1)
        return {
            "mask": base64.b64encode(_png(inside)).decode("ascii"),
            "mask_box": box_entry(box),
        }

    def _mask(
        self, outputs: Arrays, rows: Detections, position: int, placement: Placement
    ) -> tuple[Area, Array]:
        """Return an object's area, and its pixels there.

        The area has whole pixels and excludes letterbox bars.
        """
        assert self._prototypes is not None
        target = placement.target
        left, top, right, bottom = self._corners(rows)[position]
        x, end_x = _whole(left, right, round(target.x), round(target.x + target.width))
        y, end_y = _whole(top, bottom, round(target.y), round(target.y + target.height))
        prototypes = real_values(outputs[self._prototypes.name], self._prototypes)[0]
        if self._channel_axis == 3:
            prototypes = prototypes.transpose(2, 0, 1)
        frame = (x, y, end_x, end_y)
        weights = rows.extras[position]
        inside = mask_inside(weights, prototypes, self._picture.size, frame)
        return Area(x, y, end_x - x, end_y - y), inside

    def _answer_parameters(self) -> tuple[Parameter, ...]:
        top_k = parameter("top_k", default=self._options.max)
        always = (
            top_k,
            parameter("threshold", default=self.threshold),
            parameter("iou", default=self._iou),
        )
        if self._is_rotated:
            return always
        return (*always, parameter("mask"))

    def _draw(
        self, canvas: Canvas, runs: Runs, answer: Answer, context: Placement
    ) -> None:
        texts = [f"{entry['label']} {entry['score']:.0%}" for entry in answer]
        if self._is_rotated:
            self._draw_outlines(canvas, answer, texts)
            return
        if answer:
            classes = self._mask_map(runs[0], answer, context)
            canvas.mask(classes, context.source, [GROUND])
        boxes = []
        for entry, text in zip(answer, texts, strict=True):
            boxes.append((entry["box"], text, entry["index"]))
        canvas.boxes(boxes)

    def _draw_outlines(
        self, canvas: Canvas, answer: Answer, texts: Sequence[str]
    ) -> None:
        names = []
        for entry, text in zip(answer, texts, strict=True):
            points = [(point["x"], point["y"]) for point in entry["corners"]]
            canvas.outline(points, entry["index"])
            names.append((text, entry["index"]))
        canvas.legend(names)

    def _mask_map(self, outputs: Arrays, answer: Answer, placement: Placement) -> Array:
        """Return the class of each input pixel that the picture covers.

        It is GROUND outside objects.
        """
        width, height = self._picture.size
        classes = np.full((height, width), GROUND, dtype=np.int64)
        rows = self._rows(outputs, min(entry["score"] for entry in answer))
        for entry in reversed(answer):  # the best one on top
            same_score = rows.scores == entry["score"]
            matches = np.flatnonzero(same_score & (rows.classes == entry["index"]))
            if not len(matches):
                continue
            area, inside = self._mask(outputs, rows, int(matches[0]), placement)
            x = int(area.x)
            y = int(area.y)
            part = classes[y : y + inside.shape[0], x : x + inside.shape[1]]
            part[inside] = entry["index"]
        return _covered(classes, placement.target)


def _prototypes(facts: ModelFacts) -> TensorSpec:
    """Return the output with the prototypes of masks."""
    for spec in facts.outputs:
        if len(spec.shape) == 4 and not spec.open and min(spec.shape[1:]) > 0:
            return spec
    raise MetadataError(
        f"the format {SEGMENTS} needs an output of four dimensions, which makes the masks"
    )


def _channel_axis(prototypes: TensorSpec, rows: TensorSpec, classes: int) -> int:
    """Return the axis that counts prototypes: 1, or 3 in TensorFlow's order.

    A row has as many extra numbers as there are prototypes.
    """
    if len(rows.shape) != 3:
        return 1
    extras = (rows.shape[1] - 4 - classes, rows.shape[-1] - 6)
    for axis in (1, 3):
        if prototypes.shape[axis] in extras:
            return axis
    return 1


def _whole(start: float, end: float, low: int, high: int) -> tuple[int, int]:
    """Return whole pixels, at least one, that cover a range within limits."""
    first = int(np.clip(np.floor(start), low, high - 1))
    last = int(np.clip(np.ceil(end), first + 1, high))
    return first, last


def _bounds(places: Array) -> Array:
    """Return boxes (left, top, right, bottom) around points [n, k, (x, y)]."""
    if not len(places):
        return np.zeros((0, 4))
    bounds: Array = np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)
    return bounds


def _points(points: Array) -> list[dict[str, float]]:
    return [{"x": round(x, 2), "y": round(y, 2)} for x, y in points.tolist()]


def _png(inside: Array) -> bytes:
    """Return a grey PNG that is white where the object is."""
    import PIL.Image

    image = PIL.Image.fromarray(inside.astype(np.uint8) * 255)
    file = CheckedFile()
    image.save(file, "PNG")
    return file.getvalue()


def _covered(classes: Array, target: Area) -> Array:
    """Return a map without its filled borders."""
    left = round(target.x)
    top = round(target.y)
    right = left + round(target.width)
    bottom = top + round(target.height)
    covered: Array = classes[top:bottom, left:right]
    return covered
