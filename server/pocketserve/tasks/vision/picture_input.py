"""Convert pictures, camera frames or numbers to a picture task's input tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    Hints,
    Prepared,
    Runs,
    invalid_input,
)
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import Labels, answer_labels
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tasks.vision.frames import FORMATS, is_frame
from pocketserve.tasks.vision.geometry import Placement, Sizing, place
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import (
    ImageOptions,
    complete,
    image_options,
    note_unknown_processor,
)
from pocketserve.tensors import Array, TensorSpec, quantize
from pocketserve_wire import DATATYPES, strict_json

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas

CHANNELS = (1, 3)
MASKS = ("pixel_mask",)
"""Inputs that mark the picture's pixels. Source: huggingface/transformers, modeling_detr.py."""

NO_OPTIONS = ImageOptions()
PICTURE_PARAMETERS = (
    *(parameter("annotate"), parameter("region"), parameter("format", choices=FORMATS)),
    *(parameter("width"), parameter("height"), parameter("rotation", default=0)),
    *(parameter("row_stride"), parameter("uv_row_stride"), parameter("pixel_stride")),
)
"""Those of every task on pictures."""


# Descriptions of options.
_FITS = {
    "crop": "cropped to its middle and scaled",
    "letterbox": "scaled to fit between bars",
}
_INVERSIONS = {
    "always": ", inverted",
    "auto": ", inverted where the border is light",
}


class PictureInput:
    """Convert a request's body to the input tensor.

    Args:
        spec: the only input, [1, height, width, channels], [1, channels, height, width] or,
            grey, [1, height, width].
        options: the manifest's ``[image]``, completed by the model's files.
        max_pixels: see :func:`~pocketserve.tasks.vision.pictures.read_picture`.
        channels: colour channels of an input that leaves them open.
        masks: further inputs, which mark the pixels of the picture.

    Raises:
        ValueError: the shape is not that of one picture.
    """

    def __init__(
        self,
        spec: TensorSpec,
        options: ImageOptions,
        max_pixels: int,
        channels: int | None = None,
        masks: Sequence[TensorSpec] = (),
    ) -> None:
        self.spec = spec
        self.max_pixels = max_pixels
        self.masks = masks
        grey = len(spec.shape) == 3
        with_channels = spec._replace(shape=(*spec.shape, 1)) if grey else spec
        self.shape, self.channels_first = picture_shape(
            with_channels, options.size, channels
        )
        self.options = options = _fitting_sizing(options, self.shape)
        self.varies = _varies(options.sizing, with_channels, self.channels_first)
        shape = self._array_shape()
        # Of several pictures only the first would be answered.
        self._single = spec._replace(shape=shape[:3] if grey else shape)

    @property
    def size(self) -> tuple[int, int]:
        """Return the input's (width, height); a usual size if it varies with the picture."""
        return self.shape.width, self.shape.height

    def read(
        self, body: memoryview, hints: Hints = NO_HINTS
    ) -> tuple[Array, Placement]:
        """Return the input tensor and the picture's placement in it.

        Numbers (JSON, ``.npy``) are the tensor itself; then the input counts as the picture.
        """
        if is_tensor(body, hints, self._single):
            tensor = self._read_tensor(body)
            size = self._size_of(tensor)
            return tensor, place(size, size, "stretch")
        pixels, placement = read_picture(
            body,
            self.shape,
            self.options,
            self.max_pixels,
            hints,
            takes_any_size=self.varies,
        )
        values = self._normalise(pixels)
        if self.options.sizing is not None and self.options.sizing.pad is not None:
            _clear_padding(self._as_rows(values), placement)
        return values, placement

    def fill_masks(self, placement: Placement) -> dict[str, Array]:
        """Return the masks by input name: 1 for the picture, 0 for padding."""
        return {spec.name: _mask(spec, placement) for spec in self.masks}

    def _size_of(self, tensor: Array) -> tuple[int, int]:
        if not self.varies:
            return self.size
        height, width = tensor.shape[2:] if self.channels_first else tensor.shape[1:3]
        return width, height

    def _as_rows(self, values: Array) -> Array:
        """Return a view of one picture as [height, width, ...]."""
        picture: Array = values[0]
        if self.channels_first:
            return picture.transpose(1, 2, 0)
        return picture

    def _read_tensor(self, body: memoryview) -> Array:
        if arrays.is_npy(body):
            return arrays.fit_array(arrays.read_npy(body), self._single, picture=True)
        return arrays.fit_values(strict_json.loads(body), self._single)

    def _array_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of one picture's array; -1 for free sizes."""
        width, height = self.size
        if self.varies:
            width = height = -1
        count = self.shape.channels
        if self.channels_first:
            return (1, count, height, width)
        return (1, height, width, count)

    def describe(self) -> str:
        """Describe the preparation of a picture."""
        options, (width, height, channels) = self.options, self.shape
        fit = _FITS.get(options.resize or "", "stretched")
        placed = f"{fit} to {width}x{height}"
        sizing = options.sizing
        if sizing is not None and (self.varies or sizing.result is not None):
            placed = describe_sizing(sizing)
        colour = "grey"
        if options.color == "bgr":
            colour = "BGR"
        elif channels == 3:
            colour = "RGB"
        inverted = _INVERSIONS.get(options.invert, "")
        words = f"turned upright, {placed} {colour}{inverted}"
        datatype = self.spec.datatype
        if self._takes_pixels():
            return f"{words}, pixels from 0 to 255 as {datatype}"
        std = _numbers_text(options.std or (255.0,))
        pixel = _shifted_text(options.mean)
        stored = f" as {datatype}"
        if self.spec.quantization:
            stored = f", then quantised to {datatype}"
        return f"{words}, {pixel} / {std}{stored}"

    def assumptions(self) -> list[str]:
        """Return the defaults that are used because no file states them.

        If the range of pixels is stated, the rest isn't reported, either.
        """
        options = self.options
        takes_reals = self.spec.datatype.startswith("FP")
        stated = (options.mean, options.std, options.color, options.resize)
        assumed = []
        if takes_reals and options.mean is None and options.std is None:
            assumed.append("pixels 0..1")
        if all(value is None for value in stated):
            if self.shape.channels == 3:
                assumed.append("colours RGB")
            assumed.append("resize stretch")
        return assumed

    def _takes_pixels(self) -> bool:
        """Return whether pixels go in unchanged.

        Mean and std are then those of the float model that was quantised.
        """
        dtype = np.dtype(DATATYPES[self.spec.datatype].typestr)
        if dtype == np.uint8:
            return True
        is_integer = dtype.kind in "iu" and dtype != np.int8
        return is_integer and self.spec.quantization is None

    def _stored(self, values: Array) -> Array:
        if self.spec.quantization:
            return quantize(values, self.spec)
        return values.astype(DATATYPES[self.spec.datatype].typestr, copy=False)

    def _normalise(self, pixels: Array) -> Array:
        dtype = np.dtype(DATATYPES[self.spec.datatype].typestr)
        if self._takes_pixels():
            values = pixels.astype(dtype)
        elif dtype == np.int8 and self.options.mean is None:
            values = (pixels.astype(np.int16) - 128).astype(np.int8)
        else:
            values = pixels.astype(np.float32)
            values -= np.asarray(self.options.mean or (0.0,), dtype=np.float32)
            values /= np.asarray(self.options.std or (255.0,), dtype=np.float32)
            values = self._stored(values)
        if self.channels_first:
            values = values.transpose(2, 0, 1)
        with_batch = np.ascontiguousarray(values)[None]
        if len(self._single.shape) == 3:
            return with_batch[..., 0]
        return with_batch


