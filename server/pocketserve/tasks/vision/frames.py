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
_BYTES = {"rgba": 4, "rgb": 3, "gray": 1}
_STEPS = {**_BYTES, "nv21": 2}
"""Bytes from value to value, where the format itself says so."""

_NEEDS_FORMAT = ("width", "height", "rotation", "row_stride", "uv_row_stride", "pixel_stride")


def is_frame(hints: Hints) -> bool:
    """Return whether the caller says that the body is a frame.

    Raises:
        ApiError: INVALID_PARAMETER for an unknown format, or a frame's parameter without a format.
    """
    given = hints.values.get("format")
    if given is None:
        stray = next((name for name in _NEEDS_FORMAT if name in hints.values), None)
        if stray is not None:
            raise invalid_parameter(f"parameter {stray} needs format, one of {', '.join(FORMATS)}")
        return False
    if given not in FORMATS:
        raise invalid_parameter(f"parameter format must be one of {', '.join(FORMATS)}")
    return True


def frame_size(hints: Hints, max_pixels: int) -> tuple[int, int]:
    """(width, height) of the frame once it is turned upright.

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


def read_frame(body: memoryview, hints: Hints, max_pixels: int, *, halved: bool = False) -> Array:
    """The frame's pixels, upright.

    Args:
        halved: at half its width and height, for ``nv21`` and ``yuv420``: that is how their colours come anyway, and a
            quarter of the work.

    Returns:
        uint8 of shape [height, width, 3], or [height, width] for ``gray``.

    Raises:
        ApiError: INVALID_PARAMETER, or INVALID_INPUT where the length does not fit the parameters exactly.
    """
    width, height = frame_size(hints, max_pixels)
    kind = hints.values["format"]
    if kind in _STEPS and hints.values.get("pixel_stride", _STEPS[kind]) != _STEPS[kind]:
        raise invalid_parameter(f"format={kind} has a pixel_stride of {_STEPS[kind]}")
    if kind not in ("nv21", "yuv420"):
        turned = _turned(_packed(body, hints, _BYTES[kind]), hints)
        return _by_strips(turned.shape, lambda rows: turned[rows])
    if width % 2 or height % 2:
        raise invalid_parameter(f"format={kind} needs an even width and height, not {width}x{height}")
    # Turning the planes moves half of the bytes that turning the colours would.
    luma, blue, red = (_turned(plane, hints) for plane in _yuv(body, hints))
    if halved:
        whole = luma
        luma = _by_strips(blue.shape, lambda rows: _halved(whole[2 * rows.start : 2 * rows.stop]))
    return to_rgb(luma, blue, red)


def _by_strips(shape: tuple[int, ...], make: Callable[[slice], Array]) -> Array:
    """Put uint8 pixels together from rows, asking on the way whether the answer is still wanted."""
    result = np.empty(shape, np.uint8)
    for top, bottom in spans(-(-shape[0] // 2), 2 * shape[1]):  # pairs of rows have their colours in common
        rows = slice(2 * top, 2 * bottom)
        result[rows] = make(rows)
    return result


def _turned(pixels: Array, hints: Hints) -> Array:
    return np.rot90(pixels, -hints.values.get("rotation", 0) // 90)


def _halved(luma: Array) -> Array:
    """The rounded mean of each 2 x 2 pixels."""
    wide = luma.astype(np.uint16)
    total = wide[0::2, 0::2] + wide[0::2, 1::2] + wide[1::2, 0::2] + wide[1::2, 1::2]
    mean: Array = (total + 2) >> 2
    return mean.astype(np.uint8)


def _packed(body: memoryview, hints: Hints, size: int) -> Array:
    width, height = hints.values["width"], hints.values["height"]
    row = _stride(hints, "row_stride", width * size)
    _check_length(body, _span(height, row, width * size), height * row, hints)
    pixels = _plane(body, 0, height, row, width * size).reshape(height, width, size)
    return pixels[..., 0] if size == 1 else pixels[..., :3]


def _yuv(body: memoryview, hints: Hints) -> tuple[Array, Array, Array]:
    """The planes Y, U and V."""
    width, height = hints.values["width"], hints.values["height"]
    row = _stride(hints, "row_stride", width)
    if hints.values["format"] == "nv21":
        blue, red = _in_turns(body, hints, height * row)
    else:
        blue, red = _two_planes(body, hints, height * row)
    return _plane(body, 0, height, row, width), blue, red


def _in_turns(body: memoryview, hints: Hints, start: int) -> tuple[Array, Array]:
    """NV21: V and U in turns behind the luma plane."""
    width, rows = hints.values["width"], hints.values["height"] // 2
    row = _stride(hints, "uv_row_stride", width, otherwise=_stride(hints, "row_stride", width))
    _check_length(body, start + _span(rows, row, width), start + rows * row, hints)
    both = _plane(body, start, rows, row, width)
    return both[:, 1::2], both[:, 0::2]


def _two_planes(body: memoryview, hints: Hints, start: int) -> tuple[Array, Array]:
    """yuv420: the planes U and V behind the luma plane, as they lie in Android's buffers."""
    columns, rows = hints.values["width"] // 2, hints.values["height"] // 2
    step = hints.values.get("pixel_stride", 1)
    used = (columns - 1) * step + 1
    row = _stride(hints, "uv_row_stride", used, otherwise=columns * step)
    # Android's buffers end with the last value of the last row; other sources pad that row too. The length tells.
    short, full = _span(rows, row, used), rows * row
    _check_length(body, start + 2 * short, start + 2 * full, hints)
    plane = full if len(body) == start + 2 * full else short
    blue = _plane(body, start, rows, row, used)[:, ::step]
    return blue, _plane(body, start + plane, rows, row, used)[:, ::step]


def _plane(body: memoryview, start: int, rows: int, stride: int, used: int) -> Array:
    """A plane's bytes without what pads its rows, [rows, used]. The body is long enough: that is checked before."""
    flat = np.frombuffer(body[start : start + _span(rows, stride, used)], np.uint8)
    return np.lib.stride_tricks.as_strided(flat, (rows, used), (stride, 1), writeable=False)


def _span(rows: int, stride: int, used: int) -> int:
    """Bytes from a plane's first to its last value."""
    return (rows - 1) * stride + used


def _stride(hints: Hints, name: str, least: int, otherwise: int | None = None) -> int:
    stride: int = hints.values.get(name, least if otherwise is None else otherwise)
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
    """BT.601 in full range; the colour terms are made at the planes' own size, a quarter of the picture's.

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
    terms = [((term + 32768) >> 16).astype(np.int16) for term in shifted]
    height, width = luma.shape
    out = np.empty((height, width, 3), np.uint8)
    wide = luma.astype(np.int16)
    for channel, term in enumerate(terms):
        spread = term if term.shape == luma.shape else np.repeat(np.repeat(term, 2, axis=0), 2, axis=1)
        spread = spread + wide
        np.clip(spread, 0, 255, out=spread)
        out[..., channel] = spread
    return out
