"""Pictures: from the bytes of a file to an array of pixels of a given size.

Whatever is wrong with them is an ApiError, INVALID_INPUT or INVALID_PARAMETER.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Hints, invalid_input, invalid_parameter
from pocketserve.tasks.cancellation import checkpoint, hold_bytes
from pocketserve.tasks.vision import strips
from pocketserve.tasks.vision.frames import (
    ORIENTATIONS,
    frame_size,
    is_frame,
    read_frame,
)
from pocketserve.tasks.vision.geometry import Area, Placement, place, place_sized
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import Array
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
LIBHEIF = (
    1,
    23,
)  # the oldest that is used: 1.21 decoded as many pixels as the stream holds, whatever was announced
SCALABLE = ("JPEG", "MPO")
"""What decodes at a fraction of its size. MPO: several JPEGs in one file, as many phones write them."""

WHOLE_PIXELS = 1 << 21
"""The most pixels to which a whole picture is scaled before it is cropped."""

EXACT_PIXELS = 1 << 20
"""A JPEG of at most this size is decoded whole: scaling in the decoder would save milliseconds, and its answers would
differ in the second decimal from those of the model's own authors, who do not."""

MAX_SIDE = 32_767  # pixels: by rows and columns, decoders and resizers take gigabytes for one of 64 million
FULL_SIZE_SCANS = 16  # that a JPEG of the largest size may have, and smaller ones in proportion: encoders make ten
UNSTOPPABLE_PIXELS = (
    1 << 24
)  # of a WebP or AVIF, whose decoders take up to a tenth of a second for a million
AVIF_SHARES = 2.25  # of that in all parts of an AVIF
MAX_READS = (
    1 << 20
)  # of a file: Pillow keeps an object of a hundred bytes for each piece of 4 that it consists of
BLOCK_BYTES = (
    1 << 13
)  # that a decoder takes between two checkpoints: a PNG's become a thousand times as many. Pillow's
# own 64 KiB stay for a JPEG of one scan, which one call may decode whole: max_image_pixels bounds that.
BYTES_PER_PIXEL = 8  # of a picture while it is read: Pillow holds four bytes a pixel, before and after a step
_ORIENTATION = 0x0112


class PictureShape(NamedTuple):
    """The picture that a model takes: size in pixels and colour channels (1 or 3)."""

    width: int
    height: int
    channels: int


def read_picture(
    body: memoryview,
    shape: PictureShape,
    options: ImageOptions,
    max_pixels: int,
    hints: Hints = NO_HINTS,
) -> tuple[Array, Placement]:
    """Decode, turn upright, convert and resize a picture.

    Args:
        shape: its size doesn't count if ``options.sizing`` is set, which may depend on the picture.
        max_pixels: decoded size above which the picture is refused before any pixel is decoded.
        hints: may say that the body is a raw camera frame, and which region counts.

    Returns:
        uint8 of shape [height, width, channels], 0 to 255; and where the picture lies in it.
    """
    size = (shape.width, shape.height)
    with _opened(body, hints, max_pixels, size) as (image, upright_size, orientation):
        region = _region(hints, upright_size)
        if options.sizing is not None:
            placement = place_sized(upright_size, options.sizing, region)
            _check_size(placement.input, max_pixels)
        else:
            placement = place(
                upright_size,
                size,
                options.resize or "stretch",
                region,
                options.crop_fraction or 1.0,
            )
        mode = "L" if shape.channels == 1 else "RGB"
        decoded = _decode(image, mode, orientation, placement, max_pixels)
        resized = _resize(decoded, placement, options, region)
        width, height = placement.input
        pixels = np.asarray(resized, dtype=np.uint8).reshape(
            height, width, shape.channels
        )
    if options.color == "bgr":
        pixels = pixels[..., ::-1]
    inverted = options.invert == "always"
    if options.invert == "auto":  # the border is the ground
        inverted = (
            np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]).mean()
            >= 128
        )
    return 255 - pixels if inverted else pixels, placement