def _numbers_text(numbers: Sequence[float]) -> str:
    texts = [f"{number:.6g}" for number in numbers]
    if len(set(numbers)) == 1:
        return texts[0]
    return f"[{', '.join(texts)}]"


def picture_specs(
    facts: ModelFacts,
) -> tuple[TensorSpec, tuple[TensorSpec, ...]] | None:
    """Return the picture's input and its masks, or None."""
    masks = tuple(
        spec for spec in facts.sent_inputs if spec.name in MASKS and _is_mask(spec)
    )
    pictures = [spec for spec in facts.sent_inputs if spec not in masks]
    if len(pictures) == 1:
        return (pictures[0], masks)
    return None


def _is_mask(spec: TensorSpec) -> bool:
    return (
        not spec.open
        and len(spec.shape) == 3
        and spec.shape[0] in (1, -1)
        and spec.datatype != "BYTES"
    )


def _mask(spec: TensorSpec, placement: Placement) -> Array:
    """Return a mask [1, height, width].

    It has the picture's size, or the input's if that is fixed. A fixed mask of another size
    than the picture's stands for the whole picture.
    """
    width, height = placement.input
    rows = height if spec.shape[1] == -1 else spec.shape[1]
    columns = width if spec.shape[2] == -1 else spec.shape[2]
    mask = np.ones((1, rows, columns), np.dtype(DATATYPES[spec.datatype].typestr))
    if (columns, rows) == placement.input:
        _clear_padding(mask[0], placement)
    return mask


