"""The input of every task on pictures: a picture, a camera frame or the tensor's own numbers become the tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Answer, Hints, Prepared, Runs, invalid_input
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import Labels, answer_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.vision.frames import FORMATS, is_frame
from pocketserve.tasks.vision.geometry import Placement, place
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions, complete, image_options
from pocketserve.tensors import Array, TensorSpec, quantize
from pocketserve_wire import DATATYPES, strict_json

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

CHANNELS = (1, 3)
NO_OPTIONS = ImageOptions()
PICTURE_PARAMETERS = (
    *(parameter("annotate"), parameter("region"), parameter("format", choices=FORMATS)),
    *(parameter("width"), parameter("height"), parameter("rotation", default=0)),
    *(parameter("row_stride"), parameter("uv_row_stride"), parameter("pixel_stride")),
)
"""Those of every task on pictures."""


class PictureInput:
    """Turns the body of a request into the input tensor; ValueError where its shape is not that of one picture.

    Args:
        spec: the only input, [1, height, width, channels], [1, channels, height, width] or, grey, [1, height, width].
        options: the manifest's ``[image]``, completed by what the file says.
        max_pixels: see :func:`~pocketserve.tasks.vision.pictures.read_picture`.
    """

    def __init__(self, spec: TensorSpec, options: ImageOptions, max_pixels: int) -> None:
        self.spec = spec
        self.options = options
        self.max_pixels = max_pixels
        grey = len(spec.shape) == 3
        with_channels = spec._replace(shape=(*spec.shape, 1)) if grey else spec
        self.shape, self.channels_first = picture_shape(with_channels, options.size)
        width, height, channels = self.shape
        shape = (1, channels, height, width) if self.channels_first else (1, height, width, channels)
        # Of several pictures only the first would be answered.
        self._single = spec._replace(shape=shape[:3] if grey else shape)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the input in pixels."""
        return self.shape.width, self.shape.height

    def read(self, body: memoryview, hints: Hints = NO_HINTS) -> tuple[Array, Placement]:
        """Return the input tensor, and the placement of the picture in it.

        Numbers (JSON, ``.npy``) are the tensor itself: then the input counts as the picture.
        """
        if is_tensor(body, hints, self._single):
            return self._read_tensor(body), place(self.size, self.size, "stretch")
        pixels, placement = read_picture(body, self.shape, self.options, self.max_pixels, hints)
        return self._normalise(pixels), placement

    def _read_tensor(self, body: memoryview) -> Array:
        if arrays.is_npy(body):
            return arrays.fit_array(arrays.read_npy(body), self._single, picture=True)
        return arrays.fit_values(strict_json.loads(body), self._single)

    def describe(self) -> str:
        """Return what happens to a picture, in words."""
        options, (width, height, channels) = self.options, self.shape
        fit = {"crop": "cropped to its middle and scaled", "letterbox": "scaled to fit between bars"}
        colour = "BGR" if options.color == "bgr" else "RGB" if channels == 3 else "grey"
        inverted = {"always": ", inverted", "auto": ", inverted where the border is light"}.get(options.invert, "")
        words = f"turned upright, {fit.get(options.resize or '', 'stretched')} to {width}x{height} {colour}{inverted}"
        if self._takes_pixels():
            return f"{words}, pixels from 0 to 255 as {self.spec.datatype}"
        mean, std = (
            f"{numbers[0]:.6g}" if len(set(numbers)) == 1 else f"[{', '.join(f'{number:.6g}' for number in numbers)}]"
            for numbers in (options.mean or (0.0,), options.std or (255.0,))
        )
        stored = f", then quantised to {self.spec.datatype}" if self.spec.quantization else f" as {self.spec.datatype}"
        return f"{words}, {f'(pixel - {mean})' if mean != '0' else 'pixel'} / {std}{stored}"

    def _takes_pixels(self) -> bool:
        """Return whether pixels go in as they are; mean and std are then of the float model that was quantised."""
        dtype = np.dtype(DATATYPES[self.spec.datatype].typestr)
        return dtype == np.uint8 or (dtype.kind in "iu" and self.spec.quantization is None and dtype != np.int8)

    def _normalise(self, pixels: Array) -> Array:
        dtype, options = np.dtype(DATATYPES[self.spec.datatype].typestr), self.options
        if self._takes_pixels():
            values = pixels.astype(dtype)
        elif dtype == np.int8 and options.mean is None:
            values = (pixels.astype(np.int16) - 128).astype(np.int8)
        else:
            values = pixels.astype(np.float32)
            values -= np.asarray(options.mean or (0.0,), dtype=np.float32)
            values /= np.asarray(options.std or (255.0,), dtype=np.float32)
            values = quantize(values, self.spec) if self.spec.quantization else values.astype(dtype, copy=False)
        if self.channels_first:
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values).reshape(self._single.shape)


