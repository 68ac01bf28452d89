"""The roles of a detector's outputs, and the candidate boxes that they hold, for every known layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import (
    BoundingBoxProperties,
    ModelMetadata,
    TensorMetadata,
)
from pocketserve.tasks.model_facts import named_tensor
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tasks.vision.boxes import decode_anchors, to_corners
from pocketserve.tasks.vision.detection_options import FORMAT_NAMES, DetectionOptions
from pocketserve.tensors import Array, TensorSpec

MAX_CANDIDATES = 1000  # boxes that suppression looks at: it compares each with each
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


class OutputFormat(NamedTuple):
    """A way in which detectors give boxes."""

    roles: tuple[str, ...]  # outputs that there must be; ``rows`` is one table of all
    box_type: str  # with ``box_order``: usual arguments of ``to_corners``
    box_order: tuple[int, ...] = PLAIN_ORDER
    suppressed: bool = False  # overlapping boxes were dropped by the model already


FORMATS = {
    "postprocess": OutputFormat(
        ("boxes", "scores", "classes"), "boundaries", (1, 0, 3, 2), suppressed=True
    ),
    "ssd": OutputFormat(("boxes", "scores"), "boundaries", (1, 0, 3, 2)),
    "yolov5": OutputFormat(("rows",), "center"),
    "yolov8": OutputFormat(("rows",), "center"),
    "yolov8-rows": OutputFormat(("rows",), "center"),
    "yolov10": OutputFormat(("rows",), "boundaries", suppressed=True),
    "detr": OutputFormat(("boxes", "scores"), "center", suppressed=True),
    "yolo-rtdetr": OutputFormat(("rows",), "center", suppressed=True),
}


class Candidates(NamedTuple):
    """Boxes [n, (left, top, right, bottom)] before they are chosen from, as ratios of the input; scores and classes."""

    boxes: Array
    scores: Array
    classes: Array


def is_postprocessed(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the outputs have the names of TensorFlow's Object Detection API, or are those of the operator."""
    names = {
        name.rpartition("/")[2].partition(":")[0]
        for spec in outputs
        for name in (spec.name, *spec.aliases)
    }
    return {
        "detection_boxes",
        "detection_classes",
        "detection_scores",
    } <= names or _is_operator(outputs)