def _clear_padding(rows: Array, placement: Placement) -> None:
    """Set everything right of the picture or below it to 0."""
    rows[int(placement.target.height) :] = 0
    rows[:, int(placement.target.width) :] = 0


def _fitting_sizing(options: ImageOptions, shape: PictureShape) -> ImageOptions:
    """Drop a sizing whose result the input never takes."""
    sizing = options.sizing
    if sizing is None or sizing.result in (None, (shape.width, shape.height)):
        return options
    return options._replace(sizing=None)


def _varies(sizing: Sizing | None, spec: TensorSpec, channels_first: bool) -> bool:
    """Return whether the input takes the sizing's result."""
    if sizing is None or sizing.result is not None:
        return False
    sides = spec.shape[2:] if channels_first else spec.shape[1:3]
    return sides == (-1, -1)


def _shifted_text(mean: Sequence[float] | None) -> str:
    text = _numbers_text(mean or (0.0,))
    if text == "0":
        return "pixel"
    return f"(pixel - {text})"


def describe_sizing(sizing: Sizing) -> str:
    """Describe a processor's change of a picture's size."""
    if sizing.cut is not None:
        words = "cropped to its middle and scaled"
    elif sizing.exact is not None:
        words = f"stretched to {sizing.exact[0]}x{sizing.exact[1]}"
    elif sizing.longest:
        words = f"scaled to a shorter side of {sizing.shortest} and a longer one of at most {sizing.longest}"
    elif sizing.shortest:
        words = f"scaled to a shorter side of {sizing.shortest}"
    elif sizing.within is not None:
        words = f"scaled to fit into {sizing.within[0]}x{sizing.within[1]}"
    else:
        words = "at its own size"
    if sizing.crop is not None:
        words += f", cropped to {sizing.crop[0]}x{sizing.crop[1]}"
    if sizing.pad is not None:
        words += f", padded to {sizing.pad[0]}x{sizing.pad[1]}"
    return words


def open_channels(facts: ModelFacts, options: ImageOptions) -> int | None:
    """Return the colour channels of an input that leaves them open, or None.

    They come from the model's files.
    """
    channels = facts.json_beside(CONFIG).get("num_channels")
    if channels in CHANNELS:
        return int(channels)
    for numbers in (options.mean, options.std):
        if numbers is not None and len(numbers) == 3:
            return 3
    described = options.color is not None or options.size is not None
    if not described:
        return None
    if options.color == "grayscale":
        return 1
    return 3


def picture_input(
    facts: ModelFacts, task: str, usual: ImageOptions = NO_OPTIONS
) -> PictureInput:
    """Build a model's input.

    Args:
        usual: defaults of options that neither manifest nor files set.
    """
    specs = picture_specs(facts)
    spec, masks = specs if specs is not None else (facts.only_input(task), ())
    if spec.datatype in ("BYTES", "BOOL", "BF16"):
        raise ModelLoadError(
            f"model.toml: task {task} does not fit: input {spec.name!r} has datatype {spec.datatype}"
        )
    options = complete(image_options(facts), usual)
    note_unknown_processor(facts)
    try:
        channels = open_channels(facts, options)
        picture = PictureInput(spec, options, facts.max_image_pixels, channels, masks)
    except ValueError as error:
        raise ModelLoadError(f"model.toml: task {task} does not fit: {error}") from None
    manifest = facts.manifest.section(ImageOptions)
    options = _fit_channels(options, manifest, picture.shape.channels)
    picture.options = options._replace(sizing=picture.options.sizing)
    facts.assumed.extend(picture.assumptions())
    return picture


def _fit_channels(
    options: ImageOptions, manifest: ImageOptions, channels: int
) -> ImageOptions:
    """Adapt options to the input's channels.

    Files may describe three channels of a model with one; the manifest may not.
    """
    for key in ("mean", "std", "fill"):
        numbers = getattr(options, key)
        if not numbers or len(numbers) in (1, channels):
            continue
        is_of_colours = channels == 1 and len(numbers) == 3
        is_stated = key == "fill" or getattr(manifest, key) is not None
        if is_stated or not is_of_colours:
            raise ModelLoadError(
                f"image.{key} has {len(numbers)} numbers, the picture has {plural(channels, 'channel')}"
            )
        options = options._replace(**{key: numbers[:1]})
    if options.color == "bgr" and manifest.color is None and channels == 1:
        options = options._replace(color=None)
    _check_colour(options.color, channels)
    return options


