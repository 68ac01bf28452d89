"""Read a detector's boxes in every known layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ModelMetadata, TensorMetadata
from pocketserve.runtimes.metadata_parts import BoundingBoxProperties
from pocketserve.tasks.model_facts import named_tensor
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tasks.vision.boxes import decode_anchors, to_corners
from pocketserve.tasks.vision.detection_options import FORMAT_NAMES, DetectionOptions
from pocketserve.tensors import Array, TensorSpec

MAX_CANDIDATES = 1000  # boxes for suppression, which compares all pairs
WORDS = {
    "boxes": ("box", "location", "bbox"),
    "scores": ("score", "conf", "logit", "prob"),
    "classes": ("class", "categor", "label"),
    "count": ("num", "count"),
}
"""Words in the outputs' names, by role."""

AMBIGUOUS = ("postprocess", "raw_", "multiclass", "anchor")
"""Words that say nothing: the operator's own name, the same for all four outputs, and
outputs of TensorFlow's exports beside the answer."""

PLAIN_ORDER = (0, 1, 2, 3)
PIXELS_FROM = 8.0


class OutputFormat(NamedTuple):
    """A layout of a detector's outputs.

    Attributes:
        roles: required outputs; ``rows`` is one table of everything.
        box_type: with ``box_order``, the default arguments of ``to_corners``.
        suppressed: whether the model suppresses overlapping boxes itself.
    """

    roles: tuple[str, ...]
    box_type: str
    box_order: tuple[int, ...] = PLAIN_ORDER
    suppressed: bool = False


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


_WITHOUT_OBJECT_SCORE = ("yolov8", "yolov8-rows", "yolo-rtdetr")


class Candidates(NamedTuple):
    """Candidate boxes as ratios of the input, with scores and classes.

    Boxes are [n, (left, top, right, bottom)].
    """

    boxes: Array
    scores: Array
    classes: Array


