"""Which of a detector's outputs is what, and the candidates that they hold, whatever the layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import BoundingBoxProperties, ModelMetadata
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tasks.vision.boxes import MAX_CANDIDATES, decode_anchors, to_corners
from pocketserve.tasks.vision.options import DetectionOptions
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire.records import dataclass

WORDS = {
    "boxes": ("box", "location", "bbox"),
    "scores": ("score", "conf", "logit", "prob"),
    "classes": ("class", "categor", "label"),
    "count": ("num", "count"),
}
"""Parts of names by which authors call the outputs."""

AMBIGUOUS = ("postprocess", "raw_", "multiclass", "anchor")
"""The operator's own name, the same for all four; and what TensorFlow's exports give besides the answer."""

ROLES = ("boxes", "classes", "scores", "count")
"""The order of TensorFlow Lite's own operator; see :func:`_by_order` for the other one in use."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes before they are chosen from, as ratios of the model's input.

    Attributes:
        boxes: float64 [n, (left, top, right, bottom)].
        scores: float64 [n].
        classes: int [n].
    """

    boxes: Array
    scores: Array
    classes: Array


@dataclass(frozen=True, slots=True)
class Layout:
    """How outputs are read.

    Attributes:
        format: one of DETECTION_FORMATS.
        outputs: specs by their role: ``boxes``, ``scores``, ``classes``, ``count``; or ``rows`` for one table of all.
        box_type, box_order: see :func:`~pocketserve.tasks.vision.boxes.to_corners`.
        sure: which output is classes and which scores was said, not guessed from their order.
    """

    format: str
    outputs: Mapping[str, TensorSpec]
    box_type: str
    box_order: tuple[int, ...]
    sure: bool = True


def is_postprocessed(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether there are boxes [1, n, 4], two rows [1, n] and a single number, the operator's four outputs; or
    outputs with the names of TensorFlow's Object Detection API.
    """
    names = {name.rpartition("/")[2].partition(":")[0] for spec in outputs for name in (spec.name, *spec.aliases)}
    if {"detection_boxes", "detection_classes", "detection_scores"} <= names:
        return True
    return _is_operator(outputs)


def _is_operator(outputs: Sequence[TensorSpec]) -> bool:
    if len(outputs) != 4:
        return False
    boxes = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[-1] == 4]
    rows = [spec for spec in outputs if len(spec.shape) == 2 and spec.shape[-1] != 1]
    single = [spec for spec in outputs if spec.shape in ((1,), (-1,), (1, 1), (-1, 1), ())]
    return (len(boxes), len(rows), len(single)) == (1, 2, 1)


def find_layout(options: DetectionOptions, outputs: Sequence[TensorSpec], metadata: ModelMetadata | None) -> Layout:
    """Match the outputs with their roles.

    Raises:
        ModelLoadError: an output that the format needs cannot be told, or is named and not there.
    """
    kind = options.format or ("postprocess" if is_postprocessed(outputs) or options.classes else None)
    if kind is None:
        raise ModelLoadError(
            "model.toml: task object-detection needs [detection] format for these outputs: one of postprocess, ssd, "
            "yolov5, yolov8, yolov10, detr"
        )
    if kind.startswith("yolo"):
        return Layout(kind, {"rows": _rows(options, outputs)}, *_box_layout(options, "center", (0, 1, 2, 3), None))
    roles, sure = _roles(options, outputs, metadata, ("boxes", "scores", "classes", "count"))
    needed = ("boxes", "scores", "classes") if kind == "postprocess" else ("boxes", "scores")
    missing = [role for role in needed if role not in roles]
    if missing:
        names = ", ".join(repr(spec.name) for spec in outputs)
        raise ModelLoadError(f"model.toml: detection.{missing[0]} must name one of the outputs {names}")
    usual = ("center", (0, 1, 2, 3)) if kind == "detr" else ("boundaries", (1, 0, 3, 2))
    found = _properties(metadata, outputs, roles["boxes"])
    return Layout(kind, roles, *_box_layout(options, *usual, found), sure)


def _rows(options: DetectionOptions, outputs: Sequence[TensorSpec]) -> TensorSpec:
    """The one table of all: the named output, else the first of three dimensions."""
    if options.boxes is not None:
        return _named(outputs, "boxes", options.boxes)
    fitting = [spec for spec in outputs if len(spec.shape) == 3 or spec.open]
    if not fitting:
        raise ModelLoadError(f"model.toml: detection.format {options.format} needs an output of three dimensions")
    return fitting[0]


