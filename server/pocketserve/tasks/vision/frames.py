"""Raw camera frames: ``?format=nv21&width=640&height=480&rotation=90``.

Android's ImageProxy and Camera2 give YUV_420_888; CameraX can give RGBA_8888. The colours are taken as JFIF: BT.601
with all values from 0 to 255. Android's system/graphics.h describes HAL_DATASPACE_V0_JFIF so, the space in which its
cameras also make JPEGs. From Android 13 on, Image.getDataSpace() tells where a device differs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pocketserve.tasks.base import Hints, invalid_input, invalid_parameter
from pocketserve.tasks.vision.strips import spans
from pocketserve.tensors import Array

FORMATS = ("nv21", "yuv420", "rgba", "rgb", "gray")
_PACKED = {"rgba": 4, "rgb": 3, "gray": 1}
"""Bytes per pixel."""

_PIXEL_STRIDES = {**_PACKED, "nv21": 2}
_NEEDS_FORMAT = ("width", "height", "rotation", "row_stride", "uv_row_stride", "pixel_stride")


def is_frame(hints: Hints) -> bool:
    """Return whether the caller says that the body is a frame.

    Raises:
        ApiError: INVALID_PARAMETER for an unknown format, or a frame's parameter without a format.
    """
    name = hints.values.get("format")
    if name is None:
        stray = next((name for name in _NEEDS_FORMAT if name in hints.values), None)
        if stray is not None:
            raise invalid_parameter(f"parameter {stray} needs format, one of {', '.join(FORMATS)}")
        return False
    if name not in FORMATS:
        raise invalid_parameter(f"parameter format must be one of {', '.join(FORMATS)}")
    return True


def frame_size(hints: Hints, max_pixels: int) -> tuple[int, int]:
    """Return (width, height) of the frame once it is turned upright.

    Raises:
        ApiError: INVALID_PARAMETER, or INVALID_INPUT for more pixels than the limit.
    """
    values = hints.values
    if "width" not in values or "height" not in values:
        raise invalid_parameter(f"format={values['format']} needs the parameters width and height")
    width, height = values["width"], values["height"]
    if width * height > max_pixels:
        raise invalid_input(f"the frame has {width}x{height} pixels; the limit is {max_pixels} (max_image_pixels)")
    return (height, width) if values.get("rotation", 0) % 180 else (width, height)


def read_frame(body: memoryview, hints: Hints, *, halved: bool = False) -> Array:
    """Return the frame's pixels, upright.

    Args:
        hints: those of a frame whose size was checked by :func:`frame_size`.
        halved: at half its width and height, for ``nv21`` and ``yuv420``: that is how their colours come anyway, and a
            quarter of the work.

    Returns:
        uint8 of shape [height, width, 3], or [height, width] for ``gray``.

    Raises:
        ApiError: INVALID_PARAMETER, or INVALID_INPUT where the length does not fit the parameters exactly.
    """
    values = hints.values
    name, turns = values["format"], -values.get("rotation", 0) // 90
    step = _PIXEL_STRIDES.get(name)
    if step is not None and values.get("pixel_stride", step) != step:
        raise invalid_parameter(f"format={name} has a pixel_stride of {step}")
    if name in _PACKED:
        pixels = np.rot90(_packed(body, hints, _PACKED[name]), turns)
        return _by_strips(pixels.shape, lambda rows: pixels[rows])
    # Turning the planes moves half of the bytes that turning the colours would.
    luma, blue, red = (np.rot90(plane, turns) for plane in _yuv(body, hints))
    if halved:
        full = luma
        luma = _by_strips(blue.shape, lambda rows: _halved(full[2 * rows.start : 2 * rows.stop]))
    return to_rgb(luma, blue, red)


def _by_strips(shape: tuple[int, ...], make: Callable[[slice], Array]) -> Array:
    """Put uint8 pixels together from rows, with checkpoints."""
    result = np.empty(shape, np.uint8)
    for top, bottom in spans(-(-shape[0] // 2), 2 * shape[1]):  # pairs of rows have their colours in common
        rows = slice(2 * top, 2 * bottom)
        result[rows] = make(rows)
    return result


def _halved(luma: Array) -> Array:
    """Return the rounded mean of each 2 x 2 pixels."""
    wide = luma.astype(np.uint16)
    total = wide[0::2, 0::2] + wide[0::2, 1::2] + wide[1::2, 0::2] + wide[1::2, 1::2]
    return np.asarray((total + 2) >> 2, np.uint8)


def _packed(body: memoryview, hints: Hints, size: int) -> Array:
    """Return [height, width, 3], or [height, width] for one byte per pixel."""
    width, height = hints.values["width"], hints.values["height"]
    row = _stride(hints, "row_stride", width * size)
    _check_length(body, (height - 1) * row + width * size, height * row, hints)
    pixels: Array = np.ndarray((height, width, size), np.uint8, body, 0, (row, size, 1))
    return pixels[..., 0] if size == 1 else pixels[..., :3]


def _yuv(body: memoryview, hints: Hints) -> tuple[Array, Array, Array]:
    """Return the planes Y, U and V: in NV21 V and U take turns in one plane, in yuv420 they lie in one each."""
    values, interleaved = hints.values, hints.values["format"] == "nv21"
    width, height = values["width"], values["height"]
    if width % 2 or height % 2:
        raise invalid_parameter(f"format={values['format']} needs an even width and height, not {width}x{height}")
    row = _stride(hints, "row_stride", width)
    start, columns, rows = height * row, width // 2, height // 2
    step = 2 if interleaved else values.get("pixel_stride", 1)
    used = width if interleaved else (columns - 1) * step + 1
    uv_row = _stride(hints, "uv_row_stride", used, row if interleaved else columns * step)
    # Android's buffers end with the last value of the last row; other sources pad that row too. The length tells.
    short, full, planes = (rows - 1) * uv_row + used, rows * uv_row, 1 if interleaved else 2
    _check_length(body, start + planes * short, start + planes * full, hints)
    second = start + (full if len(body) == start + 2 * full else short)
    blue, red = (start + 1, start) if interleaved else (start, second)
    return (
        np.ndarray((height, width), np.uint8, body, 0, (row, 1)),
        np.ndarray((rows, columns), np.uint8, body, blue, (uv_row, step)),
        np.ndarray((rows, columns), np.uint8, body, red, (uv_row, step)),
    )


def _stride(hints: Hints, name: str, least: int, default: int | None = None) -> int:
    stride: int = hints.values.get(name, least if default is None else default)
    if stride < least:
        raise invalid_parameter(f"parameter {name} is {stride}, but a row has {least} bytes")
    return stride


def _check_length(body: memoryview, short: int, full: int, hints: Hints) -> None:
    if len(body) not in (short, full):
        values = hints.values
        lengths = f"{short} or {full}" if short != full else f"{full}"
        raise invalid_input(
            f"a {values['format']} frame of {values['width']}x{values['height']} has {lengths} bytes, "
            f"the body has {len(body)}"
        )


def to_rgb(luma: Array, blue: Array, red: Array) -> Array:
    """Convert by BT.601 in full range; the colour terms are made at the planes' own size, a quarter of the picture's.

    Args:
        luma: uint8 [height, width].
        blue, red: uint8 [height / 2, width / 2], or of luma's own shape.

    Returns:
        uint8 [height, width, 3].
    """
    step = 1 if blue.shape == luma.shape else 2

    def make(rows: slice) -> Array:
        few = slice(rows.start // step, rows.stop // step)
        return _strip_to_rgb(luma[rows], blue[few], red[few])

    return _by_strips((*luma.shape, 3), make)


def _strip_to_rgb(luma: Array, blue: Array, red: Array) -> Array:
    b, r = blue.astype(np.int32) - 128, red.astype(np.int32) - 128
    # 1.402, 0.344136, 0.714136 and 1.772 with 16 bits behind the point, rounded.
    shifted = (r * 91881, b * -22554 + r * -46802, b * 116130)
    out, wide = np.empty((*luma.shape, 3), np.uint8), luma.astype(np.int16)
    for channel, term in enumerate(shifted):
        term = ((term + 32768) >> 16).astype(np.int16)
        spread = term if term.shape == luma.shape else np.repeat(np.repeat(term, 2, axis=0), 2, axis=1)
        spread = spread + wide
        np.clip(spread, 0, 255, out=spread)
        out[..., channel] = spread
    return out
