"""A picture in, the points of bodies out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition, single_run
from pocketserve.tasks.labels import Labels, find_labels, label_of
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.scores import real_values, sigmoid
from pocketserve.tasks.vision.geometry import Placement, box_entry
from pocketserve.tasks.vision.options import IMAGE, POSE, ImageOptions, PoseOptions
from pocketserve.tasks.vision.picture_input import PictureInput, picture_input, takes_picture
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.records import dataclass

NAME = "pose-estimation"
COCO = (
    *("nose", "left eye", "right eye", "left ear", "right ear", "left shoulder", "right shoulder", "left elbow"),
    *("right elbow", "left wrist", "right wrist", "left hip", "right hip", "left knee", "right knee"),
    *("left ankle", "right ankle"),
)
COCO_SKELETON = (
    *((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 12)),
    *((11, 13), (13, 15), (12, 14), (14, 16)),
)
USUAL = {
    **dict.fromkeys(("movenet", "movenet-multipose"), ImageOptions(mean=(0.0,), std=(1.0,), resize="letterbox")),
    "posenet": ImageOptions(mean=(127.5,), std=(127.5,)),
}
"""What these models' authors want of a picture; their files do not say it."""

PERSON_THRESHOLD = 0.2
POINT_THRESHOLD = 0.3


def fits(facts: ModelFacts) -> bool:
    """A picture in, and MoveNet's [1, 1, 17, 3] out, or PoseNet's heat maps and offsets of 17 points."""
    shapes = [spec.shape for spec in facts.outputs]
    if not takes_picture(facts):
        return False
    channels = [shape[3] for shape in shapes if len(shape) == 4]
    return shapes == [(1, 1, 17, 3)] or (_format_of(facts.outputs) == "posenet" and {17, 34} <= set(channels))


def create(facts: ModelFacts) -> PoseEstimation:
    """Set up with the manifest's ``[image]`` and ``[pose]``.

    Raises:
        ModelLoadError: input or outputs do not fit.
    """
    options = facts.manifest.section(PoseOptions)
    kind = options.format or _format_of(facts.outputs)
    if kind is None:
        raise ModelLoadError(
            "model.toml: task pose-estimation needs [pose] format: movenet, movenet-multipose or posenet"
        )
    options = dataclasses.replace(options, format=kind)
    roles = _posenet_outputs(options, facts.outputs) if kind == "posenet" else (facts.outputs[0], facts.outputs[0])
    return PoseEstimation(picture_input(facts, NAME, USUAL[kind]), roles, find_labels(facts), options)


def _format_of(outputs: Sequence[TensorSpec]) -> str | None:
    shapes = [spec.shape for spec in outputs]
    if len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][3] == 3:
        return "movenet"
    if len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][2] == 56:
        return "movenet-multipose"
    maps = [shape for shape in shapes if len(shape) == 4]
    return "posenet" if any(b[3] == 2 * a[3] > 0 and a[1:3] == b[1:3] for a in maps for b in maps) else None


def _posenet_outputs(options: PoseOptions, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, TensorSpec]:
    """Heat maps with one channel a point, and offsets with two."""
    named = {role: getattr(options, role) for role in ("heatmaps", "offsets")}
    found = {
        role: next((spec for spec in outputs if name in (spec.name, *spec.aliases)), None)
        for role, name in named.items()
        if name is not None
    }
    missing = next((role for role, spec in found.items() if spec is None), None)
    if missing is not None:
        names = ", ".join(repr(spec.name) for spec in outputs)
        raise ModelLoadError(f"model.toml: pose.{missing} names {named[missing]!r}; the model's outputs are {names}")
    maps = [spec for spec in outputs if len(spec.shape) == 4]
    for heat in maps if found.get("heatmaps") is None else [found["heatmaps"]]:
        for offset in maps if found.get("offsets") is None else [found["offsets"]]:
            if heat is not None and offset is not None and offset.shape[3] == 2 * heat.shape[3]:
                return heat, offset
    raise ModelLoadError("model.toml: pose.format posenet needs heat maps [1, h, w, k] and offsets [1, h, w, 2 k]")


@dataclass(frozen=True, slots=True)
class Body:
    """One body: points [k, (x, y)] as ratios of the input, their scores [k], and its own score."""

    points: Array
    scores: Array
    score: float


