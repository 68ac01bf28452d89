"""Raw camera frames: ``?format=nv21&width=640&height=480&rotation=90``.

Android's ImageProxy and Camera2 give YUV_420_888; CameraX can give RGBA_8888. The colours are taken as JFIF: BT.601
with all values from 0 to 255. Android's system/graphics.h describes HAL_DATASPACE_V0_JFIF so, the space in which its
cameras also make JPEGs. From Android 13 on, Image.getDataSpace() tells where a device differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pocketserve.tasks.base import Hints, invalid_input, invalid_parameter
from pocketserve.tasks.vision.strips import spans
from pocketserve.tensors import Array

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("nv21", "yuv420", "rgba", "rgb", "gray")
_PACKED = {"rgba": (4, "RGB", "RGBX"), "rgb": (3, "RGB", "RGB"), "gray": (1, "L", "L")}
"""Bytes per pixel, and Pillow's modes of picture and bytes."""

ORIENTATIONS = {0: 1, 90: 6, 180: 3, 270: 8}  # EXIF's by the degrees of ``rotation``
_NEEDS_FORMAT = (
    "width",
    "height",
    "rotation",
    "row_stride",
    "uv_row_stride",
    "pixel_stride",
)


def is_frame(hints: Hints) -> bool:
    """Return whether the caller says that the body is a frame."""
    name = hints.values.get("format")
    if name is None:
        stray = next((name for name in _NEEDS_FORMAT if name in hints.values), None)
        if stray is not None:
            raise invalid_parameter(
                f"parameter {stray} needs format, one of {', '.join(FORMATS)}"
            )
        return False
    if name not in FORMATS:
        raise invalid_parameter(f"parameter format must be one of {', '.join(FORMATS)}")
    return True


def frame_size(hints: Hints, max_pixels: int) -> tuple[int, int]:
    """Return (width, height) of the frame once it is turned upright."""
    values = hints.values
    if "width" not in values or "height" not in values:
        raise invalid_parameter(
            f"format={values['format']} needs the parameters width and height"
        )
    width, height = values["width"], values["height"]
    if width * height > max_pixels:
        raise invalid_input(
            f"the frame has {width}x{height} pixels; the limit is {max_pixels} (max_image_pixels)"
        )
    return (height, width) if values.get("rotation", 0) % 180 else (width, height)


def read_frame(body: memoryview, hints: Hints, *, halved: bool = False) -> Image:
    """Return the frame's picture in ``RGB`` or ``L``, not turned yet.

    Args:
        hints: those of a frame whose size was checked by :func:`frame_size`.
        halved: at half its width and height, for ``nv21`` and ``yuv420``, as their colours come: a quarter of the work.
    """
    import PIL.Image

    values = hints.values
    name, width, height = values["format"], values["width"], values["height"]
    if name in _PACKED:
        size, mode, raw_mode = _PACKED[name]
        _check_pixel_stride(hints, size)
        row = _stride(hints, "row_stride", width * size)
        _check_length(body, (height - 1) * row + width * size, height * row, hints)
        picture = PIL.Image.new(mode, (width, height), None)
        for top, bottom in spans(height, width):
            rows = body[top * row : bottom * row]
            picture.paste(
                PIL.Image.frombytes(
                    mode, (width, bottom - top), rows, "raw", raw_mode, row
                ),
                (0, top),
            )
        return picture
    planes = _yuv(body, hints)
    picture = PIL.Image.new("RGB", planes[1 if halved else 0].shape[::-1], None)
    for top, bottom in spans(len(planes[1]), 4 * planes[1].shape[1]):
        luma = PIL.Image.fromarray(planes[0][2 * top : 2 * bottom])
        chroma = [PIL.Image.fromarray(plane[top:bottom]) for plane in planes[1:]]
        if halved:
            luma = luma.reduce(2)
        else:
            chroma = [
                plane.resize(luma.size, PIL.Image.Resampling.NEAREST)
                for plane in chroma
            ]
        strip = PIL.Image.merge("YCbCr", (luma, *chroma)).convert("RGB")
        picture.paste(strip, (0, top if halved else 2 * top))
    return picture


def _yuv(body: memoryview, hints: Hints) -> tuple[Array, Array, Array]:
    """Return the planes Y, U and V: in NV21 V and U take turns in one plane, in yuv420 they lie in one each."""
    values, interleaved = hints.values, hints.values["format"] == "nv21"
    width, height = values["width"], values["height"]
    if width % 2 or height % 2:
        raise invalid_parameter(
            f"format={values['format']} needs an even width and height, not {width}x{height}"
        )
    row = _stride(hints, "row_stride", width)
    start, columns, rows = height * row, width // 2, height // 2
    if interleaved:
        _check_pixel_stride(hints, 2)
    step = values.get("pixel_stride", 2 if interleaved else 1)
    used = width if interleaved else (columns - 1) * step + 1
    uv_row = _stride(
        hints, "uv_row_stride", used, row if interleaved else columns * step
    )
    # Android's buffers end with the last value of the last row; other sources pad that row too. The length tells.
    short, full, planes = (
        (rows - 1) * uv_row + used,
        rows * uv_row,
        1 if interleaved else 2,
    )
    _check_length(body, start + planes * short, start + planes * full, hints)
    second = start + (full if len(body) == start + 2 * full else short)
    blue, red = (start + 1, start) if interleaved else (start, second)
    return (
        np.ndarray((height, width), np.uint8, body, 0, (row, 1)),
        np.ndarray((rows, columns), np.uint8, body, blue, (uv_row, step)),
        np.ndarray((rows, columns), np.uint8, body, red, (uv_row, step)),
    )


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