def _box_layout(
    options: DetectionOptions, kind: str, order: tuple[int, ...], found: BoundingBoxProperties | None
) -> tuple[str, tuple[int, ...]]:
    """Type and order of the boxes: as the manifest says, else the file, else as is usual for the format."""
    if found is not None and found.type != "unknown":
        kind, order = found.type, found.order if sorted(found.order) == [0, 1, 2, 3] else (0, 1, 2, 3)
    if options.box_type is not None:
        kind, order = options.box_type, (0, 1, 2, 3)
    return kind, options.box_order or order


def _properties(
    metadata: ModelMetadata | None, outputs: Sequence[TensorSpec], boxes: TensorSpec
) -> BoundingBoxProperties | None:
    if metadata is None or len(metadata.outputs) != len(outputs):
        return None
    content = metadata.outputs[list(outputs).index(boxes)].content
    properties = content.properties if content is not None else None
    return properties if isinstance(properties, BoundingBoxProperties) else None


def _roles(
    options: DetectionOptions,
    outputs: Sequence[TensorSpec],
    metadata: ModelMetadata | None,
    wanted: Sequence[str],
) -> tuple[dict[str, TensorSpec], bool]:
    """Outputs by role: named in the manifest, by the file's metadata, by their names, and at last by order."""
    roles = {role: _named(outputs, role, name) for role in wanted if (name := getattr(options, role)) is not None}
    described = metadata.outputs if metadata is not None and len(metadata.outputs) == len(outputs) else ()
    for texts in ([tensor.name for tensor in described], [" ".join((s.name, *s.aliases)) for s in outputs]):
        for spec, text in zip(outputs, texts, strict=False):
            role = _role_of(text)
            if role is not None and role not in roles and spec not in roles.values() and _could_be(role, spec):
                roles[role] = spec
    sure = "scores" in roles and "classes" in roles
    for role, spec in _by_order(outputs).items():
        if role not in roles and spec not in roles.values() and _could_be(role, spec):
            roles[role] = spec
    return roles, sure


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
    """The operator gives boxes, classes, scores, count; TensorFlow 2's exports give scores, boxes, count, classes."""
    if _is_operator(outputs):
        swapped = len(outputs[0].shape) != 3
        return dict(zip(("scores", "boxes", "count", "classes") if swapped else ROLES, outputs, strict=True))
    tables = sorted((spec for spec in outputs if len(spec.shape) >= 2), key=lambda spec: -len(spec.shape))
    boxes = next((spec for spec in tables if spec.shape[-1] == 4), None)
    others = [spec for spec in outputs if spec is not boxes]
    return ({"boxes": boxes} if boxes else {}) | (dict(zip(("scores", "classes"), others, strict=False)))


def _named(outputs: Sequence[TensorSpec], role: str, name: str) -> TensorSpec:
    for spec in outputs:
        if name == spec.name or name in spec.aliases:
            return spec
    names = ", ".join(repr(spec.name) for spec in outputs)
    raise ModelLoadError(f"model.toml: detection.{role} names {name!r}; the model's outputs are {names}")


def read_candidates(
    layout: Layout,
    options: DetectionOptions,
    outputs: Mapping[str, Array],
    anchors: Array | None,
    size: tuple[int, int],
    floor: float,
) -> Candidates:
    """The candidates that reach a score, best first, at most MAX_CANDIDATES.

    Args:
        outputs: arrays of one run by output name.
        anchors: of raw SSD boxes; None where boxes are boxes already.
        size: (width, height) of the model's input in pixels.
        floor: lowest score.

    Raises:
        ValueError: the outputs have other shapes than the layout needs.
    """
    read = _READERS["yolo" if layout.format.startswith("yolo") else layout.format]
    boxes, scores, classes = read(layout, options, outputs, anchors)
    keep = np.flatnonzero((scores >= floor) & np.isfinite(scores))
    keep = keep[np.argsort(-scores[keep], kind="stable")[:MAX_CANDIDATES]]
    corners = boxes[keep]
    if _in_pixels(options, boxes):
        corners = corners / np.array([*size, *size])
    usable = np.isfinite(corners).all(axis=1)
    return Candidates(corners[usable], scores[keep][usable], classes[keep][usable])


Raw = tuple[Array, Array, Array]


