"""Find the points of people's bodies in a picture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Answer, AnswerOptions, Arrays, Runs, TaskDefinition
from pocketserve.tasks.entries import BOX, SCORE, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import Labels, find_labels, label_of
from pocketserve.tasks.model_facts import ModelFacts, literal, named_tensor
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.scores import real_values, sigmoid
from pocketserve.tasks.vision.boxes import suppress, to_corners
from pocketserve.tasks.vision.geometry import Placement, box_entry
from pocketserve.tasks.vision.picture_input import (
    PictureTask,
    picture_input,
    takes_picture,
)
from pocketserve.tasks.vision.preprocessing import IMAGE, ImageOptions, is_ultralytics
from pocketserve.tasks.vision.yolo.rows import Detections, RowReader, rows_output
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

NAME = "pose-estimation"
COCO = (
    *(
        "nose",
        "left eye",
        "right eye",
        "left ear",
        "right ear",
        "left shoulder",
        "right shoulder",
        "left elbow",
    ),
    *(
        "right elbow",
        "left wrist",
        "right wrist",
        "left hip",
        "right hip",
        "left knee",
        "right knee",
    ),
    *("left ankle", "right ankle"),
)
COCO_SKELETON = (
    *(
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 4),
        (5, 6),
        (5, 7),
        (7, 9),
        (6, 8),
        (8, 10),
        (5, 11),
        (6, 12),
        (11, 12),
    ),
    *((11, 13), (13, 15), (12, 14), (14, 16)),
)
YOLO = "yolov8-pose"
YOLO_THRESHOLD = 0.25  # this and the next two are the defaults of Ultralytics' tool
YOLO_IOU = 0.7
YOLO_MAX = 300
_MOVENET = ImageOptions(mean=(0.0,), std=(1.0,), resize="letterbox")
FORMATS = {
    "movenet": _MOVENET,
    "movenet-multipose": _MOVENET,
    "posenet": ImageOptions(mean=(127.5,), std=(127.5,)),
    YOLO: ImageOptions(mean=(0.0,), std=(255.0,), resize="letterbox", fill=(114.0,)),
}
"""Preprocessing as these models' authors name it; their files do not."""

PERSON_THRESHOLD = 0.2
POINT_THRESHOLD = 0.3
MAX_POINTS = 1000


def _pairs(table: TomlTable, key: str) -> tuple[tuple[int, int], ...]:
    value = table.take(key, _are_pairs, "a list of pairs of keypoint numbers")
    return tuple((first, second) for first, second in value or ())


def _are_pairs(value: object) -> bool:
    return isinstance(value, list) and all(_is_pair(pair) for pair in value)


def _is_pair(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(end) is int and 0 <= end < MAX_POINTS for end in value)


class PoseOptions(NamedTuple):
    """The manifest's ``[pose]``; None and empty leave a key to outputs or labels."""

    format: Annotated[str | None, TomlTable.choice, tuple(FORMATS)] = None
    keypoints: Annotated[tuple[str, ...], TomlTable.texts] = ()
    skeleton: Annotated[tuple[tuple[int, int], ...], _pairs] = ()
    heatmaps: Annotated[str | None, TomlTable.text] = None
    offsets: Annotated[str | None, TomlTable.text] = None
    threshold: Annotated[float | None, TomlTable.number, -1e30, 1e30] = None


POSE = Section("pose", PoseOptions)


class Person(NamedTuple):
    """A person's points and scores.

    Attributes:
        points: [k, (x, y)], as ratios of the input.
        scores: [k].
        box: [(left, top), (right, bottom)] as ratios; None if the model finds none.
        class_number: the class of the box.
    """

    points: Array
    scores: Array
    score: float
    box: Array | None = None
    class_number: int = 0


def fits(facts: ModelFacts) -> bool:
    """Return whether the outputs are MoveNet's, or PoseNet's with 17 points."""
    if _is_yolo(facts):
        return takes_picture(facts)
    shapes = [spec.shape for spec in facts.outputs]
    channels = {shape[3] for shape in shapes if len(shape) == 4}
    points = shapes == [(1, 1, 17, 3)] or (
        _format_of(facts.outputs) == "posenet" and {17, 34} <= channels
    )
    return points and takes_picture(facts)


