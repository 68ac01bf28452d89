"""Read raw camera frames: ``?format=nv21&width=640&height=480&rotation=90``.

Android's ImageProxy and Camera2 give YUV_420_888; CameraX can give RGBA_8888. Colours are
JFIF: BT.601 with values from 0 to 255, as Android's system/graphics.h describes
HAL_DATASPACE_V0_JFIF, the space of its cameras' JPEGs. From Android 13 on,
Image.getDataSpace() reports a device that differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pocketserve.tasks.base import Hints, invalid_input, invalid_parameter
from pocketserve.tasks.vision.strips import spans
from pocketserve.tensors import Array

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("nv21", "yuv420", "rgba", "rgb", "gray")


class _PackedFormat(NamedTuple):
    """A format with all values of a pixel together.

    The modes are Pillow's.
    """

    pixel_bytes: int
    mode: str
    raw_mode: str


_PACKED = {
    "rgba": _PackedFormat(4, "RGB", "RGBX"),
    "rgb": _PackedFormat(3, "RGB", "RGB"),
    "gray": _PackedFormat(1, "L", "L"),
}
ORIENTATIONS = {0: 1, 90: 6, 180: 3, 270: 8}  # EXIF's, by degrees of ``rotation``
_NEEDS_FORMAT = (
    "width",
    "height",
    "rotation",
    "row_stride",
    "uv_row_stride",
    "pixel_stride",
)


class _Planes(NamedTuple):
    """The planes Y, U and V; the last two at half width and height."""

    luma: Array
    blue: Array
    red: Array


def is_frame(hints: Hints) -> bool:
    """Return whether the request declares its body as a frame."""
    name = hints.values.get("format")
    if name in FORMATS:
        return True
    if name is not None:
        raise invalid_parameter(f"parameter format must be one of {', '.join(FORMATS)}")
    for stray in _NEEDS_FORMAT:
        if stray in hints.values:
            raise invalid_parameter(
                f"parameter {stray} needs format, one of {', '.join(FORMATS)}"
            )
    return False


def frame_size(hints: Hints, max_pixels: int) -> tuple[int, int]:
    """Return (width, height) of the upright frame."""
    values = hints.values
    if "width" not in values or "height" not in values:
        raise invalid_parameter(
            f"format={values['format']} needs the parameters width and height"
        )
    width = values["width"]
    height = values["height"]
    if width * height > max_pixels:
        raise invalid_input(
            f"the frame has {width}x{height} pixels; the limit is {max_pixels} (max_image_pixels)"
        )
    if values.get("rotation", 0) % 180:
        return (height, width)
    return (width, height)


def read_frame(body: memoryview, hints: Hints, *, halved: bool = False) -> Image:
    """Return the frame's picture in ``RGB`` or ``L``, not rotated yet.

    Args:
        hints: a frame's, checked by :func:`frame_size`.
        halved: return ``nv21`` and ``yuv420`` at half the size, that of their colours; it
            is a quarter of the work.
    """
    if hints.values["format"] in _PACKED:
        return _read_packed(body, hints)
    return _read_yuv(_yuv(body, hints), halved=halved)


def _read_packed(body: memoryview, hints: Hints) -> Image:
    import PIL.Image

    values = hints.values
    width = values["width"]
    height = values["height"]
    size, mode, raw_mode = _PACKED[values["format"]]
    _check_pixel_stride(hints, size)
    row = _stride(hints, "row_stride", width * size)
    _check_length(body, (height - 1) * row + width * size, height * row, hints)
    picture = PIL.Image.new(mode, (width, height), None)
    for top, bottom in spans(height, width):
        data = body[top * row : bottom * row]
        strip_size = (width, bottom - top)
        strip = PIL.Image.frombytes(mode, strip_size, data, "raw", raw_mode, row)
        picture.paste(strip, (0, top))
    return picture


def _read_yuv(planes: _Planes, *, halved: bool) -> Image:
    import PIL.Image

    shape = planes.blue.shape if halved else planes.luma.shape
    picture = PIL.Image.new("RGB", shape[::-1], None)
    rows, columns = planes.blue.shape
    for top, bottom in spans(rows, 4 * columns):
        luma = PIL.Image.fromarray(planes.luma[2 * top : 2 * bottom])
        blue = PIL.Image.fromarray(planes.blue[top:bottom])
        red = PIL.Image.fromarray(planes.red[top:bottom])
        if halved:
            luma = luma.reduce(2)
        else:
            blue = blue.resize(luma.size, PIL.Image.Resampling.NEAREST)
            red = red.resize(luma.size, PIL.Image.Resampling.NEAREST)
        strip = PIL.Image.merge("YCbCr", (luma, blue, red)).convert("RGB")
        picture.paste(strip, (0, top if halved else 2 * top))
    return picture


def _yuv(body: memoryview, hints: Hints) -> _Planes:
    """Return views of a frame's planes."""
    values = hints.values
    width = values["width"]
    height = values["height"]
    if width % 2 or height % 2:
        raise invalid_parameter(
            f"format={values['format']} needs an even width and height, not {width}x{height}"
        )
    row = _stride(hints, "row_stride", width)
    read_chroma = _separate
    if values["format"] == "nv21":
        read_chroma = _interleaved
    chroma = read_chroma(body, hints, row)
    luma = np.ndarray((height, width), np.uint8, body, 0, (row, 1))
    shape = (height // 2, width // 2)
    strides = (chroma.row, chroma.step)
    blue = np.ndarray(shape, np.uint8, body, chroma.blue, strides)
    red = np.ndarray(shape, np.uint8, body, chroma.red, strides)
    return _Planes(luma, blue, red)


class _Chroma(NamedTuple):
    """Positions of the first blue and red value, and their strides in bytes."""

    blue: int
    red: int
    row: int
    step: int


def _interleaved(body: memoryview, hints: Hints, row: int) -> _Chroma:
    """Return NV21's layout: V and U alternate in one plane."""
    width = hints.values["width"]
    height = hints.values["height"]
    _check_pixel_stride(hints, 2)
    uv_row = _stride(hints, "uv_row_stride", width, row)
    start = height * row
    rows = height // 2
    _check_length(
        body, start + (rows - 1) * uv_row + width, start + rows * uv_row, hints
    )
    return _Chroma(start + 1, start, uv_row, 2)


def _separate(body: memoryview, hints: Hints, row: int) -> _Chroma:
    """Return yuv420's layout: a plane for U and another for V."""
    width = hints.values["width"]
    height = hints.values["height"]
    columns = width // 2
    rows = height // 2
    step = hints.values.get("pixel_stride", 1)
    used = (columns - 1) * step + 1
    uv_row = _stride(hints, "uv_row_stride", used, columns * step)
    start = height * row
    # Android's buffers end with the last value of the last row; other sources pad that
    # row too. The body's length shows which.
    short = (rows - 1) * uv_row + used
    full = rows * uv_row
    _check_length(body, start + 2 * short, start + 2 * full, hints)
    plane = short
    if len(body) == start + 2 * full:
        plane = full
    return _Chroma(start, start + plane, uv_row, step)


def _check_pixel_stride(hints: Hints, step: int) -> None:
    if hints.values.get("pixel_stride", step) != step:
        raise invalid_parameter(
            f"format={hints.values['format']} has a pixel_stride of {step}"
        )


def _stride(hints: Hints, name: str, least: int, default: int | None = None) -> int:
    stride: int = hints.values.get(name, least if default is None else default)
    if stride < least:
        raise invalid_parameter(
            f"parameter {name} is {stride}, but a row has {least} bytes"
        )
    return stride


def _check_length(body: memoryview, short: int, full: int, hints: Hints) -> None:
    if len(body) not in (short, full):
        values = hints.values
        lengths = f"{short} or {full}" if short != full else f"{full}"
        raise invalid_input(
            f"a {values['format']} frame of {values['width']}x{values['height']} has {lengths} bytes, "
            f"the body has {len(body)}"
        )
