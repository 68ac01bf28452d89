"""Find the class of each pixel of a picture."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    Answer,
    AnswerOptions,
    Arrays,
    ExtendedAnswer,
    Runs,
    TaskDefinition,
)
from pocketserve.tasks.entries import CLASS, AnswerField, TaskCall
from pocketserve.tasks.labels import find_labels, label_of
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, named_tensor
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.scores import activate, real_values, sigmoid, softmax
from pocketserve.tasks.vision.geometry import Area, Placement
from pocketserve.tasks.vision.picture_input import (
    PictureTask,
    picture_input,
    takes_picture,
)
from pocketserve.tasks.vision.pictures import CheckedFile
from pocketserve.tasks.vision.preprocessing import IMAGE
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

NAME = "image-segmentation"
BACKGROUND = "background"


class SegmentationOptions(NamedTuple):
    """The manifest's ``[segmentation]``; an empty ``output`` is the only one that fits."""

    output: Annotated[str, TomlTable.text] = ""
    threshold: Annotated[float, TomlTable.number, -1e30, 1e30] = 0.5
    activation: Annotated[str, TomlTable.choice, ("none", "sigmoid")] = "none"
    label_offset: Annotated[int, TomlTable.integer, -1000, 1000] = 0


SEGMENTATION = Section("segmentation", SegmentationOptions)


def fits(facts: ModelFacts) -> bool:
    """Return whether an output is a map of classes."""
    if not takes_picture(facts):
        return False
    names = len(find_labels(facts).names)
    if names < 2:
        return False
    if _queries(facts.outputs) is not None:
        return True
    if len(facts.outputs) != 1:
        return False
    output = facts.outputs[0]
    is_integer = output.datatype.startswith(("INT", "UINT"))
    if len(output.shape) == 3 and is_integer and output.quantization is None:
        return True
    if _is_library_segmenter(facts) and len(output.shape) == 4:
        return output.shape[1] in (-1, names)
    return _channels(output, names) == names


def _is_library_segmenter(facts: ModelFacts) -> bool:
    """Return whether Hugging Face's file describes a segmenter.

    Its maps are [1, classes, height, width].
    """
    architectures = facts.json_beside(CONFIG).get("architectures")
    if not isinstance(architectures, list):
        return False
    return "ForSemanticSegmentation" in str(architectures[:1])


class _QueryOutputs(NamedTuple):
    """MaskFormer's outputs: classes and masks of queries."""

    classes: TensorSpec
    masks: TensorSpec


def _queries(outputs: Sequence[TensorSpec]) -> _QueryOutputs | None:
    """Return MaskFormer's outputs; None for other models."""
    by_name = {spec.name: spec for spec in outputs}
    classes = by_name.get("class_queries_logits")
    masks = by_name.get("masks_queries_logits")
    if classes is None or masks is None:
        return None
    return _QueryOutputs(classes, masks)


def _channels(spec: TensorSpec, names: int) -> int:
    """Return the number of classes of a map; 0 for other outputs.

    Maps are [1, height, width, classes] or [1, classes, height, width].
    """
    if len(spec.shape) != 4 or spec.shape[0] not in (1, -1):
        return 0
    last = spec.shape[3]
    first = spec.shape[1]
    if names > 1 and (last == names) != (first == names):
        return names
    if 0 < last < max(spec.shape[1:3]) or first < 1:
        return last
    return first


