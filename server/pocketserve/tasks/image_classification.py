"""A picture in, the likeliest classes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pocketserve.repository.manifest import ImageOptions
from pocketserve.tasks import arrays
from pocketserve.tasks.base import Answer, AnswerOptions, invalid_input
from pocketserve.tasks.labels import label_of
from pocketserve.tasks.pictures import PictureShape, read_picture
from pocketserve.tensors import Array, TensorSpec, dequantize, quantize
from pocketserve_wire import DATATYPES


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

    def prepare(self, body: memoryview) -> dict[str, Array]:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if not len(body):
            raise invalid_input("the body is empty; send a picture")
        if arrays.is_npy(body) or arrays.looks_like_json(body):
            return {self._spec.name: arrays.read_values(body, self._spec)}
        pixels = read_picture(body, self._shape, self._options, self._max_pixels)
        return {self._spec.name: self._normalise(pixels)}

    def answer(self, outputs: Mapping[str, Array], options: AnswerOptions) -> Answer:
        """The best classes of the first row: ``{"label", "index", "score"}``, ties in order of the class."""
        scores = outputs[self._output.name]
        if self._output.quantization is not None and scores.dtype.kind in "iu":
            scores = dequantize(scores, self._output)
        row = (scores[0] if scores.ndim > 1 else scores).reshape(-1).astype(np.float64)
        best = np.argsort(-row, kind="stable")[: options.top_k]
        return [
            {"label": label_of(self.labels, int(index)), "index": int(index), "score": float(row[index])}
            for index in best
            if row[index] >= options.threshold
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