def read_whole(
    body: memoryview, max_pixels: int, longest: int, hints: Hints = NO_HINTS
) -> tuple[Image, tuple[int, int]]:
    """Return the upright picture in RGB, of at most ``longest`` pixels a side; and its true (width, height)."""
    with _opened(body, hints, max_pixels, (longest, longest)) as (
        image,
        upright_size,
        orientation,
    ):
        scale = min(1.0, longest / max(upright_size))
        size = (
            max(1, round(upright_size[0] * scale)),
            max(1, round(upright_size[1] * scale)),
        )
        picture = _decode(
            image, "RGB", orientation, place(upright_size, size, "stretch"), max_pixels
        )
        if picture.size == size:
            return picture.copy(), upright_size
        return strips.resize(
            picture, size, "bilinear", (0, 0, *picture.size)
        ), upright_size


@contextmanager
def _opened(
    body: memoryview, hints: Hints, max_pixels: int, size: tuple[int, int]
) -> Iterator[tuple[Image, tuple[int, int], int]]:
    """Yield a picture, with room for what is decoded at once; its upright (width, height); its EXIF orientation.

    Whatever Pillow raises on a broken file becomes one sentence for the caller. ``size`` is needed in the end.
    """
    try:
        import PIL.Image
    except ImportError:
        raise invalid_input(
            "pictures need Pillow: pip install 'pocketserve[image]', on Termux pkg install python-pillow"
        ) from None
    PIL.Image.MAX_IMAGE_PIXELS = (
        None  # our own limit is checked before any pixel is decoded
    )
    if not len(body):
        raise invalid_input("the body is empty; send a picture")
    try:
        if hints.values and is_frame(hints):
            width, height = upright_size = frame_size(hints, max_pixels)
            _make_room(upright_size, max_pixels)
            halved = (
                min(width / size[0], height / size[1]) >= 2
                and "region" not in hints.values
            )
            yield (
                read_frame(body, hints, halved=halved),
                upright_size,
                ORIENTATIONS[hints.values.get("rotation", 0)],
            )
            return
        with _open(body, max_pixels) as image:
            orientation = image.getexif().get(_ORIENTATION, 1)
            yield (
                image,
                image.size[::-1] if orientation in strips.SIDEWAYS else image.size,
                orientation,
            )
    except ApiError:
        raise
    except (
        Exception
    ) as error:  # decoders raise OSError, ValueError, SyntaxError, struct.error, ...
        raise invalid_input(
            f"the picture cannot be decoded: {str(error)[:200] or type(error).__name__}"
        ) from None


def _open(body: memoryview, max_pixels: int) -> Image:
    """Open a file, or an array of pixels, without decoding more than the size that it claims allows."""
    import PIL.Image

    if (
        arrays.is_npy(body)
        and (pixels := arrays.picture_in(arrays.read_npy(body))) is not None
    ):
        _make_room((pixels.shape[1], pixels.shape[0]), max_pixels)
        return PIL.Image.fromarray(pixels)
    from pocketserve.formats.avif import is_avif  # late: tensors need none
    from pocketserve.tasks.vision.picture_headers import (
        MAX_SCANS,
        picture_kind,
        scans_of,
        size_to_hold,
    )

    start = bytes(body[:12])
    early = size_to_hold(body)  # opening a GIF or WebP already allocates
    if early is not None:
        _make_room(early, max_pixels)
        if start.startswith(b"RIFF"):
            _check_unstoppable(early, "WebP")
    formats: tuple[str, ...] = FORMATS
    decoded_pixels = 0
    if start[4:8] == b"ftyp" and is_avif(body):
        decoded_pixels = _check_avif(body, max_pixels)
        formats = ("AVIF",)
    elif start[4:8] == b"ftyp" and start[8:] in HEIF_BRANDS:
        _register_heif()
        formats = ("HEIF",)
    try:
        image = PIL.Image.open(cast("IO[bytes]", CheckedReader(body)), formats=formats)
    except PIL.UnidentifiedImageError:
        if formats is not FORMATS:
            text = f"the {formats[0]} picture is damaged or of a kind that cannot be read; send a JPEG or PNG"
            raise invalid_input(text.replace("HEIF", "HEIC")) from None
        kind = picture_kind(body)
        if kind:
            raise invalid_input(f"{kind} is not read; send a JPEG or PNG") from None
        from pocketserve.tasks.encoded import base64_hint  # late: only faults need it

        raise invalid_input(
            f"this is not a picture that the server can read ({', '.join(FORMATS)}, AVIF)"
            f"{base64_hint(body)}"
        ) from None
    if decoded_pixels and image.width * image.height > decoded_pixels:
        raise invalid_input(
            "the AVIF picture announces more pixels than it has; send a JPEG or PNG"
        )
    if image.format in SCALABLE and early is None:
        return image  # the first scan brings the whole picture: libjpeg refuses a second one
    image.decodermaxblock = BLOCK_BYTES
    if image.format in SCALABLE:
        # The decoder walks over all pixels again for each scan, and a scan takes 14 bytes of a file.
        pixels_count = max(1, image.width * image.height)
        maximum = min(
            MAX_SCANS, FULL_SIZE_SCANS * max(max_pixels, EXACT_PIXELS) // pixels_count
        )
        if scans_of(bytes(body)) > maximum:
            raise invalid_input(
                f"the JPEG file has more scans than the {maximum} that its size allows; save it anew"
            )
    elif early is None:  # already asking a PNG for its EXIF data decodes it
        _make_room(image.size, max_pixels)
    return image


