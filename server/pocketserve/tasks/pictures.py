"""Pictures: from the bytes of a file to an array of pixels of a given size."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.repository.sections import ImageOptions
from pocketserve.tasks.base import invalid_input
from pocketserve.tensors import Array
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


@dataclass(frozen=True, slots=True)
class PictureShape:
    """What the model wants: size in pixels and colour channels (1 or 3)."""

    width: int
    height: int
    channels: int


def read_picture(body: memoryview, shape: PictureShape, options: ImageOptions, max_pixels: int) -> Array:
    """Decode, turn upright, convert and resize a picture.

    Args:
        max_pixels: decoded size above which the picture is refused before any pixel is decoded.

    Returns:
        uint8 of shape [height, width, channels], 0 to 255.

    Raises:
        ApiError: INVALID_INPUT.
    """
    with _reported(), _open(body) as image:
        if image.format == "JPEG":  # the decoder scales down by itself, at a fraction of the cost
            image.draft("L" if shape.channels == 1 else "RGB", (shape.width, shape.height))
        if image.width * image.height > max_pixels:
            raise invalid_input(
                f"the picture has {image.width}x{image.height} pixels; the limit is {max_pixels} (max_image_pixels)"
            )
        upright = _upright(image)
        coloured = _convert(upright, "L" if shape.channels == 1 else "RGB")
        sized = _resize(coloured, shape.width, shape.height, options.resize or "stretch")
        pixels = np.asarray(sized, dtype=np.uint8).reshape(shape.height, shape.width, shape.channels)
    return _invert(pixels, options.invert)


@contextmanager
def _reported() -> Iterator[None]:
    """Whatever Pillow raises on a broken file becomes one sentence for the caller."""
    try:
        yield
    except ApiError:
        raise
    except Exception as error:  # decoders raise OSError, ValueError, SyntaxError, struct.error, ...
        raise invalid_input(f"the picture cannot be decoded: {str(error)[:200] or type(error).__name__}") from None


def _open(body: memoryview) -> Image:
    try:
        import PIL.Image
    except ImportError:
        raise invalid_input(
            "pictures need Pillow: pip install 'pocketserve[image]', on Termux pkg install python-pillow"
        ) from None
    PIL.Image.MAX_IMAGE_PIXELS = None  # our own limit is checked before any pixel is decoded
    try:
        return PIL.Image.open(io.BytesIO(body), formats=FORMATS)
    except PIL.UnidentifiedImageError:
        raise invalid_input(f"the body is not a picture this server can read ({', '.join(FORMATS)})") from None


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) or image


def _convert(image: Image, mode: str) -> Image:
    import PIL.Image

    if image.mode.startswith("I") or image.mode == "F":  # 16-bit greys: Pillow's own conversion clips them
        values = np.asarray(image, dtype=np.float64)
        image = PIL.Image.fromarray(np.rint(values / 257.0).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = PIL.Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = PIL.Image.alpha_composite(white, rgba)
    return image if image.mode == mode else image.convert(mode)


def _resize(image: Image, width: int, height: int, how: str) -> Image:
    import PIL.Image
    from PIL import ImageOps

    if image.size == (width, height):
        return image
    bilinear = PIL.Image.Resampling.BILINEAR
    if how == "crop":
        return ImageOps.fit(image, (width, height), bilinear)
    if how == "letterbox":
        return ImageOps.pad(image, (width, height), bilinear)
    return image.resize((width, height), bilinear)


def _invert(pixels: Array, when: str) -> Array:
    """Dark ink on a light ground to light on dark; "auto" looks at the border, which is ground."""
    if when == "never":
        return pixels
    if when == "auto":
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        if float(border.mean()) < 128:
            return pixels
    return 255 - pixels