def _is_operator(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether there are boxes [1, n, 4], two rows [1, n] and a single number."""
    boxes = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[-1] == 4]
    rows = [spec for spec in outputs if len(spec.shape) == 2 and spec.shape[-1] != 1]
    single = [
        spec for spec in outputs if spec.shape in ((1,), (-1,), (1, 1), (-1, 1), ())
    ]
    return (len(outputs), len(boxes), len(rows), len(single)) == (4, 1, 2, 1)


class DetectionOutputs:
    """The outputs of a detector by their roles, and how they are read.

    Args:
        anchors: of raw SSD boxes; None where boxes are boxes already.

    Attributes:
        activation: what turns numbers into scores; None is the format's usual one.
    """

    def __init__(
        self,
        options: DetectionOptions,
        outputs: Sequence[TensorSpec],
        metadata: ModelMetadata,
        anchors: Array | None = None,
    ) -> None:
        name = options.format or (
            "postprocess" if is_postprocessed(outputs) or options.classes else None
        )
        if name is None:
            raise ModelLoadError(
                "model.toml: task object-detection needs [detection] format for these outputs: one of "
                + ", ".join(FORMAT_NAMES)
            )
        self._options, self._anchors, self.format = options, anchors, name
        self.activation = options.activation
        roles, box_type, order, self.suppressed = FORMATS[name]
        described = metadata.outputs if len(metadata.outputs) == len(outputs) else ()
        self._guessed = False  # scores and classes are told apart by their order alone
        self._roles = (
            {"rows": self._rows(outputs)}
            if roles == ("rows",)
            else self._match(outputs, described)
        )
        for role in roles:
            if role not in self._roles:
                names = ", ".join(repr(spec.name) for spec in outputs)
                raise ModelLoadError(
                    f"model.toml: detection.{role} must name one of the outputs {names}"
                )
        if described and "boxes" in roles:
            content = described[list(outputs).index(self._roles["boxes"])].content
            properties = content.properties if content is not None else None
            if (
                isinstance(properties, BoundingBoxProperties)
                and properties.type != "unknown"
            ):
                box_type = properties.type
                order = (
                    properties.order
                    if sorted(properties.order) == [0, 1, 2, 3]
                    else PLAIN_ORDER
                )
        if options.box_type is not None:
            box_type, order = options.box_type, PLAIN_ORDER
        self._layout = (box_type, options.box_order or order)

    @property
    def class_count(self) -> int:
        """Return how many scores each box has; -1 if only a run shows it, or the format has no such output."""
        shape = self._roles["scores"].shape if "scores" in self._roles else ()
        return shape[-1] if len(shape) >= 2 else -1

    def _rows(self, outputs: Sequence[TensorSpec]) -> TensorSpec:
        """Return the one table of all: the named output, else the first of three dimensions."""
        if self._options.boxes is not None:
            return named_tensor(outputs, "detection.boxes", self._options.boxes)
        for spec in outputs:
            if len(spec.shape) == 3 or spec.open:
                return spec
        raise ModelLoadError(
            f"model.toml: detection.format {self.format} needs an output of three dimensions"
        )

    def _match(
        self, outputs: Sequence[TensorSpec], described: Sequence[TensorMetadata]
    ) -> dict[str, TensorSpec]:
        """Return outputs by role, as the manifest, the file's metadata, the outputs' names and their order tell it."""
        names = {
            role: name
            for role in WORDS
            if (name := getattr(self._options, role)) is not None
        }
        roles = {
            role: named_tensor(outputs, f"detection.{role}", name)
            for role, name in names.items()
        }

        def assign(role: str | None, spec: TensorSpec) -> None:
            if (
                role is not None
                and role not in roles
                and spec not in roles.values()
                and _could_be(role, spec)
            ):
                roles[role] = spec

        for spec, tensor in zip(outputs, described, strict=False):
            assign(_role_of(tensor.name), spec)
        for spec in outputs:
            assign(_role_of(" ".join((spec.name, *spec.aliases))), spec)
        self._guessed = not {"scores", "classes"} <= set(roles)
        for role, spec in _by_order(outputs).items():
            assign(role, spec)
        return roles

    def candidates(
        self, outputs: Mapping[str, Array], size: tuple[int, int], floor: float
    ) -> Candidates:
        """Return the candidates that reach a score, best first, at most MAX_CANDIDATES.

        Args:
            outputs: arrays of one run by output name.
            size: (width, height) of the model's input in pixels.

        Raises:
            ValueError: the outputs have other shapes than the format needs.
        """
        values = {
            role: real_values(outputs[spec.name], spec)
            for role, spec in self._roles.items()
        }
        readers = {
            "postprocess": self._read_postprocessed,
            "ssd": self._read_tables,
            "detr": self._read_tables,
        }
        boxes, scores, classes = readers.get(self.format, self._read_rows)(values)
        best = np.flatnonzero((scores >= floor) & np.isfinite(scores))
        best = best[np.argsort(-scores[best], kind="stable")[:MAX_CANDIDATES]]
        corners = boxes[best]
        in_pixels = self._options.coordinates == "pixel"
        if self._options.coordinates is None:  # ratios hardly leave 0 to 1
            finite = boxes[np.isfinite(boxes)]
            in_pixels = bool(finite.size) and float(np.abs(finite).max()) > 8.0
        if in_pixels:
            corners = corners / np.array([*size, *size])
        usable = np.isfinite(corners).all(axis=1)
        return Candidates(corners[usable], scores[best][usable], classes[best][usable])

    def _read_postprocessed(self, values: Mapping[str, Array]) -> Candidates:
        scores, classes = values["scores"].reshape(-1), values["classes"].reshape(-1)
        if self._guessed and _are_whole(scores) and not _are_whole(classes):
            scores, classes = classes, scores
        boxes = values["boxes"].reshape(-1, 4)
        count = min(len(boxes), len(scores), len(classes))
        if (
            "count" in values
            and values["count"].size == 1
            and np.isfinite(values["count"]).all()
        ):
            count = min(count, max(0, int(values["count"].reshape(-1)[0])))
        corners = to_corners(boxes[:count], *self._layout)
        return Candidates(
            corners, scores[:count].astype(np.float64), _whole_numbers(classes[:count])
        )

    def _read_tables(self, values: Mapping[str, Array]) -> Candidates:
        """Read boxes and scores of all classes: raw or finished ones of an SSD, or DETR's."""
        options, anchors, is_detr = self._options, self._anchors, self.format == "detr"
        boxes, scores = _table(values["boxes"]), _table(values["scores"])
        if len(boxes) != len(scores) or boxes.shape[1] < 4:
            raise ValueError(
                f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not belong together"
            )
        activation = self.activation or ("softmax" if is_detr else "none")
        scores = activate(scores.astype(np.float64), activation)
        if is_detr and activation == "sigmoid":  # a box may have several classes
            return _all_classes(to_corners(boxes, *self._layout), scores)
        if is_detr and activation == "softmax":
            scores = scores[:, :-1]  # the last class is "no object"
        elif options.background and not is_detr:
            scores = scores[:, 1:]
        if anchors is None or is_detr:
            return _best_classes(to_corners(boxes, *self._layout), scores)
        if len(anchors) != len(boxes):
            raise ValueError(
                f"the model gives {len(boxes)} boxes, but there are {len(anchors)} anchors"
            )
        ordered = boxes[:, list(options.box_order or PLAIN_ORDER)]
        return _best_classes(
            decode_anchors(ordered, anchors, options.box_scale, options.exponential),
            scores,
        )

    def _read_rows(self, values: Mapping[str, Array]) -> Candidates:
        """Read rows: YOLO v5 (box, object, classes), v8 (box, classes) transposed, v10 (box, score, class).

        Ultralytics' RT-DETR has those of v8, not transposed, and so have some converted models of v8.
        """
        rows, first_class = _table(values["rows"]), 5
        if self.format == "yolov8":
            rows, first_class = rows.T, 4
        elif self.format in ("yolov8-rows", "yolo-rtdetr"):
            first_class = 4
        if rows.shape[1] <= first_class:
            need = f"{self.format} needs at least {first_class + 1} numbers a box"
            raise ValueError(
                f"{need}, output {self._roles['rows'].name!r} has {rows.shape}"
            )
        corners = to_corners(rows, *self._layout)
        if self.format == "yolov10":
            return Candidates(
                corners, rows[:, 4].astype(np.float64), _whole_numbers(rows[:, 5])
            )
        activation = self._options.activation or "none"
        candidates = _best_classes(
            corners, activate(rows[:, first_class:].astype(np.float64), activation)
        )
        if first_class == 4:
            return candidates
        return candidates._replace(
            scores=candidates.scores
            * activate(rows[:, 4].astype(np.float64), activation)
        )


def _role_of(text: str) -> str | None:
    lowered = text.lower()
    if any(word in lowered for word in AMBIGUOUS):
        return None
    return next(
        (
            role
            for role, words in WORDS.items()
            if any(word in lowered for word in words)
        ),
        None,
    )


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
        names = (
            ("boxes", "classes", "scores", "count")
            if first_boxes
            else ("scores", "boxes", "count", "classes")
        )
        return dict(zip(names, outputs, strict=True))
    tables = sorted(
        (spec for spec in outputs if len(spec.shape) >= 2),
        key=lambda spec: -len(spec.shape),
    )
    boxes = next((spec for spec in tables if spec.shape[-1] == 4), None)
    rest = [spec for spec in outputs if spec is not boxes]
    return ({"boxes": boxes} if boxes else {}) | dict(
        zip(("scores", "classes"), rest, strict=False)
    )


def _are_whole(values: Array) -> bool:
    return bool((values == np.rint(values)).all())


def _whole_numbers(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(values).astype(np.int64)


def _best_classes(boxes: Array, scores: Array) -> Candidates:
    classes = scores.argmax(axis=1)
    return Candidates(boxes, scores[np.arange(len(scores)), classes], classes)


def _all_classes(boxes: Array, scores: Array) -> Candidates:
    """Return a candidate for each class of each box."""
    count = scores.shape[1]
    classes = np.tile(np.arange(count), len(scores))
    return Candidates(np.repeat(boxes, count, axis=0), scores.reshape(-1), classes)


def _table(array: Array) -> Array:
    """Return the first picture's rows [n, columns]."""
    if array.ndim < 2:
        raise ValueError(
            f"an output of shape {list(array.shape)} holds no table of boxes"
        )
    rows = array[0] if array.ndim >= 3 else array
    return np.asarray(rows.reshape(-1, rows.shape[-1]))