def _check_unstoppable(size: tuple[int, int], kind: str) -> None:
    """Refuse a picture whose decoder takes too long where nothing can stop it."""
    width, height = size
    if width * height > UNSTOPPABLE_PIXELS:
        text = f"the {kind} has {width}x{height} pixels; the limit is {UNSTOPPABLE_PIXELS}: send a JPEG"
        raise invalid_input(text)


def _check_avif(body: memoryview, max_pixels: int) -> int:
    """Return the pixels that an AVIF file's decoder would allocate, and hold as much."""
    import PIL.features

    if not PIL.features.check("avif"):
        text = "AVIF pictures need Pillow 11.3 or newer with libavif: pip install --upgrade pillow; or send a JPEG"
        raise invalid_input(text)
    from pocketserve.formats.avif import AvifError, frame_sizes  # late: few send AVIF

    try:
        sizes = frame_sizes(body)
    except AvifError as error:
        raise invalid_input(str(error)) from None
    total = 0
    for size in sizes:
        _check_size(size, max_pixels)
        total += size[0] * size[1]
    # The picture or its tiles, as many pixels of transparency, and a thumbnail.
    if total > AVIF_SHARES * UNSTOPPABLE_PIXELS:
        raise invalid_input(
            f"the AVIF has {total} pixels in all its parts, too many: send a JPEG"
        )
    hold_bytes(total * BYTES_PER_PIXEL)
    return total


def _decode(
    image: Image, mode: str, orientation: int, placement: Placement, max_pixels: int
) -> Image:
    """Decode the picture, with room for its pixels, and turn it upright.

    A large JPEG's decoder scales it down at a fraction of the cost; never below what is needed.
    """
    if image.format in SCALABLE and image.width * image.height > min(
        EXACT_PIXELS, max_pixels
    ):
        source, target = placement.source, placement.target
        width = max(1, int(placement.picture[0] * target.width / source.width))
        height = max(1, int(placement.picture[1] * target.height / source.height))
        image.draft(
            mode, (height, width) if orientation in strips.SIDEWAYS else (width, height)
        )
    _make_room(image.size, max_pixels)
    image.load()
    return strips.upright(image, mode, orientation)


def _make_room(size: tuple[int, int], max_pixels: int) -> None:
    """Hold so many pixels of the memory that all requests share."""
    _check_size(size, max_pixels)
    width, height = size
    hold_bytes(width * height * BYTES_PER_PIXEL)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise invalid_input(
            f"the picture has {width}x{height} pixels; the limit is {max_pixels} (max_image_pixels)"
        )
    if max(size) > MAX_SIDE:
        raise invalid_input(
            f"the picture has {width}x{height} pixels; a side may have {MAX_SIDE}"
        )


class CheckedReader(io.RawIOBase):
    """A picture's file where it was received, with a checkpoint each time that a decoder works on with it."""

    def __init__(self, file: memoryview) -> None:
        self._file, self._at = file, 0
        self._left = (
            len(file) + 2 if bytes(file[:2]) == b"BM" else MAX_READS
        )  # a BMP's runs are read byte by byte

    def read(self, size: int | None = -1) -> bytes:
        checkpoint()
        self._left -= 1
        if self._left < 0:
            raise invalid_input(
                f"the picture file consists of more than {MAX_READS} pieces; save it anew"
            )
        end = len(self._file) if size is None or size < 0 else self._at + size
        piece = bytes(self._file[self._at : end])
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._at, len(self._file))[whence]
        if position < 0:
            raise ValueError("a position before the file's first byte")
        self._at = position
        return position

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True


