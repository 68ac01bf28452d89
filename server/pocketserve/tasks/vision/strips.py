"""Steps on decoded pictures, strip by strip: one on 64 million pixels takes half a second that nothing can stop.

Every result is, to the last bit, what Pillow gives in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.tasks.cancellation import cancellable

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

STRIP_PIXELS = 1 << 20
"""Pixels of a strip: some milliseconds of a phone's time. Smaller pictures are worked on in one step."""

_TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
_TURNS = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"},
    **{6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},
}
SIDEWAYS = (5, 6, 7, 8)
"""Values of the EXIF orientation that exchange width and height."""

_FROM_THE_END = (3, 4, 6, 7)
"""Those that put the first row last."""


def upright(image: Image, mode: str, orientation: int) -> Image:
    """Convert to ``L`` or ``RGB`` and turn; transparent pictures lie on white, and 16-bit greys are scaled.

    Args:
        orientation: EXIF's, 1 to 8; any other leaves the picture as it is.
    """
    import PIL.Image

    plain = image.mode == mode and "transparency" not in image.info
    if plain and orientation not in _TURNS:
        return image
    sideways = orientation in SIDEWAYS
    result = PIL.Image.new(mode, image.size[::-1] if sideways else image.size, None)
    for top, bottom in spans(image.height, image.width):
        strip = _converted(image.crop((0, top, image.width, bottom)), mode)
        if orientation in _TURNS:
            strip = strip.transpose(PIL.Image.Transpose[_TURNS[orientation]])
        at = image.height - bottom if orientation in _FROM_THE_END else top
        result.paste(strip, (at, 0) if sideways else (0, at))
    return result


def crop(image: Image, box: tuple[int, int, int, int]) -> Image:
    """Cut a part out of a picture in ``L`` or ``RGB``."""
    import PIL.Image

    left, above, right, below = box
    if box == (0, 0, *image.size):
        return image
    result = PIL.Image.new(image.mode, (right - left, below - above), None)
    for top, bottom in spans(result.height, result.width):
        result.paste(image.crop((left, above + top, right, above + bottom)), (0, top))
    return result


def resize(image: Image, size: tuple[int, int], filter_name: str, box: tuple[float, float, float, float]) -> Image:
    """Scale a part of a picture in ``L`` or ``RGB`` to (width, height).

    Pillow, too, changes widths and heights one after the other, with whole numbers between. Other versions of it begin
    with the width of tall pictures as well; there, numbers are rounded otherwise.

    Args:
        filter_name: of ``PIL.Image.Resampling``, in small letters.
    """
    import PIL.Image

    how = PIL.Image.Resampling[filter_name.upper()]
    (width, height), (left, above, right, below) = size, box
    if max(image.width, width) * max(image.height, height) <= STRIP_PIXELS:
        return image.resize(size, how, box)
    lines_off = image.height - height
    if lines_off > 0 and lines_off > 2 * (image.width - width):
        return _widened(_heightened(image, height, how, above, below), width, how, left, right)
    return _heightened(_widened(image, width, how, left, right), height, how, above, below)


def _widened(image: Image, width: int, how: Resampling, left: float, right: float) -> Image:
    """Scale the columns from ``left`` to ``right`` to a width: no row needs another one for that."""
    import PIL.Image

    result = PIL.Image.new(image.mode, (width, image.height), None)
    for top, bottom in spans(image.height, max(image.width, width)):
        result.paste(image.resize((width, bottom - top), how, (left, top, right, bottom)), (0, top))
    return result


def _heightened(image: Image, height: int, how: Resampling, above: float, below: float) -> Image:
    """Scale the rows from ``above`` to ``below`` to a height: no column needs another one for that."""
    import PIL.Image

    result = PIL.Image.new(image.mode, (image.width, height), None)
    for start, end in spans(image.width, max(image.height, height)):
        columns = image.crop((start, 0, end, image.height))
        result.paste(columns.resize((end - start, height), how, (0, above, end - start, below)), (start, 0))
    return result


def spans(length: int, across: int) -> Iterator[tuple[int, int]]:
    """Yield where strips begin and end, asking before each whether the answer is still wanted."""
    step = max(1, STRIP_PIXELS // max(1, across))
    for start in cancellable(range(0, length, step)):
        yield start, min(start + step, length)


def _converted(image: Image, mode: str) -> Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _from_deep(image)
    elif image.mode in _TRANSPARENT or "transparency" in image.info:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _from_deep(image: Image) -> Image:
    import PIL.Image

    values = np.asarray(image, dtype=np.float64)  # Pillow's own conversion clips them
    return PIL.Image.fromarray(np.rint(values / 257.0).clip(0, 255).astype(np.uint8))


def _on_white(image: Image) -> Image:
    import PIL.Image

    rgba = image.convert("RGBA")
    return PIL.Image.alpha_composite(PIL.Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