class PoseEstimation:
    """Takes a picture; also the input tensor's values as JSON or ``.npy``.

    Args:
        picture: the only input.
        outputs: heat maps and offsets; twice the only output of a MoveNet.
        labels: names of the points, where the manifest's ``[pose]`` gives none.
        options: how the outputs are read, with the format set.
    """

    name = NAME

    def __init__(
        self, picture: PictureInput, outputs: tuple[TensorSpec, TensorSpec], labels: Labels, options: PoseOptions
    ) -> None:
        self.labels = options.keypoints or labels.names
        self._labels = Labels(options.keypoints) if options.keypoints else labels
        self._picture = picture
        self._outputs = outputs
        self._options = options

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        array, placement = self._picture.read(body, hints)
        return single_run({self._picture.spec.name: array}, placement)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """One entry per body, best first: ``{"label", "score", "box", "keypoints"}``, points in pixels of the picture.

        ``threshold`` is the least score of a body; all of a body's points are answered, each with its score.
        """
        placement: Placement = context
        floor = next((v for v in (options.threshold, self._options.threshold) if v is not None), PERSON_THRESHOLD)
        bodies = [body for body in self._bodies(runs[0]) if body.score >= floor]
        bodies.sort(key=lambda body: -body.score)
        return [self._entry(body, placement, options.language) for body in bodies[: options.top_k]]

    def annotate(self, body: memoryview, hints: Hints, runs: Sequence[Arrays], answer: Answer, context: Any) -> bytes:
        """See :class:`~pocketserve.tasks.base.Annotator`: the skeletons."""
        from pocketserve.tasks.vision import drawing  # late: few answers are drawn

        canvas = drawing.Canvas(body, hints, self._picture.max_pixels)
        least = POINT_THRESHOLD if self._options.threshold is None else self._options.threshold
        for number, entry in enumerate(answer):
            points = entry["keypoints"]
            skeleton = self._options.skeleton or (COCO_SKELETON if len(points) == len(COCO) else ())
            seen = [(point["x"], point["y"]) if point["score"] >= least else None for point in points]
            canvas.skeleton(seen, skeleton, number)
        return canvas.png()

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": "score, box and keypoints of each body, in pixels of the picture",
            "example": "photo.jpg",
        }

    def _entry(self, body: Body, placement: Placement, language: str | None) -> dict[str, Any]:
        size = np.array(self._picture.size)
        points = placement.to_picture(body.points * size)
        names = self._labels.in_language(language) or (COCO if len(points) == len(COCO) else ())
        likely = points[body.scores >= min(PERSON_THRESHOLD, float(body.scores.max()))]
        corners = np.clip(np.concatenate([likely.min(axis=0), likely.max(axis=0)]), 0, [*placement.picture] * 2)
        keypoints = [
            {
                "label": label_of(names, index),
                "index": index,
                "x": round(float(x), 2),
                "y": round(float(y), 2),
                "score": float(score),
            }
            for index, ((x, y), score) in enumerate(zip(points, body.scores, strict=True))
        ]
        return {"label": "person", "score": body.score, "box": box_entry(corners), "keypoints": keypoints}

    def _bodies(self, outputs: Arrays) -> list[Body]:
        first, second = (real_values(outputs[spec.name], spec) for spec in self._outputs)
        try:
            if self._options.format == "posenet":
                found = [_posenet(first[0], second[0], self._picture.size)]
            elif self._options.format == "movenet-multipose":
                found = [_body(row[:51].reshape(17, 3), float(row[55])) for row in first[0]]
            else:
                found = [_body(first.reshape(-1, 3))]
        except (ValueError, IndexError) as error:
            raise ApiError(ErrorCode.INFERENCE_FAILED, f"the outputs do not fit [pose]: {error}") from None
        return [body for body in found if len(body.scores) and np.isfinite(body.points).all() and _has_scores(body)]


def _has_scores(body: Body) -> bool:
    return bool(np.isfinite(body.scores).all() and np.isfinite(body.score))


def _body(rows: Array, score: float | None = None) -> Body:
    """MoveNet's rows (y, x, score)."""
    values = rows.astype(np.float64)
    return Body(values[:, 1::-1], values[:, 2], float(values[:, 2].mean()) if score is None else score)


def _posenet(heat: Array, offsets: Array, size: tuple[int, int]) -> Body:
    """The hottest cell of each point, moved by that cell's offset in pixels of the input.

    Cells are a stride apart and the first lies at 0, so that the last of n lies at (n - 1) strides. PoseNet's maps are
    logits; those of others may be probabilities already.
    """
    rows, columns, count = heat.shape
    flat = heat.reshape(-1, count).astype(np.float64)
    best = flat.argmax(axis=0)
    scores = flat[best, np.arange(count)]
    if flat.min() < 0 or flat.max() > 1:
        scores = sigmoid(scores)
    y, x = np.unravel_index(best, (rows, columns))
    moves = offsets.reshape(-1, 2 * count)[best]
    numbers = np.arange(count)
    width, height = size
    down = y * (height - 1) / max(1, rows - 1) + moves[numbers, numbers]
    right = x * (width - 1) / max(1, columns - 1) + moves[numbers, numbers + count]
    points = np.stack([right / width, down / height], axis=1)
    return Body(points, scores, float(scores.mean()))


TASK = TaskDefinition(NAME, fits, create, (IMAGE, POSE), takes_pictures=True)
