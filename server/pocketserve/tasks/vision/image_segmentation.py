"""A picture in; which class each of its pixels has."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Arrays,
    Detailed,
    Hints,
    Prepared,
    TaskDefinition,
    single_run,
)
from pocketserve.tasks.labels import Labels, find_labels, label_of
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tasks.vision.geometry import Area, Placement
from pocketserve.tasks.vision.options import IMAGE, SEGMENTATION, SegmentationOptions
from pocketserve.tasks.vision.picture_input import PictureInput, picture_input, takes_picture
from pocketserve.tasks.vision.pictures import CheckedFile
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode

NAME = "image-segmentation"
BACKGROUND = "background"


def fits(facts: ModelFacts) -> bool:
    """A picture in, and a map out with a channel for each of the names or of numbers that have names."""
    if not takes_picture(facts) or len(facts.outputs) != 1:
        return False
    names, output = len(find_labels(facts).names), facts.outputs[0]
    if len(output.shape) == 3 and output.datatype.startswith(("INT", "UINT")) and output.quantization is None:
        return names > 1
    return names > 1 and _channels(output) == names


def create(facts: ModelFacts) -> ImageSegmentation:
    """Set up with the manifest's ``[image]``, ``[segmentation]`` and labels, completed by what the files say.

    Raises:
        ModelLoadError: input or output do not fit.
    """
    options = facts.manifest.section(SegmentationOptions)
    fitting = [spec for spec in facts.outputs if options.output in (spec.name, *spec.aliases)]
    if options.output is None:
        fitting = [spec for spec in facts.outputs if spec.open or len(spec.shape) in (3, 4)]
    if len(fitting) != 1:
        names = ", ".join(repr(spec.name) for spec in facts.outputs)
        raise ModelLoadError(f"model.toml: segmentation.output must name the map of classes, one of {names}")
    return ImageSegmentation(picture_input(facts, NAME), fitting[0], find_labels(facts), options)


def _channels(spec: TensorSpec) -> int:
    """Classes of a map [1, height, width, classes] or [1, classes, height, width]; 0 for what is no such map."""
    if len(spec.shape) != 4 or spec.shape[0] not in (1, -1):
        return 0
    last, first = spec.shape[3], spec.shape[1]
    return last if 0 < last < max(spec.shape[1:3]) or first < 1 else first


class ImageSegmentation:
    """Takes a picture; also the input tensor's values as JSON or ``.npy``.

    Args:
        picture: the only input.
        output: scores [1, height, width, classes] or [1, classes, height, width], or class numbers [1, height, width].
        labels: class names.
        options: how the output is read.
    """

    name = NAME

    def __init__(self, picture: PictureInput, output: TensorSpec, labels: Labels, options: SegmentationOptions) -> None:
        self.labels = labels.names
        self._labels = labels
        self._picture = picture
        self._output = output
        self._options = options

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        array, placement = self._picture.read(body, hints)
        return single_run({self._picture.spec.name: array}, placement)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer | Detailed:
        """``{"label", "index", "share", "pixels"}``, the largest first; with ``mask=png`` also the mask itself.

        ``threshold`` is the least share. Bars of a letterbox do not count.
        """
        classes, area = self._mask(runs[0], context)
        counts = np.bincount(classes.reshape(-1))
        order = np.argsort(-counts, kind="stable")
        names = self._names(runs[0], options.language)
        least = options.threshold or 0.0
        entries: Answer = [
            {
                "label": label_of(names, int(index) + self._options.label_offset),
                "index": int(index),
                "share": float(counts[index] / classes.size),
                "pixels": int(counts[index]),
            }
            for index in order
            if counts[index] and counts[index] / classes.size >= least
        ]
        entries = entries[: options.top_k]
        if "mask" not in options.values:
            return entries
        box = {"x": area.x, "y": area.y, "width": area.width, "height": area.height}
        return Detailed(entries, {"mask": base64.b64encode(_png(classes)).decode("ascii"), "mask_box": box})

    def annotate(self, body: memoryview, hints: Hints, runs: Sequence[Arrays], answer: Answer, context: Any) -> bytes:
        """See :class:`~pocketserve.tasks.base.Annotator`: each class in a colour over the picture, with a legend."""
        from pocketserve.tasks.vision import drawing  # late: few answers are drawn

        canvas = drawing.Canvas(body, hints, self._picture.max_pixels)
        classes, area = self._mask(runs[0], context)
        ground = [entry["index"] for entry in answer if entry["label"].lower() in (BACKGROUND, "0")]
        canvas.mask(classes, area, ground)
        shown = [entry for entry in answer if entry["index"] not in ground]
        canvas.legend([(f"{entry['label']} {entry['share']:.0%}", entry["index"]) for entry in shown])
        return canvas.png()

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": "label, index, share and pixels of each class, largest first; with ?mask=png the mask too",
            "example": "photo.jpg",
        }

    def _names(self, outputs: Arrays, language: str | None) -> Sequence[str]:
        """The classes' names. The only name of a map of one channel is the object's: class 0 is what it is not."""
        names = self._labels.in_language(language)
        scores = real_values(outputs[self._output.name], self._output)
        binary = scores.dtype.kind == "f" and np.squeeze(scores).ndim < 3
        return (BACKGROUND, *names) if binary and len(names) == 1 and not self._options.label_offset else names

    def _mask(self, outputs: Arrays, placement: Placement) -> tuple[Array, Area]:
        """Class numbers [height, width] without the bars of a letterbox, and the part of the picture they cover."""
        classes = self._classes(real_values(outputs[self._output.name], self._output))
        height, width = classes.shape
        target, (full_width, full_height) = placement.target, placement.input
        rows = (round(target.y * height / full_height), round((target.y + target.height) * height / full_height))
        columns = (round(target.x * width / full_width), round((target.x + target.width) * width / full_width))
        cut = classes[rows[0] : max(rows[1], rows[0] + 1), columns[0] : max(columns[1], columns[0] + 1)]
        return cut, placement.source

    def _classes(self, scores: Array) -> Array:
        """The best class of each pixel as uint8, or uint16 where there are more than 256."""
        if scores.ndim == 4:
            scores = scores[0]
            if scores.shape[2] > 1 and scores.shape[0] == 1:
                scores = scores[0]
        if scores.ndim == 3 and scores.shape[0] == 1:
            scores = scores[0]
        if scores.ndim == 2:
            return _numbers(scores) if scores.dtype.kind in "iu" else self._binary(scores)
        if scores.ndim != 3:
            raise ApiError(ErrorCode.INFERENCE_FAILED, f"an output of shape {list(scores.shape)} is no map of classes")
        axis = 2 if scores.shape[2] <= scores.shape[0] else 0
        if scores.shape[axis] == 1:
            only = scores.take(0, axis=axis)
            return _numbers(only) if only.dtype.kind in "iu" else self._binary(only)
        return _numbers(scores.argmax(axis=axis))

    def _binary(self, scores: Array) -> Array:
        found: Array = (activate(scores, self._options.activation) > self._options.threshold).astype(np.uint8)
        return found


def _numbers(classes: Array) -> Array:
    clipped: Array = np.clip(classes, 0, 65535).astype(np.uint16 if classes.max(initial=0) > 255 else np.uint8)
    return clipped


def _png(classes: Array) -> bytes:
    """A PNG whose pixel values are the class numbers: 8-bit palette in the drawing's colours, or 16-bit grey."""
    import PIL.Image

    from pocketserve.tasks.vision.drawing import colour

    if classes.dtype == np.uint8:
        image = PIL.Image.frombytes("P", classes.shape[::-1], classes.tobytes())
        image.putpalette([part for index in range(256) for part in colour(index)])
    else:
        image = PIL.Image.fromarray(classes)
    file = CheckedFile()
    image.save(file, "PNG")
    return file.getvalue()


TASK = TaskDefinition(NAME, fits, create, (IMAGE, SEGMENTATION), takes_pictures=True)