def _postprocessed(
    layout: Layout, options: DetectionOptions, outputs: Mapping[str, Array], anchors: Array | None
) -> Raw:
    values = {role: real_values(outputs[spec.name], spec) for role, spec in layout.outputs.items()}
    scores, classes = values["scores"].reshape(-1), values["classes"].reshape(-1)
    if not layout.sure and _whole(scores) and not _whole(classes):
        scores, classes = classes, scores
    boxes = values["boxes"].reshape(-1, 4)
    count = min(len(boxes), len(scores), len(classes))
    if "count" in values and values["count"].size == 1 and np.isfinite(values["count"]).all():
        count = min(count, max(0, int(values["count"].reshape(-1)[0])))
    corners = to_corners(boxes[:count], layout.box_type, layout.box_order)
    with np.errstate(invalid="ignore"):
        numbers = np.nan_to_num(classes[:count]).astype(np.int64)
    return corners, scores[:count].astype(np.float64), numbers


def _whole(values: Array) -> bool:
    return bool((values == np.rint(values)).all())


def _raw_ssd(layout: Layout, options: DetectionOptions, outputs: Mapping[str, Array], anchors: Array | None) -> Raw:
    values = {role: real_values(outputs[spec.name], spec) for role, spec in layout.outputs.items()}
    boxes, scores = _table(values["boxes"]), _table(values["scores"])
    if len(boxes) != len(scores) or boxes.shape[1] < 4:
        raise ValueError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not belong together")
    probabilities = activate(scores.astype(np.float64), options.activation or "none")
    best, numbers = _best_class(probabilities[:, 1:] if options.background else probabilities)
    if anchors is None:
        return to_corners(boxes, layout.box_type, layout.box_order), best, numbers
    if len(anchors) != len(boxes):
        raise ValueError(f"the model gives {len(boxes)} boxes, but there are {len(anchors)} anchors")
    ordered = boxes[:, list(options.box_order or (0, 1, 2, 3))]
    return decode_anchors(ordered, anchors, options.box_scale, options.exponential), best, numbers


def _detr(layout: Layout, options: DetectionOptions, outputs: Mapping[str, Array], anchors: Array | None) -> Raw:
    values = {role: real_values(outputs[spec.name], spec) for role, spec in layout.outputs.items()}
    boxes, scores = _table(values["boxes"]), _table(values["scores"]).astype(np.float64)
    if options.activation in (None, "softmax"):
        scores = activate(scores, "softmax")[:, :-1]  # the last class is "no object"
    else:
        scores = activate(scores, options.activation or "none")
    best, numbers = _best_class(scores)
    return to_corners(boxes, layout.box_type, layout.box_order), best, numbers


def _yolo(layout: Layout, options: DetectionOptions, outputs: Mapping[str, Array], anchors: Array | None) -> Raw:
    """v5: rows (box, object, classes); v8: the same transposed and without object; v10: (corners, score, class)."""
    spec = layout.outputs["rows"]
    rows = _table(real_values(outputs[spec.name], spec))
    if layout.format == "yolov8":
        rows = rows.T
    least = {"yolov5": 6, "yolov8": 5, "yolov10": 6}[layout.format]
    if rows.shape[1] < least:
        raise ValueError(f"{layout.format} needs at least {least} numbers a box, output {spec.name!r} has {rows.shape}")
    if layout.format == "yolov10":
        corners = to_corners(rows, options.box_type or "boundaries", options.box_order)
        return corners, rows[:, 4].astype(np.float64), np.nan_to_num(rows[:, 5]).astype(np.int64)
    start = 5 if layout.format == "yolov5" else 4
    scores = activate(rows[:, start:].astype(np.float64), options.activation or "none")
    best, numbers = _best_class(scores)
    if start == 5:
        best = best * activate(rows[:, 4].astype(np.float64), options.activation or "none")
    return to_corners(rows, layout.box_type, layout.box_order), best, numbers


_READERS = {"postprocess": _postprocessed, "ssd": _raw_ssd, "detr": _detr, "yolo": _yolo}


def _best_class(scores: Array) -> tuple[Array, Array]:
    numbers = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), numbers], numbers


def _table(array: Array) -> Array:
    """The first picture's rows [n, columns]."""
    if array.ndim < 2:
        raise ValueError(f"an output of shape {list(array.shape)} holds no table of boxes")
    rows = array[0] if array.ndim >= 3 else array
    found: Array = rows.reshape(-1, rows.shape[-1])
    return found


def _in_pixels(options: DetectionOptions, boxes: Array) -> bool:
    """Return where nobody says: ratios hardly leave 0 to 1, and pixels of many boxes always do."""
    if options.coordinates is not None:
        return options.coordinates == "pixel"
    finite = boxes[np.isfinite(boxes)]
    return bool(finite.size) and float(np.abs(finite).max()) > 8.0