def _is_yolo(facts: ModelFacts) -> bool:
    return is_ultralytics(facts) and facts.properties.get("task") == "pose"


def _format_of(outputs: Sequence[TensorSpec]) -> str | None:
    shapes = [spec.shape for spec in outputs]
    if len(shapes) == 1:
        return _format_of_single(shapes[0])
    maps = [shape for shape in shapes if len(shape) == 4]
    for heat, offset in itertools.product(maps, maps):
        if offset[3] == 2 * heat[3] > 0 and heat[1:3] == offset[1:3]:
            return "posenet"
    return None


def _format_of_single(shape: Sequence[int]) -> str | None:
    if len(shape) == 4 and shape[-1] == 3:
        return "movenet"
    if len(shape) == 3 and shape[-1] == 56:
        return "movenet-multipose"
    return None


def _posenet_outputs(
    options: PoseOptions, outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, TensorSpec]:
    """Return heat maps with a channel per point, and offsets with two."""
    maps = [spec for spec in outputs if len(spec.shape) == 4]
    heatmaps = offsets = maps
    if options.heatmaps is not None:
        heatmaps = [named_tensor(outputs, "pose.heatmaps", options.heatmaps)]
    if options.offsets is not None:
        offsets = [named_tensor(outputs, "pose.offsets", options.offsets)]
    for heat, offset in itertools.product(heatmaps, offsets):
        if len(heat.shape) != 4 or len(offset.shape) != 4:
            continue
        if offset.shape[3] == 2 * heat.shape[3]:
            return heat, offset
    raise ModelLoadError(
        "model.toml: pose.format posenet needs heat maps [1, h, w, k] and offsets [1, h, w, 2 k]"
    )