def _check_colour(color: str | None, channels: int) -> None:
    if color is None:
        return
    expected = 3
    if color == "grayscale":
        expected = 1
    if expected != channels:
        raise ModelLoadError(
            f"model.toml: image.color is {color}, but the input has {channels} channels"
        )


def takes_picture(facts: ModelFacts) -> bool:
    """Return whether the only input, besides a mask, has a picture's shape."""
    specs = picture_specs(facts)
    if specs is None or specs[0].open:
        return False
    try:
        options = image_options(facts)
        shape, _ = picture_shape(specs[0], options.size, open_channels(facts, options))
    except (ValueError, ModelLoadError):
        return False
    return min(shape.width, shape.height) >= 16  # less is a table of numbers


def is_tensor(body: memoryview, hints: Hints, spec: TensorSpec | None = None) -> bool:
    """Return whether a body has numbers rather than a picture.

    An array of uint8 may be a picture, unless it has the datatype and shape of ``spec``.
    """
    if hints.values and is_frame(hints):
        return False
    if not arrays.is_npy(body):
        return arrays.looks_like_json(body)
    array = arrays.read_npy(body)
    if spec is None or spec.datatype != "UINT8":
        return arrays.picture_in(array) is None
    if array.dtype == np.uint8 and array.shape == spec.shape:
        return True
    return arrays.picture_in(array) is None


def picture_shape(
    spec: TensorSpec, size: tuple[int, int] | None = None, channels: int | None = None
) -> tuple[PictureShape, bool]:
    """Return a picture input's shape, and whether the channels come first.

    Args:
        size: (width, height) for an input that leaves them open.
        channels: colour channels for an input that leaves them open. If it leaves
            everything open, they come first, as in PyTorch's exports.

    Raises:
        ValueError: the shape is not that of one picture of fixed size.
    """
    if len(spec.shape) == 4 and spec.shape[0] in (1, -1):
        first, second, third = spec.shape[1:]
        if third == -1 and channels is not None and min(first, second) > max(CHANNELS):
            third = channels
        elif first == -1 and channels is not None and third not in CHANNELS:
            first = channels
        channels_last = _fixed_shape(PictureShape(second, first, third), size)
        if channels_last is not None:
            return channels_last, False
        channels_first = _fixed_shape(PictureShape(third, second, first), size)
        if channels_first is not None:
            return channels_first, True
    raise _shape_error(spec, size)


def _shape_error(spec: TensorSpec, size: tuple[int, int] | None) -> ValueError:
    detail = (
        f"input {spec.name!r} has shape {list(spec.shape)}, which is not that of a "
        "picture"
    )
    if len(spec.shape) == 4 and -1 in spec.shape[1:]:
        if size is None:
            detail += " of fixed size; set width and height in [image]"
        else:
            detail += (
                f" of {size[0]}x{size[1]} pixels; correct width and height in [image]"
            )
    return ValueError(detail)


def _fixed_shape(
    shape: PictureShape, size: tuple[int, int] | None
) -> PictureShape | None:
    """Fill in an open size.

    Return None if the result is not a picture's.
    """
    width, height, channels = shape
    if size is not None and width in (-1, size[0]) and height in (-1, size[1]):
        width, height = size
    if channels not in CHANNELS or min(width, height) <= 0:
        return None
    return PictureShape(width, height, channels)


class PictureTask(ABC):
    """A task that takes a picture or its pixels.

    Each task adds ``answer``.
    """

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
        """Return one run; the context is the picture's placement."""
        array, placement = self._picture.read(body, hints)
        arrays = {self._picture.spec.name: array}
        if self._picture.masks:
            arrays.update(self._picture.fill_masks(placement))
        return Prepared([arrays], placement)

    def annotate(
        self, body: memoryview, hints: Hints, runs: Runs, answer: Answer, context: Any
    ) -> bytes:
        if is_tensor(body, hints):
            raise invalid_input("annotate needs a picture, the body holds numbers")
        # late: few answers are drawn
        from pocketserve.tasks.vision.drawing import Canvas

        canvas = Canvas(body, hints, self._picture.max_pixels)
        self._draw(canvas, runs, answer, context)
        return canvas.file("JPEG" if hints.values.get("annotate") == "jpeg" else "PNG")

    def form(self) -> Form:
        """Return the task's inputs: pictures, camera frames, or numbers."""
        return Form(
            ("picture", "tensors"),
            (*self._answer_parameters(), *self._labels.parameters, *PICTURE_PARAMETERS),
        )

    @abstractmethod
    def _answer_parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters of ``answer``, without the labels' language."""

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