def is_postprocessed(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the outputs are those of TensorFlow's Object Detection API.

    They have its names, or the shapes of its TFLite operator.
    """
    names = set()
    for spec in outputs:
        for name in (spec.name, *spec.aliases):
            names.add(name.rpartition("/")[2].partition(":")[0])
    expected = {"detection_boxes", "detection_classes", "detection_scores"}
    return expected <= names or _is_operator(outputs)


def _is_operator(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether there are boxes [1, n, 4], two rows [1, n] and a number."""
    boxes = 0
    rows = 0
    numbers = 0
    for spec in outputs:
        shape = spec.shape
        if len(shape) == 3 and shape[-1] == 4:
            boxes += 1
        if len(shape) == 2 and shape[-1] != 1:
            rows += 1
        if shape in ((1,), (-1,), (1, 1), (-1, 1), ()):
            numbers += 1
    return (len(outputs), boxes, rows, numbers) == (4, 1, 2, 1)


class DetectionOutputs:
    """A detector's outputs by role, and their layout.

    Args:
        anchors: of raw SSD boxes; None if boxes are final.

    Attributes:
        activation: turns numbers into scores; None is the format's default.
    """

    def __init__(
        self,
        options: DetectionOptions,
        outputs: Sequence[TensorSpec],
        metadata: ModelMetadata,
        anchors: Array | None = None,
    ) -> None:
        name = options.format
        if name is None and (is_postprocessed(outputs) or options.classes):
            name = "postprocess"
        if name is None:
            raise ModelLoadError(
                "model.toml: task object-detection needs [detection] format for these outputs: one of "
                + ", ".join(FORMAT_NAMES)
            )
        self._options = options
        self._anchors = anchors
        self.format = name
        self.activation = options.activation
        layout = FORMATS[name]
        self.suppressed = layout.suppressed
        described = metadata.outputs if len(metadata.outputs) == len(outputs) else ()
        self._guessed = False  # only the order tells scores from classes
        if layout.roles == ("rows",):
            self._roles = {"rows": self._rows(outputs)}
        else:
            self._roles = self._match(outputs, described)
        self._check_roles(layout.roles, outputs)
        box_type = layout.box_type
        order = layout.box_order
        if options.box_type is not None:
            box_type = options.box_type
            order = PLAIN_ORDER
        elif described and "boxes" in layout.roles:
            position = list(outputs).index(self._roles["boxes"])
            box_type, order = _described_layout(described[position], layout)
        self._layout = (box_type, options.box_order or order)

    def _check_roles(
        self, required: Iterable[str], outputs: Sequence[TensorSpec]
    ) -> None:
        for role in required:
            if role not in self._roles:
                names = ", ".join(repr(spec.name) for spec in outputs)
                raise ModelLoadError(
                    f"model.toml: detection.{role} must name one of the outputs {names}"
                )

    @property
    def class_count(self) -> int:
        """Return the number of scores per box; -1 if unknown before a run."""
        shape = self._roles["scores"].shape if "scores" in self._roles else ()
        if len(shape) >= 2:
            return shape[-1]
        return -1

    def _rows(self, outputs: Sequence[TensorSpec]) -> TensorSpec:
        """Return the named output, else the first with three dimensions."""
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
        """Assign outputs to roles by manifest, metadata, names and order."""
        roles: dict[str, TensorSpec] = {}
        for role in WORDS:
            name = getattr(self._options, role)
            if name is not None:
                roles[role] = named_tensor(outputs, f"detection.{role}", name)
        for spec, tensor in zip(outputs, described, strict=False):
            _assign(roles, _role_of(tensor.name), spec)
        for spec in outputs:
            _assign(roles, _role_of(" ".join((spec.name, *spec.aliases))), spec)
        self._guessed = not {"scores", "classes"} <= set(roles)
        for role, spec in _by_order(outputs).items():
            _assign(roles, role, spec)
        return roles

    def candidates(
        self, outputs: Mapping[str, Array], size: tuple[int, int], floor: float
    ) -> Candidates:
        """Return the candidates that reach a score, best first.

        There are at most MAX_CANDIDATES.

        Args:
            outputs: arrays of one run by output name.
            size: (width, height) of the model's input in pixels.

        Raises:
            ValueError: the outputs don't have the format's shapes.
        """
        values = {}
        for role, spec in self._roles.items():
            values[role] = real_values(outputs[spec.name], spec)
        boxes, scores, classes = self._read(values)
        best = np.flatnonzero((scores >= floor) & np.isfinite(scores))
        order = np.argsort(-scores[best], kind="stable")
        best = best[order[:MAX_CANDIDATES]]
        corners = boxes[best]
        if self._are_pixels(boxes):
            corners = corners / np.array([*size, *size])
        usable = np.isfinite(corners).all(axis=1)
        return Candidates(corners[usable], scores[best][usable], classes[best][usable])

    def _read(self, values: Mapping[str, Array]) -> Candidates:
        if self.format == "postprocess":
            return self._read_postprocessed(values)
        if self.format in ("ssd", "detr"):
            return self._read_tables(values)
        return self._read_rows(values)

    def _are_pixels(self, boxes: Array) -> bool:
        """Return whether boxes are in pixels, not ratios.

        Ratios hardly leave the range from 0 to 1.
        """
        if self._options.coordinates is not None:
            return self._options.coordinates == "pixel"
        finite = boxes[np.isfinite(boxes)]
        return bool(finite.size) and float(np.abs(finite).max()) > PIXELS_FROM

    def _read_postprocessed(self, values: Mapping[str, Array]) -> Candidates:
        scores = values["scores"].reshape(-1)
        classes = values["classes"].reshape(-1)
        if self._guessed and _are_whole(scores) and not _are_whole(classes):
            scores, classes = classes, scores
        boxes = values["boxes"].reshape(-1, 4)
        count = min(len(boxes), len(scores), len(classes))
        stated = values.get("count")
        if stated is not None and stated.size == 1 and np.isfinite(stated).all():
            count = min(count, max(0, int(stated.reshape(-1)[0])))
        corners = to_corners(boxes[:count], *self._layout)
        return Candidates(
            corners, scores[:count].astype(np.float64), _whole_numbers(classes[:count])
        )

    def _read_tables(self, values: Mapping[str, Array]) -> Candidates:
        """Read an SSD's or DETR's boxes and scores."""
        boxes = _table(values["boxes"])
        scores = _table(values["scores"])
        if len(boxes) != len(scores) or boxes.shape[1] < 4:
            raise ValueError(
                f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not belong together"
            )
        if self.format == "detr":
            return self._read_detr(boxes, scores)
        options = self._options
        anchors = self._anchors
        scores = activate(scores.astype(np.float64), self.activation or "none")
        if options.background:
            scores = scores[:, 1:]
        if anchors is None:
            return _best_classes(to_corners(boxes, *self._layout), scores)
        return _best_classes(self._decoded(boxes, anchors), scores)

    def _decoded(self, boxes: Array, anchors: Array) -> Array:
        """Return the corners of boxes that are relative to anchors."""
        options = self._options
        if len(anchors) != len(boxes):
            raise ValueError(
                f"the model gives {len(boxes)} boxes, but there are {len(anchors)} "
                "anchors"
            )
        ordered = boxes[:, list(options.box_order or PLAIN_ORDER)]
        return decode_anchors(ordered, anchors, options.box_scale, options.exponential)

    def _read_detr(self, boxes: Array, logits: Array) -> Candidates:
        activation = self.activation or "softmax"
        scores = activate(logits.astype(np.float64), activation)
        corners = to_corners(boxes, *self._layout)
        if activation == "sigmoid":  # a box may have several classes
            return _all_classes(corners, scores)
        if activation == "softmax":
            scores = scores[:, :-1]  # the last class is "no object"
        return _best_classes(corners, scores)

    def _read_rows(self, values: Mapping[str, Array]) -> Candidates:
        """Read YOLO's rows.

        They are (box, object, classes) in v5, (box, classes) in v8, transposed, and (box,
        score, class) in v10. Ultralytics' RT-DETR and some converted v8 models have those of
        v8, not transposed.
        """
        rows = _table(values["rows"])
        if self.format == "yolov8":
            rows = rows.T
        first_class = 5
        if self.format in _WITHOUT_OBJECT_SCORE:
            first_class = 4
        if rows.shape[1] <= first_class:
            need = f"{self.format} needs at least {first_class + 1} numbers a box"
            raise ValueError(
                f"{need}, output {self._roles['rows'].name!r} has {rows.shape}"
            )
        corners = to_corners(rows, *self._layout)
        if self.format == "yolov10":
            scores = rows[:, 4].astype(np.float64)
            return Candidates(corners, scores, _whole_numbers(rows[:, 5]))
        activation = self._options.activation or "none"
        class_scores = activate(rows[:, first_class:].astype(np.float64), activation)
        candidates = _best_classes(corners, class_scores)
        if first_class == 4:
            return candidates
        object_scores = activate(rows[:, 4].astype(np.float64), activation)
        return candidates._replace(scores=candidates.scores * object_scores)


def _described_layout(
    tensor: TensorMetadata, layout: OutputFormat
) -> tuple[str, tuple[int, ...]]:
    """Return the box type and order in the metadata, else the format's."""
    properties = None
    if tensor.content is not None:
        properties = tensor.content.properties
    if not isinstance(properties, BoundingBoxProperties):
        return layout.box_type, layout.box_order
    if properties.type == "unknown":
        return layout.box_type, layout.box_order
    is_order = sorted(properties.order) == list(PLAIN_ORDER)
    return properties.type, properties.order if is_order else PLAIN_ORDER


def _assign(roles: dict[str, TensorSpec], role: str | None, spec: TensorSpec) -> None:
    """Give an output a role if both are free and the shape fits."""
    if role is None or role in roles or spec in roles.values():
        return
    if _could_be(role, spec):
        roles[role] = spec


def _role_of(text: str) -> str | None:
    lowered = text.lower()
    if any(word in lowered for word in AMBIGUOUS):
        return None
    for role, words in WORDS.items():
        if any(word in lowered for word in words):
            return role
    return None


def _could_be(role: str, spec: TensorSpec) -> bool:
    if spec.open or role == "scores":
        return True
    if role == "boxes":
        return len(spec.shape) >= 2 and spec.shape[-1] in (4, -1)
    return len(spec.shape) <= 2


def _by_order(outputs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """Assign roles by the usual order of outputs.

    It is that of TensorFlow Lite's operator, of TensorFlow 2's exports, or boxes before
    scores.
    """
    if _is_operator(outputs):
        names = ("scores", "boxes", "count", "classes")
        if len(outputs[0].shape) == 3:
            names = ("boxes", "classes", "scores", "count")
        return dict(zip(names, outputs, strict=True))
    tables = [spec for spec in outputs if len(spec.shape) >= 2]
    tables.sort(key=lambda spec: -len(spec.shape))
    roles = {}
    for spec in tables:
        if spec.shape[-1] == 4:
            roles["boxes"] = spec
            break
    boxes = roles.get("boxes")
    rest = [spec for spec in outputs if spec is not boxes]
    roles.update(zip(("scores", "classes"), rest, strict=False))
    return roles


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
    rows = array
    if array.ndim >= 3:
        rows = array[0]
    return np.asarray(rows.reshape(-1, rows.shape[-1]))