class PoseEstimation(PictureTask):
    """Read points from PoseNet's maps, MoveNet's output or YOLO's rows."""

    name = NAME
    answer_text = "score, box and keypoints of each body, in pixels of the picture"

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(PoseOptions)
        name = options.format or (
            YOLO if _is_yolo(facts) else _format_of(facts.outputs)
        )
        if name is None:
            raise ModelLoadError(
                f"model.toml: task {NAME} needs [pose] format: {', '.join(FORMATS)}"
            )
        labels = Labels(options.keypoints) if options.keypoints else find_labels(facts)
        self._classes: Sequence[str] = ("person",)
        if name == YOLO:
            self._classes = find_labels(facts).names if _is_yolo(facts) else ()
            labels = Labels(options.keypoints or _keypoint_names(facts))
        super().__init__(picture_input(facts, NAME, FORMATS[name]), labels)
        self._format = name
        self._outputs = facts.outputs[:1]
        if name == "posenet":
            self._outputs = _posenet_outputs(options, facts.outputs)
        if name == YOLO:
            rows = rows_output(facts.outputs, "pose.format", None)
            self._outputs = (rows,)
            self._shape = _keypoint_shape(facts, options)
            extras = self._shape[0] * self._shape[1]
            self._reader = RowReader(rows, extras, len(self._classes))

    def structure(self) -> dict[str, Any]:
        """Return the points' names, by default the 17 of COCO."""
        points = self._point_count()
        return {
            "labels": list(self.labels) or (list(COCO) if points == len(COCO) else [])
        }

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "score", "box", "keypoints"}`` per person, best first.

        Positions are in pixels of the picture. ``threshold`` is a person's lowest score;
        all points are answered, each with its score.
        """
        floor = self._threshold if options.threshold is None else options.threshold
        bodies = self._bodies(runs[0], floor, options)
        people = [person for person in bodies if person.score >= floor]
        people.sort(key=lambda person: -person.score)
        entries: Answer = []
        for person in people[: options.top_k]:
            entries.append(self._entry(person, context, options.language))
        return entries

    def form(self) -> Form:
        """Return the task's form, with point names and a drawing's bones."""
        count = self._point_count()
        names = self._names(count, None)
        return super().form()._replace(keypoints=names, skeleton=self._skeleton(count))

    def _point_count(self) -> int:
        if self._format == YOLO:
            return self._shape[0]
        if self._format == "posenet":
            return self._outputs[0].shape[3]
        return len(COCO)

    def _answer_parameters(self) -> tuple[Parameter, ...]:
        always = parameter("top_k"), parameter("threshold", default=self._threshold)
        if self._format == YOLO:
            return (*always, parameter("iou", default=YOLO_IOU))
        return always

    @property
    def _threshold(self) -> float:
        if self._options.threshold is not None:
            return self._options.threshold
        if self._format == YOLO:
            return YOLO_THRESHOLD
        return PERSON_THRESHOLD

    def _names(self, count: int, language: str | None) -> Sequence[str]:
        return self._labels.in_language(language) or (
            COCO if count == len(COCO) else ()
        )

    def _skeleton(self, count: int) -> Sequence[tuple[int, int]]:
        return self._options.skeleton or (COCO_SKELETON if count == len(COCO) else ())

    def _draw(self, canvas: Canvas, runs: Runs, answer: Answer, context: Any) -> None:
        least = (
            POINT_THRESHOLD
            if self._options.threshold is None
            else self._options.threshold
        )
        for number, entry in enumerate(answer):
            points = entry["keypoints"]
            visible: list[tuple[float, float] | None] = []
            for point in points:
                if point["score"] >= least:
                    visible.append((point["x"], point["y"]))
                else:
                    visible.append(None)
            canvas.skeleton(visible, self._skeleton(len(points)), number)

    def _entry(
        self, person: Person, placement: Placement, language: str | None
    ) -> dict[str, Any]:
        size = np.array(self._picture.size)
        points = placement.to_picture(person.points * size)
        if person.box is not None:
            ends = placement.to_picture(person.box * size)
        else:
            least = min(PERSON_THRESHOLD, float(person.scores.max()))
            ends = points[person.scores >= least]
        return {
            "label": label_of(self._classes, person.class_number),
            "score": person.score,
            "box": _box_around(ends, placement),
            "keypoints": self._keypoints(points, person.scores, language),
        }

    def _keypoints(
        self, points: Array, scores: Array, language: str | None
    ) -> list[dict[str, Any]]:
        names = self._names(len(points), language)
        keypoints = []
        rows = zip(points.tolist(), scores.tolist(), strict=True)
        for index, ((x, y), score) in enumerate(rows):
            keypoints.append(
                {
                    "label": label_of(names, index),
                    "index": index,
                    "x": round(x, 2),
                    "y": round(y, 2),
                    "score": score,
                }
            )
        return keypoints

    def _bodies(
        self, outputs: Arrays, floor: float, options: AnswerOptions
    ) -> list[Person]:
        if self._format == YOLO:
            return self._bodies_in_rows(outputs, floor, options)
        return self._people(outputs)

    def _bodies_in_rows(
        self, outputs: Arrays, floor: float, options: AnswerOptions
    ) -> list[Person]:
        """Return the bodies in YOLO's rows, without those that overlap a better one."""
        try:
            rows = self._reader.read(
                outputs[self._reader.spec.name], self._picture.size, floor
            )
        except ValueError as error:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED, f"the outputs do not fit [pose]: {error}"
            ) from None
        box_type = "center"
        default_iou: float | None = YOLO_IOU
        if rows.suppressed:
            box_type = "boundaries"
            default_iou = None
        boxes = to_corners(rows.boxes, box_type)
        best = np.arange(len(boxes))
        iou = options.values.get("iou", default_iou)
        if iou is not None:
            best = suppress(boxes, rows.classes, iou, YOLO_MAX)
        return [self._body(rows, boxes, int(position)) for position in best]

    def _body(self, rows: Detections, boxes: Array, position: int) -> Person:
        """Return the body in a row, in shares of the model's picture."""
        size = np.array(self._picture.size)
        score = float(rows.scores[position])
        points = rows.extras[position].reshape(self._shape)
        scores = np.full(len(points), score)
        if self._shape[1] == 3:
            scores = points[:, 2]
        ratios = points[:, :2] * rows.scale / size
        box = boxes[position].reshape(2, 2) / size
        return Person(ratios, scores, score, box, int(rows.classes[position]))

    def _people(self, outputs: Arrays) -> list[Person]:
        arrays = [real_values(outputs[spec.name], spec) for spec in self._outputs]
        try:
            people = self._read(arrays)
        except (ValueError, IndexError) as error:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED, f"the outputs do not fit [pose]: {error}"
            ) from None
        usable = []
        for person in people:
            is_finite = (
                np.isfinite(person.points).all() and np.isfinite(person.scores).all()
            )
            if len(person.scores) and is_finite:
                usable.append(person)
        return usable

    def _read(self, arrays: Sequence[Array]) -> list[Person]:
        if self._format == "posenet":
            return [_posenet(arrays[0][0], arrays[1][0], self._picture.size)]
        if self._format == "movenet-multipose":
            people = []
            for row in arrays[0][0]:
                people.append(_person(row[:51].reshape(17, 3), float(row[55])))
            return people
        rows = arrays[0].reshape(-1, 3)
        score = float(rows[:, 2].astype(np.float64).mean())
        return [_person(rows, score)]


