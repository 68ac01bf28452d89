"""The roles of a detector's outputs, and the candidate boxes that they hold, for every known layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import BoundingBoxProperties, ModelMetadata, TensorMetadata
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tasks.vision.boxes import decode_anchors, to_corners
from pocketserve.tasks.vision.detection_options import DetectionOptions
from pocketserve.tasks.vision.picture_task import named_output
from pocketserve.tensors import Array, TensorSpec

MAX_CANDIDATES = 1000
"""Boxes that suppression looks at: it compares each with each."""

WORDS = {
    "boxes": ("box", "location", "bbox"),
    "scores": ("score", "conf", "logit", "prob"),
    "classes": ("class", "categor", "label"),
    "count": ("num", "count"),
}
"""Parts of names by which authors call the outputs."""

AMBIGUOUS = ("postprocess", "raw_", "multiclass", "anchor")
"""The operator's own name, the same for all four; and what TensorFlow's exports give besides the answer."""

PLAIN_ORDER = (0, 1, 2, 3)


class Candidates(NamedTuple):
    """Boxes before they are chosen from.

    Attributes:
        boxes: float64 [n, (left, top, right, bottom)], as ratios of the model's input.
        scores: float64 [n].
        classes: int [n].
    """

    boxes: Array
    scores: Array
    classes: Array


class Layout(NamedTuple):
    """The roles and the layout of a detector's outputs.

    Attributes:
        format: one of :data:`FORMATS`.
        outputs: specs by their role: ``boxes``, ``scores``, ``classes``, ``count``; or ``rows`` for one table of all.
        box_type, box_order: see :func:`~pocketserve.tasks.vision.boxes.to_corners`.
        guessed: scores and classes were told apart by their order alone.
    """

    format: str
    outputs: Mapping[str, TensorSpec]
    box_type: str
    box_order: tuple[int, ...]
    guessed: bool = False


class OutputFormat(NamedTuple):
    """A way in which detectors give boxes.

    Attributes:
        roles: outputs that there must be.
        box_type, box_order: as usual for the format.
        suppressed: overlapping boxes were dropped by the model already.
    """

    read: Callable[[Layout, DetectionOptions, Mapping[str, Array], Array | None], Candidates]
    roles: tuple[str, ...]
    box_type: str
    box_order: tuple[int, ...] = PLAIN_ORDER
    suppressed: bool = False


def is_postprocessed(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the outputs have the names of TensorFlow's Object Detection API, or are those of the operator."""
    names = {name.rpartition("/")[2].partition(":")[0] for spec in outputs for name in (spec.name, *spec.aliases)}
    return {"detection_boxes", "detection_classes", "detection_scores"} <= names or _is_operator(outputs)