class ImageSegmentation(PictureTask):
    """Read maps of scores or of class numbers.

    Scores are [1, height, width, classes] or [1, classes, height, width], class numbers
    [1, height, width]. The manifest's ``[image]``, ``[segmentation]`` and labels apply,
    completed by the model's files.
    """

    name = NAME
    answer_text = (
        "label, index, share and pixels of each class, largest first; with ?mask=png "
        "the mask too"
    )

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__(picture_input(facts, NAME), find_labels(facts))
        self._options = options = facts.manifest.section(SegmentationOptions)
        self.label_offset = options.label_offset
        self._is_channels_first = _is_library_segmenter(facts)
        self._queries = None if options.output else _queries(facts.outputs)
        if self._queries is not None:
            self._output = self._queries.masks
        else:
            self._output = _map_output(facts, options.output)

    def structure(self) -> dict[str, Any]:
        """Return the class names.

        The meaning of a single one depends on the map.
        """
        if len(self.labels) < 2:
            return {}
        return super().structure()

    def answer(
        self, runs: Runs, options: AnswerOptions, context: Any = None
    ) -> Answer | ExtendedAnswer:
        """Return ``{"label", "index", "share", "pixels"}``, the largest share first.

        With ``mask=png`` the answer has the mask, too. ``threshold`` is the lowest share.
        Bars of a letterbox don't count.
        """
        classes, area = self._mask(runs[0], context)
        counts = np.bincount(classes.reshape(-1))
        names = self._names(runs[0], options.language)
        threshold = options.threshold or 0.0
        entries: Answer = []
        for index in np.argsort(-counts, kind="stable").tolist():
            pixels = int(counts[index])
            share = pixels / classes.size
            if not pixels or share < threshold:
                break  # the following ones have fewer pixels
            label = label_of(names, index + self._options.label_offset)
            entries.append(
                {"label": label, "index": index, "share": share, "pixels": pixels}
            )
        entries = entries[: options.top_k]
        if "mask" not in options.values:
            return entries
        mask = base64.b64encode(_png(classes)).decode("ascii")
        return ExtendedAnswer(entries, {"mask": mask, "mask_box": area._asdict()})

    def _answer_parameters(self) -> tuple[Parameter, ...]:
        threshold = parameter(
            "threshold",
            default=0.0,
            text="Smallest share of the picture to return.",
        )
        return parameter("top_k"), threshold, parameter("mask")

    def _draw(self, canvas: Canvas, runs: Runs, answer: Answer, context: Any) -> None:
        classes, area = self._mask(runs[0], context)
        ground = []
        legend = []
        for entry in answer:
            if entry["label"].lower() in (BACKGROUND, "0"):
                ground.append(entry["index"])
            else:
                text = f"{entry['label']} {entry['share']:.0%}"
                legend.append((text, entry["index"]))
        canvas.mask(classes, area, ground)
        canvas.legend(legend)

    def _names(self, outputs: Arrays, language: str | None) -> Sequence[str]:
        """Return the class names.

        The only name of a one-channel map is class 1's.
        """
        names = self._labels.in_language(language)
        if len(names) != 1 or self._options.label_offset:
            return names
        scores = self._map(outputs)
        is_binary = scores.dtype.kind == "f" and np.squeeze(scores).ndim < 3
        if is_binary:
            return (BACKGROUND, *names)
        return names

    def _mask(self, outputs: Arrays, placement: Placement) -> tuple[Array, Area]:
        """Return class numbers [height, width] and their area, without letterbox bars."""
        classes = self._classes(self._map(outputs))
        target = placement.target
        full_width, full_height = placement.input
        rows = _part(target.y, target.height, classes.shape[0], full_height)
        columns = _part(target.x, target.width, classes.shape[1], full_width)
        return classes[rows, columns], placement.source

    def _map(self, outputs: Arrays) -> Array:
        """Return the map of classes.

        MaskFormer's is the sum of its queries' masks, weighted by their classes. Source:
        huggingface/transformers, image_processing_maskformer.py,
        ``post_process_semantic_segmentation``.
        """
        if self._queries is None:
            return real_values(outputs[self._output.name], self._output)
        classes = softmax(_first_row(outputs, self._queries.classes))
        masks = sigmoid(_first_row(outputs, self._queries.masks))
        weights = classes[:, :-1]  # the last class is "no object"
        scores: Array = np.einsum("qc,qhw->chw", weights, masks)[None]
        return scores

    def _class_axis(self, shape: tuple[int, ...]) -> int:
        """Return the axis of the classes in a three-dimensional map."""
        if self._is_channels_first or self._queries is not None:
            return 0
        names = len(self.labels)
        if names > 1 and (shape[0] == names) != (shape[2] == names):
            if shape[0] == names:
                return 0
            return 2
        if shape[2] <= shape[0]:
            return 2
        return 0

    def _classes(self, scores: Array) -> Array:
        """Return each pixel's best class as uint8; uint16 for more than 256 classes."""
        if scores.ndim == 4:
            scores = scores[0]
        if scores.ndim == 3 and scores.shape[0] == 1:
            scores = scores[0]
        if scores.ndim == 3:
            axis = self._class_axis(scores.shape)
            is_single = scores.shape[axis] == 1
            scores = scores.take(0, axis) if is_single else scores.argmax(axis)
        if scores.ndim != 2:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED,
                f"an output of shape {list(scores.shape)} is not a map of classes",
            )
        if scores.dtype.kind not in "iu":
            values = activate(scores, self._options.activation)
            return np.asarray(values > self._options.threshold, np.uint8)
        dtype = np.uint16 if scores.max(initial=0) > 255 else np.uint8
        return np.clip(scores, 0, 65535).astype(dtype)


def _map_output(facts: ModelFacts, name: str) -> TensorSpec:
    """Return the named output, or else the only one that may be a map."""
    if name:
        return named_tensor(facts.outputs, "segmentation.output", name)
    maps = []
    for spec in facts.outputs:
        if spec.open or len(spec.shape) in (3, 4):
            maps.append(spec)
    if len(maps) != 1:
        names = ", ".join(repr(spec.name) for spec in facts.outputs)
        raise ModelLoadError(
            "model.toml: segmentation.output must name the map of classes, one of "
            f"{names}"
        )
    return maps[0]


def _part(start: float, length: float, size: int, full_size: int) -> slice:
    """Scale a range of the input to a map's size; keep at least one element."""
    first = round(start * size / full_size)
    last = round((start + length) * size / full_size)
    return slice(first, max(last, first + 1))


def _first_row(outputs: Arrays, spec: TensorSpec) -> Array:
    row: Array = real_values(outputs[spec.name], spec)[0]
    return row.astype(np.float64)


def _png(classes: Array) -> bytes:
    """Encode class numbers as a PNG.

    It has an 8-bit palette in the drawing's colours, or 16-bit grey.
    """
    import PIL.Image

    from pocketserve.tasks.vision.drawing import colour

    image = PIL.Image.fromarray(classes)
    if classes.dtype == np.uint8:
        image.putpalette([part for index in range(256) for part in colour(index)])
    file = CheckedFile()
    image.save(file, "PNG")
    return file.getvalue()


FIELDS = (
    CLASS,
    AnswerField("share", "real", "its share of the picture, from 0 to 1"),
    AnswerField("pixels", "integer", "the number of its pixels in the mask"),
)
CALL = TaskCall("segment", "picture", "Segment", FIELDS)
TASK = TaskDefinition(
    NAME,
    fits,
    ImageSegmentation,
    (IMAGE, SEGMENTATION),
    takes_pictures=True,
    calls=(CALL,),
)
