"""The input of every task on pictures: a picture, a camera frame or the tensor's own numbers become the tensor."""

from __future__ import annotations

import dataclasses

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Hints, invalid_input
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.vision.frames import is_frame
from pocketserve.tasks.vision.geometry import Placement, whole
from pocketserve.tasks.vision.options import ImageOptions
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import complete, image_options
from pocketserve.tensors import Array, TensorSpec, quantize
from pocketserve_wire import DATATYPES

CHANNELS = (1, 3)


class PictureInput:
    """Turns the body of a request into the input tensor.

    Args:
        spec: the only input, [1, height, width, channels], [1, channels, height, width] or, grey, [1, height, width].
        options: the manifest's ``[image]``, completed by what the file says.
        max_pixels: see :func:`~pocketserve.tasks.vision.pictures.read_picture`.

    Raises:
        ValueError: the input's shape is not that of one picture.
    """

    def __init__(self, spec: TensorSpec, options: ImageOptions, max_pixels: int) -> None:
        self.spec = spec
        self.options = options
        self.max_pixels = max_pixels
        grey = len(spec.shape) == 3
        whole_spec = dataclasses.replace(spec, shape=(*spec.shape, 1)) if grey else spec
        self.shape, self.channels_first = picture_shape(whole_spec, options.size)
        high, wide, deep = self.shape.height, self.shape.width, self.shape.channels
        one = (1, deep, high, wide) if self.channels_first else (1, high, wide, *([] if grey else [deep]))
        self._one = dataclasses.replace(spec, shape=one)  # of several pictures only the first would be answered

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the input in pixels."""
        return self.shape.width, self.shape.height

    def read(self, body: memoryview, hints: Hints = NO_HINTS) -> tuple[Array, Placement]:
        """The input tensor, and where the picture lies in it.

        Numbers (JSON, ``.npy``) are the tensor itself: then the input counts as the picture. An array of uint8 is a
        picture in RGB, unless it has the tensor's own datatype and shape.

        Raises:
            ApiError: INVALID_INPUT, INVALID_PARAMETER, INVALID_TENSOR or MALFORMED_JSON.
        """
        if not len(body):
            raise invalid_input("the body is empty; send a picture")
        if is_tensor(body, hints) or self._is_own(body, hints):
            return arrays.read_values(body, self._one), whole(self.size)
        pixels, placement = read_picture(body, self.shape, self.options, self.max_pixels, hints)
        return self._normalise(pixels), placement

    def _is_own(self, body: memoryview, hints: Hints) -> bool:
        """Return whether an array of pixels is just what the model takes; then it is passed on as it is."""
        if self._one.datatype != "UINT8" or is_frame(hints) or not arrays.is_npy(body):
            return False
        array = arrays.read_npy(body)
        return array.dtype == np.uint8 and array.shape == self._one.shape

    def describe(self) -> str:
        """Return what happens to a picture, in words."""
        options, shape = self.options, self.shape
        how = {"crop": "cropped to its middle and scaled", "letterbox": "scaled to fit between bars"}
        colour = {"bgr": "BGR"}.get(options.color or "", "RGB" if shape.channels == 3 else "grey")
        inverted = {"always": ", inverted", "auto": ", inverted where the border is light"}.get(options.invert, "")
        words = f"turned upright, {how.get(options.resize or '', 'stretched')} to {shape.width}x{shape.height} {colour}"
        return f"{words}{inverted}, {self._describe_values()}"

    def _describe_values(self) -> str:
        if self._takes_pixels():
            return f"pixels from 0 to 255 as {self.spec.datatype}"
        mean, std = (_numbers(numbers) for numbers in (self.options.mean or (0.0,), self.options.std or (255.0,)))
        stored = f", then quantised to {self.spec.datatype}" if self.spec.quantization else f" as {self.spec.datatype}"
        return f"(pixel - {mean}) / {std}{stored}" if mean != "0" else f"pixel / {std}{stored}"

    def _takes_pixels(self) -> bool:
        """uint8 and unquantised integer inputs take pixels as they are, whatever mean and std are declared: those
        describe the float model that was quantised."""
        dtype = np.dtype(DATATYPES[self.spec.datatype].typestr)
        return dtype == np.uint8 or (dtype.kind in "iu" and self.spec.quantization is None and dtype != np.int8)

    def _normalise(self, pixels: Array) -> Array:
        dtype = np.dtype(DATATYPES[self.spec.datatype].typestr)
        if self._takes_pixels():
            values = pixels.astype(dtype)
        elif dtype == np.int8 and self.options.mean is None:
            values = (pixels.astype(np.int16) - 128).astype(np.int8)
        else:
            real = _scaled(pixels, self.options)
            values = quantize(real, self.spec) if self.spec.quantization else real.astype(dtype, copy=False)
        if self.channels_first:
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values).reshape(self._one.shape)


def picture_input(facts: ModelFacts, task: str, usual: ImageOptions | None = None) -> PictureInput:
    """The input of a model with a task on pictures.

    Args:
        usual: what is customary for this kind of model, where neither manifest nor file says anything.

    Raises:
        ModelLoadError: the input is no picture, or the manifest's numbers do not fit its channels.
    """
    spec = facts.only_input(task)
    if spec.datatype in ("BYTES", "BOOL", "BF16"):
        raise ModelLoadError(f"model.toml: task {task} does not fit: input {spec.name!r} has datatype {spec.datatype}")
    options = image_options(facts)
    options = options if usual is None else complete(options, usual)
    try:
        found = PictureInput(spec, options, facts.max_image_pixels)
    except ValueError as error:
        raise ModelLoadError(f"model.toml: task {task} does not fit: {error}") from None
    channels = found.shape.channels
    for numbers, key in ((options.mean, "mean"), (options.std, "std"), (options.fill, "fill")):
        if numbers is not None and len(numbers) not in (1, channels):
            if key in ("mean", "std") and getattr(facts.manifest.section(ImageOptions), key) is None:
                mean, std = ((values or ())[:1] or None for values in (options.mean, options.std))
                found.options = dataclasses.replace(options, mean=mean, std=std)
                continue  # what a file says of three channels is nothing to a model of one
            raise ModelLoadError(f"image.{key} has {len(numbers)} numbers, the picture has {channels} channels")
    wanted = {"rgb": 3, "bgr": 3, "grayscale": 1}.get(options.color or "", channels)
    if wanted != channels:
        raise ModelLoadError(f"model.toml: image.color is {options.color}, but the input has {channels} channels")
    return found


def takes_picture(facts: ModelFacts) -> bool:
    """Return whether the only input has the shape of a picture of fixed size."""
    if len(facts.asked) != 1 or facts.asked[0].open:
        return False
    try:
        shape, _ = picture_shape(facts.asked[0], image_options(facts).size)
    except (ValueError, ModelLoadError):
        return False
    return min(shape.width, shape.height) >= 16  # less is a table of numbers


def is_tensor(body: memoryview, hints: Hints) -> bool:
    """Return whether a body holds numbers rather than a picture. An array of uint8 may be one."""
    if is_frame(hints):
        return False
    if arrays.is_npy(body):
        return arrays.picture_in(arrays.read_npy(body)) is None
    return arrays.looks_like_json(body)


def picture_shape(spec: TensorSpec, size: tuple[int, int] | None = None) -> tuple[PictureShape, bool]:
    """Size and channels that an input wants, and whether the channels come first.

    Args:
        size: (width, height) for an input that leaves them open.

    Raises:
        ValueError: the shape is not that of one picture of fixed size.
    """
    if len(spec.shape) == 4 and spec.shape[0] in (1, -1):
        first, second, third = spec.shape[1:]
        if third in CHANNELS and (found := _fixed(second, first, size)) is not None:
            return PictureShape(*found, third), False
        if first in CHANNELS and (found := _fixed(third, second, size)) is not None:
            return PictureShape(*found, first), True
    detail = f"input {spec.name!r} has shape {list(spec.shape)}, which is not that of a picture"
    if len(spec.shape) == 4 and -1 in spec.shape[1:]:
        detail += " of fixed size; set width and height in [image]"
    raise ValueError(detail)


def _fixed(width: int, height: int, size: tuple[int, int] | None) -> tuple[int, int] | None:
    if size is not None and width in (-1, size[0]) and height in (-1, size[1]):
        return size
    return (width, height) if min(width, height) > 0 else None


def _scaled(pixels: Array, options: ImageOptions) -> Array:
    """(pixel - mean) / std in float32."""
    real: Array = pixels.astype(np.float32)
    real -= np.asarray(options.mean or (0.0,), dtype=np.float32)
    real /= np.asarray(options.std or (255.0,), dtype=np.float32)
    return real


def _numbers(numbers: tuple[float, ...]) -> str:
    texts = [f"{number:.6g}" for number in numbers]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"
