"""A picture in, the likeliest classes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pocketserve.repository.sections import ImageOptions
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.tflite_metadata import ModelMetadata
from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, invalid_input, single_run
from pocketserve.tasks.facts import ModelFacts
from pocketserve.tasks.labels import label_of, labels_of
from pocketserve.tasks.pictures import PictureShape, read_picture
from pocketserve.tensors import Array, TensorSpec, dequantize, quantize
from pocketserve_wire import DATATYPES

TOP_K = 5


def fits(facts: ModelFacts) -> bool:
    """A picture in and one labelled row of scores out; anything less certain is not guessed."""
    metadata = facts.metadata
    if metadata is None or len(facts.inputs) != 1 or len(facts.outputs) != 1 or len(metadata.inputs) != 1:
        return False
    content = metadata.inputs[0].content
    is_picture = content is not None and content.kind == "image"
    return (
        is_picture
        and len(facts.outputs[0].shape) == 2
        and bool(metadata.outputs)
        and bool(metadata.outputs[0].associated_files)
    )


def create(facts: ModelFacts) -> ImageClassification:
    """Set up with the manifest's ``[image]`` and labels, completed by what the file says.

    Raises:
        ModelLoadError: the input is no picture, or the manifest's numbers do not fit its channels.
    """
    spec, output = facts.only_input("image-classification"), facts.outputs[0]
    try:
        shape, _ = picture_shape(spec)
    except ValueError as error:
        raise ModelLoadError(f"model.toml: task image-classification does not fit: {error}") from None
    options = _image_options(facts.manifest.section(ImageOptions), facts.metadata)
    for numbers, key in ((options.mean, "mean"), (options.std, "std")):
        if numbers is not None and len(numbers) not in (1, shape.channels):
            raise ModelLoadError(f"image.{key} has {len(numbers)} numbers, the picture has {shape.channels} channels")
    wanted = {"rgb": 3, "grayscale": 1}.get(options.color or "", shape.channels)
    if wanted != shape.channels:
        raise ModelLoadError(f"model.toml: image.color is {options.color}, but the input has {shape.channels} channels")
    return ImageClassification(spec, output, labels_of(facts, 0), options, facts.max_image_pixels)


def _image_options(declared: ImageOptions, metadata: ModelMetadata | None) -> ImageOptions:
    """The manifest's options, completed by the file's own normalisation."""
    normalization = metadata.inputs[0].normalization if metadata is not None and metadata.inputs else None
    if normalization is None:
        return declared
    return dataclasses.replace(
        declared, mean=declared.mean or normalization.mean, std=declared.std or normalization.std
    )


class ImageClassification:
    """Takes a picture; also the input tensor's values as JSON or ``.npy``.

    Args:
        spec: the only input, [1, height, width, channels] or [1, channels, height, width].
        output: the scores, one per class.
        labels: class names; empty where none are known.
        options: the manifest's ``[image]``, completed by what the file says.
        max_pixels: see :func:`~pocketserve.tasks.pictures.read_picture`.
    """

    name = "image-classification"

    def __init__(
        self,
        spec: TensorSpec,
        output: TensorSpec,
        labels: Sequence[str],
        options: ImageOptions,
        max_pixels: int,
    ) -> None:
        self.labels = labels
        self._spec = spec
        self._output = output
        self._options = options
        self._max_pixels = max_pixels
        self._shape, self._channels_first = picture_shape(spec)

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if not len(body):
            raise invalid_input("the body is empty; send a picture")
        if arrays.is_npy(body) or arrays.looks_like_json(body):
            return single_run({self._spec.name: arrays.read_values(body, self._spec)})
        pixels = read_picture(body, self._shape, self._options, self._max_pixels)
        return single_run({self._spec.name: self._normalise(pixels)})

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """The best classes of the first row: ``{"label", "index", "score"}``, ties in order of the class."""
        scores = runs[0][self._output.name]
        if self._output.quantization is not None and scores.dtype.kind in "iu":
            scores = dequantize(scores, self._output)
        row = (scores[0] if scores.ndim > 1 else scores).reshape(-1).astype(np.float64)
        lowest = -np.inf if options.threshold is None else options.threshold  # NaN is below every threshold
        best = np.argsort(-row, kind="stable")[: TOP_K if options.top_k is None else options.top_k]
        return [
            {"label": label_of(self.labels, int(index)), "index": int(index), "score": float(row[index])}
            for index in best
            if row[index] >= lowest
        ]

    def _normalise(self, pixels: Array) -> Array:
        """Pixels to the input's datatype. uint8 and unquantised integer inputs take pixels as they are, whatever mean
        and std are declared: those describe the float model that was quantised."""
        dtype = np.dtype(DATATYPES[self._spec.datatype].typestr)
        plain_integers = dtype.kind in "iu" and self._spec.quantization is None and dtype != np.int8
        if dtype == np.uint8 or plain_integers:
            values = pixels.astype(dtype)
        elif dtype == np.int8 and self._options.mean is None:
            values = (pixels.astype(np.int16) - 128).astype(np.int8)
        else:
            mean = np.asarray(self._options.mean or (0.0,), dtype=np.float32)
            std = np.asarray(self._options.std or (255.0,), dtype=np.float32)
            real = (pixels.astype(np.float32) - mean) / std
            values = quantize(real, self._spec) if self._spec.quantization else real.astype(dtype)
        if self._channels_first:
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values[np.newaxis])


def picture_shape(spec: TensorSpec) -> tuple[PictureShape, bool]:
    """Size and channels that an input wants, and whether the channels come first.

    Raises:
        ValueError: the shape is not that of one picture of fixed size.
    """
    if len(spec.shape) == 4 and spec.shape[0] in (1, -1):
        first, second, third = spec.shape[1:]
        if third in (1, 3) and min(first, second) > 0:
            return PictureShape(width=second, height=first, channels=third), False
        if first in (1, 3) and min(second, third) > 0:
            return PictureShape(width=third, height=second, channels=first), True
    raise ValueError(f"input {spec.name!r} has shape {list(spec.shape)}, which is not that of a picture")