def picture_input(facts: ModelFacts, task: str, usual: ImageOptions = NO_OPTIONS) -> PictureInput:
    """Set up the input of a model; ``usual`` holds where neither manifest nor file says anything."""
    spec = facts.only_input(task)
    if spec.datatype in ("BYTES", "BOOL", "BF16"):
        raise ModelLoadError(f"model.toml: task {task} does not fit: input {spec.name!r} has datatype {spec.datatype}")
    options = complete(image_options(facts), usual)
    try:
        picture = PictureInput(spec, options, facts.max_image_pixels)
    except ValueError as error:
        raise ModelLoadError(f"model.toml: task {task} does not fit: {error}") from None
    channels = picture.shape.channels
    manifest = facts.manifest.section(ImageOptions)
    for key in ("mean", "std", "fill"):
        numbers = getattr(options, key)
        if numbers is None or len(numbers) in (1, channels):
            continue
        if key == "fill" or getattr(manifest, key) is not None:
            raise ModelLoadError(
                f"image.{key} has {len(numbers)} numbers, the picture has {plural(channels, 'channel')}"
            )
        options = options._replace(**{key: numbers[:1]})  # a file's numbers for three channels, and a model of one
    if options.color is not None and (1 if options.color == "grayscale" else 3) != channels:
        raise ModelLoadError(f"model.toml: image.color is {options.color}, but the input has {channels} channels")
    picture.options = options
    return picture


def takes_picture(facts: ModelFacts) -> bool:
    """Return whether the only input has the shape of a picture of fixed size."""
    if len(facts.sent_inputs) != 1 or facts.sent_inputs[0].open:
        return False
    try:
        shape, _ = picture_shape(facts.sent_inputs[0], image_options(facts).size)
    except (ValueError, ModelLoadError):
        return False
    return min(shape.width, shape.height) >= 16  # less is a table of numbers


def is_tensor(body: memoryview, hints: Hints, spec: TensorSpec | None = None) -> bool:
    """Return whether a body holds numbers rather than a picture.

    An array of uint8 may be a picture, but not one of just the datatype and shape of ``spec``.
    """
    if is_frame(hints):
        return False
    if not arrays.is_npy(body):
        return arrays.looks_like_json(body)
    array = arrays.read_npy(body)
    fits = spec is not None and spec.datatype == "UINT8" and array.dtype == np.uint8 and array.shape == spec.shape
    return fits or arrays.picture_in(array) is None


def picture_shape(spec: TensorSpec, size: tuple[int, int] | None = None) -> tuple[PictureShape, bool]:
    """Return size and channels of a picture input, and whether the channels come first.

    Args:
        size: (width, height) for an input that leaves them open.

    Raises:
        ValueError: the shape is not that of one picture of fixed size.
    """
    if len(spec.shape) == 4 and spec.shape[0] in (1, -1):
        first, second, third = spec.shape[1:]
        for channels_first, (width, height, channels) in enumerate(((second, first, third), (third, second, first))):
            if size is not None and width in (-1, size[0]) and height in (-1, size[1]):
                width, height = size
            if channels in CHANNELS and min(width, height) > 0:
                return PictureShape(width, height, channels), bool(channels_first)
    detail = f"input {spec.name!r} has shape {list(spec.shape)}, which is not that of a picture"
    if len(spec.shape) == 4 and -1 in spec.shape[1:]:
        detail += " of fixed size; set width and height in [image]"
    raise ValueError(detail)


class PictureTask(ABC):
    """Takes a picture; also the input tensor's values as JSON or ``.npy``. Each task adds ``answer``."""

    name: str
    media: ClassVar[str] = "picture"
    answer_text: ClassVar[str]
    label_offset = 0  # added to a class's number to find its label

    def __init__(self, picture: PictureInput, labels: Labels) -> None:
        self.labels = labels.names
        self._labels = labels
        self._picture = picture

    def structure(self) -> dict[str, Any]:
        """Return the class names by the index of answers."""
        return {"labels": answer_labels(self.labels, self.label_offset)}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return one run; the context is the picture's placement in the input."""
        array, placement = self._picture.read(body, hints)
        return Prepared([{self._picture.spec.name: array}], placement)

    def annotate(self, body: memoryview, hints: Hints, runs: Runs, answer: Answer, context: Any) -> bytes:
        if is_tensor(body, hints):
            raise invalid_input("annotate needs a picture, the body holds numbers")
        from pocketserve.tasks.vision.drawing import Canvas  # late: few answers are drawn

        canvas = Canvas(body, hints, self._picture.max_pixels)
        self._draw(canvas, runs, answer, context)
        return canvas.file("JPEG" if hints.values.get("annotate") == "jpeg" else "PNG")

    def form(self) -> Form:
        """Return what the task takes: pictures, camera frames, or the tensor's own numbers."""
        return Form(("picture", "tensors"), (*self._answer_parameters(), *self._labels.parameters, *PICTURE_PARAMETERS))

    @abstractmethod
    def _answer_parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters that ``answer`` reads, but for the labels' language."""

    @abstractmethod
    def _draw(self, canvas: Canvas, runs: Runs, answer: Answer, context: Any) -> None:
        """Draw an answer on its picture."""

    def describe(self) -> dict[str, str]:
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": self.answer_text,
            "example": "photo.jpg",
        }