def _is_operator(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether there are boxes [1, n, 4], two rows [1, n] and a single number."""
    boxes = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[-1] == 4]
    rows = [spec for spec in outputs if len(spec.shape) == 2 and spec.shape[-1] != 1]
    single = [spec for spec in outputs if spec.shape in ((1,), (-1,), (1, 1), (-1, 1), ())]
    return (len(outputs), len(boxes), len(rows), len(single)) == (4, 1, 2, 1)


def find_layout(options: DetectionOptions, outputs: Sequence[TensorSpec], metadata: ModelMetadata) -> Layout:
    """Match the outputs with their roles.

    Raises:
        ModelLoadError: an output that the format needs cannot be told, or is named and not there.
    """
    name = options.format or ("postprocess" if is_postprocessed(outputs) or options.classes else None)
    if name is None:
        raise ModelLoadError(
            f"model.toml: task object-detection needs [detection] format for these outputs: one of {', '.join(FORMATS)}"
        )
    form = FORMATS[name]
    described = metadata.outputs if len(metadata.outputs) == len(outputs) else ()
    box_type, order, guessed = form.box_type, form.box_order, False
    if form.roles == ("rows",):
        roles = {"rows": _rows(options, outputs)}
    else:
        roles, guessed = _roles(options, outputs, described)
    for role in form.roles:
        if role not in roles:
            names = ", ".join(repr(spec.name) for spec in outputs)
            raise ModelLoadError(f"model.toml: detection.{role} must name one of the outputs {names}")
    content = described[list(outputs).index(roles["boxes"])].content if described and "boxes" in roles else None
    properties = content.properties if content is not None else None
    if isinstance(properties, BoundingBoxProperties) and properties.type != "unknown":
        box_type, order = properties.type, properties.order
        order = order if sorted(order) == [0, 1, 2, 3] else PLAIN_ORDER
    if options.box_type is not None:
        box_type, order = options.box_type, PLAIN_ORDER
    return Layout(name, roles, box_type, options.box_order or order, guessed)


def _rows(options: DetectionOptions, outputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the one table of all: the named output, else the first of three dimensions."""
    if options.boxes is not None:
        return named_output(outputs, "detection.boxes", options.boxes)
    for spec in outputs:
        if len(spec.shape) == 3 or spec.open:
            return spec
    raise ModelLoadError(f"model.toml: detection.format {options.format} needs an output of three dimensions")


def _roles(
    options: DetectionOptions, outputs: Sequence[TensorSpec], described: Sequence[TensorMetadata]
) -> tuple[dict[str, TensorSpec], bool]:
    """Return outputs by role, and whether scores and classes were guessed.

    Roles are from the manifest, else the file's metadata, else the outputs' names, else their order.
    """
    roles = {
        role: named_output(outputs, f"detection.{role}", name)
        for role in WORDS
        if (name := getattr(options, role)) is not None
    }

    def assign(role: str | None, spec: TensorSpec) -> None:
        if role is not None and role not in roles and spec not in roles.values() and _could_be(role, spec):
            roles[role] = spec

    for spec, tensor in zip(outputs, described, strict=False):
        assign(_role_of(tensor.name), spec)
    for spec in outputs:
        assign(_role_of(" ".join((spec.name, *spec.aliases))), spec)
    guessed = not {"scores", "classes"} <= set(roles)
    for role, spec in _by_order(outputs).items():
        assign(role, spec)
    return roles, guessed


def _role_of(text: str) -> str | None:
    lowered = text.lower()
    if any(word in lowered for word in AMBIGUOUS):
        return None
    return next((role for role, words in WORDS.items() if any(word in lowered for word in words)), None)


def _could_be(role: str, spec: TensorSpec) -> bool:
    if spec.open or role == "scores":
        return True
    if role == "boxes":
        return len(spec.shape) >= 2 and spec.shape[-1] in (4, -1)
    return len(spec.shape) <= 2


def _by_order(outputs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """Return roles by the order of TensorFlow Lite's operator, of TensorFlow 2's exports, or of boxes and scores."""
    if _is_operator(outputs):
        first_boxes = len(outputs[0].shape) == 3
        names = ("boxes", "classes", "scores", "count") if first_boxes else ("scores", "boxes", "count", "classes")
        return dict(zip(names, outputs, strict=True))
    tables = sorted((spec for spec in outputs if len(spec.shape) >= 2), key=lambda spec: -len(spec.shape))
    boxes = next((spec for spec in tables if spec.shape[-1] == 4), None)
    rest = [spec for spec in outputs if spec is not boxes]
    return ({"boxes": boxes} if boxes else {}) | dict(zip(("scores", "classes"), rest, strict=False))


def read_candidates(
    layout: Layout,
    options: DetectionOptions,
    outputs: Mapping[str, Array],
    anchors: Array | None,
    size: tuple[int, int],
    floor: float,
) -> Candidates:
    """Return the candidates that reach a score, best first, at most MAX_CANDIDATES.

    Args:
        outputs: arrays of one run by output name.
        anchors: of raw SSD boxes; None where boxes are boxes already.
        size: (width, height) of the model's input in pixels.
        floor: lowest score.

    Raises:
        ValueError: the outputs have other shapes than the layout needs.
    """
    values = {role: real_values(outputs[spec.name], spec) for role, spec in layout.outputs.items()}
    boxes, scores, classes = FORMATS[layout.format].read(layout, options, values, anchors)
    best = np.flatnonzero((scores >= floor) & np.isfinite(scores))
    best = best[np.argsort(-scores[best], kind="stable")[:MAX_CANDIDATES]]
    corners = boxes[best]
    if _in_pixels(options, boxes):
        corners = corners / np.array([*size, *size])
    usable = np.isfinite(corners).all(axis=1)
    return Candidates(corners[usable], scores[best][usable], classes[best][usable])


def _in_pixels(options: DetectionOptions, boxes: Array) -> bool:
    """Return whether boxes are in pixels; where nobody says, by size: ratios hardly leave 0 to 1."""
    if options.coordinates is not None:
        return options.coordinates == "pixel"
    finite = boxes[np.isfinite(boxes)]
    return bool(finite.size) and float(np.abs(finite).max()) > 8.0


def _postprocessed(
    layout: Layout, options: DetectionOptions, values: Mapping[str, Array], anchors: Array | None
) -> Candidates:
    scores, classes = values["scores"].reshape(-1), values["classes"].reshape(-1)
    if layout.guessed and _are_whole(scores) and not _are_whole(classes):
        scores, classes = classes, scores
    boxes = values["boxes"].reshape(-1, 4)
    count = min(len(boxes), len(scores), len(classes))
    if "count" in values and values["count"].size == 1 and np.isfinite(values["count"]).all():
        count = min(count, max(0, int(values["count"].reshape(-1)[0])))
    corners = to_corners(boxes[:count], layout.box_type, layout.box_order)
    return Candidates(corners, scores[:count].astype(np.float64), _whole_numbers(classes[:count]))


def _are_whole(values: Array) -> bool:
    return bool((values == np.rint(values)).all())


def _whole_numbers(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(values).astype(np.int64)


def _boxes_and_scores(
    layout: Layout, options: DetectionOptions, values: Mapping[str, Array], anchors: Array | None
) -> Candidates:
    boxes, scores = _table(values["boxes"]), _table(values["scores"])
    if len(boxes) != len(scores) or boxes.shape[1] < 4:
        raise ValueError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not belong together")
    is_detr = layout.format == "detr"
    activation = options.activation or ("softmax" if is_detr else "none")
    scores = activate(scores.astype(np.float64), activation)
    if is_detr and activation == "softmax":
        scores = scores[:, :-1]  # the last class is "no object"
    elif options.background and not is_detr:
        scores = scores[:, 1:]
    if anchors is None or is_detr:
        return _best_classes(to_corners(boxes, layout.box_type, layout.box_order), scores)
    if len(anchors) != len(boxes):
        raise ValueError(f"the model gives {len(boxes)} boxes, but there are {len(anchors)} anchors")
    ordered = boxes[:, list(options.box_order or PLAIN_ORDER)]
    return _best_classes(decode_anchors(ordered, anchors, options.box_scale, options.exponential), scores)


_FIRST_CLASS = {"yolov5": 5, "yolov8": 4, "yolov10": 5}
"""The column behind the box: v5 has (box, object, classes), v8 (box, classes), v10 (box, score, class)."""


def _yolo(layout: Layout, options: DetectionOptions, values: Mapping[str, Array], anchors: Array | None) -> Candidates:
    rows, first = _table(values["rows"]), _FIRST_CLASS[layout.format]
    if layout.format == "yolov8":
        rows = rows.T
    if rows.shape[1] <= first:
        name = layout.outputs["rows"].name
        raise ValueError(f"{layout.format} needs at least {first + 1} numbers a box, output {name!r} has {rows.shape}")
    corners = to_corners(rows, layout.box_type, layout.box_order)
    if layout.format == "yolov10":
        return Candidates(corners, rows[:, 4].astype(np.float64), _whole_numbers(rows[:, 5]))
    scores = activate(rows[:, first:].astype(np.float64), options.activation or "none")
    candidates = _best_classes(corners, scores)
    if first == 5:
        object_scores = activate(rows[:, 4].astype(np.float64), options.activation or "none")
        return candidates._replace(scores=candidates.scores * object_scores)
    return candidates


def _best_classes(boxes: Array, scores: Array) -> Candidates:
    classes = scores.argmax(axis=1)
    return Candidates(boxes, scores[np.arange(len(scores)), classes], classes)


def _table(array: Array) -> Array:
    """Return the first picture's rows [n, columns]."""
    if array.ndim < 2:
        raise ValueError(f"an output of shape {list(array.shape)} holds no table of boxes")
    rows = array[0] if array.ndim >= 3 else array
    return np.asarray(rows.reshape(-1, rows.shape[-1]))


FORMATS = {
    "postprocess": OutputFormat(
        _postprocessed, ("boxes", "scores", "classes"), "boundaries", (1, 0, 3, 2), suppressed=True
    ),
    "ssd": OutputFormat(_boxes_and_scores, ("boxes", "scores"), "boundaries", (1, 0, 3, 2)),
    "yolov5": OutputFormat(_yolo, ("rows",), "center"),
    "yolov8": OutputFormat(_yolo, ("rows",), "center"),
    "yolov10": OutputFormat(_yolo, ("rows",), "boundaries", suppressed=True),
    "detr": OutputFormat(_boxes_and_scores, ("boxes", "scores"), "center", suppressed=True),
}
