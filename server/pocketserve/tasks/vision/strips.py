"""Process decoded pictures strip by strip.

A step on 64 million pixels takes half a second that nothing can interrupt. Each result
equals Pillow's in one step, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.tasks.cancellation import cancellable

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

# Some milliseconds on a phone; smaller pictures are processed in one step.
STRIP_PIXELS = 1 << 20
_TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
_TURNS = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"},
    **{6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},
}
SIDEWAYS = (5, 6, 7, 8)  # values of the EXIF orientation that exchange width and height
_FROM_THE_END = (3, 4, 6, 7)  # those that put the first row last


def upright(image: Image, mode: str, orientation: int) -> Image:
    """Convert to ``L`` or ``RGB`` and rotate upright.

    Transparent pictures get a white background; 16-bit greys are scaled.

    Args:
        orientation: EXIF's, 1 to 8; any other leaves the picture as it is.
    """
    import PIL.Image

    is_turned = orientation in _TURNS
    if image.mode == mode and "transparency" not in image.info and not is_turned:
        return image
    size = image.size
    if orientation in SIDEWAYS:
        size = image.size[::-1]
    result = PIL.Image.new(mode, size, None)
    for top, bottom in spans(image.height, image.width):
        strip = _converted(image.crop((0, top, image.width, bottom)), mode)
        if is_turned:
            strip = strip.transpose(PIL.Image.Transpose[_TURNS[orientation]])
        at = top
        if orientation in _FROM_THE_END:
            at = image.height - bottom
        result.paste(strip, (at, 0) if orientation in SIDEWAYS else (0, at))
    return result


def crop(image: Image, box: tuple[int, int, int, int]) -> Image:
    """Crop a picture in ``L`` or ``RGB``."""
    import PIL.Image

    if box == (0, 0, *image.size):
        return image
    left, above, right, below = box
    result = PIL.Image.new(image.mode, (right - left, below - above), None)
    for top, bottom in spans(*result.size[::-1]):
        result.paste(image.crop((left, above + top, right, above + bottom)), (0, top))
    return result


def resize(
    image: Image,
    size: tuple[int, int],
    filter_name: str,
    box: tuple[float, float, float, float],
) -> Image:
    """Scale a part of a picture in ``L`` or ``RGB`` to (width, height).

    Pillow, too, scales one axis after the other, with integers in between. Some versions
    start with the width of tall pictures, which rounds differently.

    Args:
        filter_name: of ``PIL.Image.Resampling``, in lower case.
    """
    import PIL.Image

    resampling = PIL.Image.Resampling[filter_name.upper()]
    if max(image.width, size[0]) * max(image.height, size[1]) <= STRIP_PIXELS:
        return image.resize(size, resampling, box)
    lines_off = image.height - size[1]
    height_first = lines_off > 0 and lines_off > 2 * (image.width - size[0])
    for axis in (1, 0) if height_first else (0, 1):
        image = _resize_axis(
            image, axis, size[axis], resampling, box[axis], box[axis + 2]
        )
    return image


def _resize_axis(
    image: Image,
    axis: int,
    length: int,
    resampling: Resampling,
    start: float,
    end: float,
) -> Image:
    """Scale widths (axis 0) or heights from ``start`` to ``end``, strip by strip.

    Rows, or columns, are independent of each other.
    """
    import PIL.Image

    result = PIL.Image.new(
        image.mode, (length, image.height) if axis == 0 else (image.width, length), None
    )
    for first, last in spans(image.size[1 - axis], max(image.size[axis], length)):
        count = last - first
        if axis == 0:
            result.paste(
                image.resize((length, count), resampling, (start, first, end, last)),
                (0, first),
            )
        else:
            columns = image.crop((first, 0, last, image.height))
            result.paste(
                columns.resize((count, length), resampling, (0, start, count, end)),
                (first, 0),
            )
    return result


def spans(length: int, across: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of strips, with a checkpoint before each."""
    step = max(1, STRIP_PIXELS // max(1, across))
    for start in cancellable(range(0, length, step)):
        yield start, min(start + step, length)


def _converted(image: Image, mode: str) -> Image:
    import PIL.Image

    if image.mode.startswith("I") or image.mode == "F":  # Pillow's own conversion clips
        values = np.asarray(image, dtype=np.float64)
        image = PIL.Image.fromarray(
            np.rint(values / 257.0).clip(0, 255).astype(np.uint8)
        )
    elif image.mode in _TRANSPARENT or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = PIL.Image.alpha_composite(
            PIL.Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba
        )
    if image.mode == mode:
        return image
    return image.convert(mode)