def _keypoint_shape(facts: ModelFacts, options: PoseOptions) -> tuple[int, int]:
    """Return the points per body, and the numbers per point.

    The third number is the point's score.
    """
    shape = literal(facts.properties.get("kpt_shape", ""))
    is_usual = (
        isinstance(shape, list | tuple)
        and len(shape) == 2
        and all(type(side) is int for side in shape)
    )
    if is_usual and 0 < shape[0] <= MAX_POINTS and shape[1] in (2, 3):
        return shape[0], shape[1]
    return len(options.keypoints) or len(COCO), 3


def _keypoint_names(facts: ModelFacts) -> tuple[str, ...]:
    """Return the point names of the first class; empty without any."""
    names = literal(facts.properties.get("kpt_names", ""))
    names = names.get(0) if isinstance(names, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _person(rows: Array, score: float) -> Person:
    """Read MoveNet's rows (y, x, score)."""
    values = rows.astype(np.float64)
    return Person(values[:, 1::-1], values[:, 2], score)


def _box_around(points: Array, placement: Placement) -> dict[str, float]:
    """Return the box around points, within the picture."""
    corners = np.concatenate([points.min(axis=0), points.max(axis=0)])
    return box_entry(np.clip(corners, 0, [*placement.picture] * 2))


def _posenet(heat: Array, offsets: Array, size: tuple[int, int]) -> Person:
    """Return each point's hottest cell, moved by the cell's offset in pixels.

    Cells are a stride apart and the first is at 0, so the last of n is at (n - 1) strides.
    PoseNet's maps are logits; those of others may be probabilities.
    """
    rows, columns, count = heat.shape
    flat = heat.reshape(-1, count).astype(np.float64)
    numbers = np.arange(count)
    best = flat.argmax(axis=0)
    scores = flat[best, numbers]
    if flat.min() < 0 or flat.max() > 1:
        scores = sigmoid(scores)
    y, x = np.unravel_index(best, (rows, columns))
    moves = offsets.reshape(-1, 2 * count)[best]
    width, height = size
    cell_y = y * (height - 1) / max(1, rows - 1)
    cell_x = x * (width - 1) / max(1, columns - 1)
    down = cell_y + moves[numbers, numbers]
    right = cell_x + moves[numbers, numbers + count]
    points = np.stack([right / width, down / height], axis=1)
    return Person(points, scores, float(scores.mean()))


POINT = (
    AnswerField("label", "label", "the number of the point"),
    AnswerField("x", "real", "pixels from the left of the upright picture"),
    AnswerField("y", "real", "pixels from its top"),
    SCORE,
)
FIELDS = (
    SCORE,
    BOX,
    AnswerField(
        "keypoints",
        "list",
        "its points, all of them, each with its score",
        POINT,
        "Keypoint",
    ),
)
CALL = TaskCall("estimate", "picture", "Body", FIELDS)
TASK = TaskDefinition(
    NAME, fits, PoseEstimation, (IMAGE, POSE), takes_pictures=True, calls=(CALL,)
)