class CheckedFile(io.BytesIO):
    """A file with a checkpoint each time that an encoder works on with it."""

    def write(self, data: Buffer, /) -> int:
        checkpoint()
        return super().write(data)


def _register_heif() -> None:
    """Make Pillow open HEIC; again does no harm."""
    try:
        import pillow_heif
    except ImportError:
        raise invalid_input(
            "HEIC pictures need pillow-heif: pip install 'pocketserve[heic]'; or send a JPEG"
        ) from None
    version: str = pillow_heif.libheif_version()
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < LIBHEIF:
        raise invalid_input(
            f"HEIC pictures need libheif {'.'.join(map(str, LIBHEIF))} or newer, and this is {version:.20}: "
            "pip install --upgrade pillow-heif; or send a JPEG"
        )
    pillow_heif.register_heif_opener()


def _region(hints: Hints, picture: tuple[int, int]) -> Area | None:
    """Return the parameter ``region``, cut at the picture's edges."""
    text = hints.values.get("region")
    if text is None:
        return None
    try:
        left, top, width, height = (float(part) for part in text.split(","))
        right, bottom = min(left + width, picture[0]), min(top + height, picture[1])
    except ValueError:
        raise invalid_parameter(
            "parameter region must be x,y,width,height in pixels, such as 10,20,100,80"
        ) from None
    left, top = max(left, 0.0), max(top, 0.0)
    if not (right - left >= 1 and bottom - top >= 1):  # also where one of them is NaN
        raise invalid_parameter(
            f"region lies outside of the picture of {picture[0]}x{picture[1]} pixels"
        )
    return Area(left, top, right - left, bottom - top)


def _resize(
    image: Image, placement: Placement, options: ImageOptions, region: Area | None
) -> Image:
    source, target = placement.source, placement.target
    if (
        options.sizing is not None
        and region is None
        and image.size == placement.picture
    ):
        scaled = options.sizing.scaled(placement.picture)
        if options.sizing.crop is not None and scaled[0] * scaled[1] <= WHOLE_PIXELS:
            return _crop_scaled(image, placement, options, scaled)
    # A decoder that scaled down leaves fewer pixels than the picture has.
    x, y = image.width / placement.picture[0], image.height / placement.picture[1]
    left, top = source.x * x, source.y * y
    right, bottom = left + source.width * x, top + source.height * y
    if region is not None:  # what lies around a region must not shine in at its edges
        start = (math.floor(region.x * x), math.floor(region.y * y))
        end = (
            math.ceil((region.x + region.width) * x),
            math.ceil((region.y + region.height) * y),
        )
        image = strips.crop(
            image, (*start, min(end[0], image.width), min(end[1], image.height))
        )
        left, top, right, bottom = (
            left - start[0],
            top - start[1],
            right - start[0],
            bottom - start[1],
        )
    box = (
        max(left, 0.0),
        max(top, 0.0),
        min(right, image.width),
        min(bottom, image.height),
    )
    size = (int(target.width), int(target.height))
    if image.size != size or box != (0, 0, *image.size):
        image = strips.resize(image, size, options.resample or "bilinear", box)
    return _fill_around(image, placement, options)


def _crop_scaled(
    image: Image, placement: Placement, options: ImageOptions, scaled: tuple[int, int]
) -> Image:
    """Scale the whole picture, then crop it.

    Scaling only the part that is needed rounds a few pixels differently than the model's own processor does.
    """
    left = round(placement.source.x * scaled[0] / image.width)
    top = round(placement.source.y * scaled[1] / image.height)
    width, height = int(placement.target.width), int(placement.target.height)
    if image.size != scaled:
        image = strips.resize(
            image, scaled, options.resample or "bilinear", (0, 0, *image.size)
        )
    return _fill_around(
        strips.crop(image, (left, top, left + width, top + height)), placement, options
    )


def _fill_around(image: Image, placement: Placement, options: ImageOptions) -> Image:
    """Place the scaled picture in the input; what is left gets the colour of ``fill``."""
    import PIL.Image

    target = placement.target
    if image.size == placement.input:
        return image
    fill = tuple(round(value) for value in options.fill or (0.0,))
    colour: Any = (
        fill[0] if image.mode == "L" else fill if len(fill) == 3 else fill[:1] * 3
    )
    boxed = PIL.Image.new(image.mode, placement.input, colour)
    boxed.paste(image, (int(target.x), int(target.y)))
    return boxed
