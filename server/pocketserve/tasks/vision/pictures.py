"""Decode pictures into pixel arrays of a given size.

Every fault of a picture is an ApiError, INVALID_INPUT or INVALID_PARAMETER.
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
from pocketserve.tasks.cancellation import checkpoint, current_check, hold_bytes
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
# The oldest safe version: 1.21 ignored the announced size and decoded every pixel.
LIBHEIF = (1, 23)
SCALABLE = ("JPEG", "MPO")
"""Formats that can be decoded at a fraction of their size.

MPO: several JPEGs in one file, as many phones write.
"""

WHOLE_PIXELS = 1 << 21
"""The most pixels to which a whole picture is scaled before it is cropped."""

EXACT_PIXELS = 1 << 20
"""The most pixels of a JPEG that is decoded at full size.

Scaling in the decoder would save milliseconds, but its answers would differ in the second
decimal from those of the model's authors.
"""

# Pixels: decoders and resizers allocate gigabytes for a side of 64 million.
MAX_SIDE = 32_767
# Scans of a JPEG of the largest size; smaller ones may have more. Encoders make ten.
FULL_SIZE_SCANS = 16
# Pixels of a WebP or AVIF. Their decoders can't be interrupted, and take as much as a
# tenth of a second per million.
UNSTOPPABLE_PIXELS = 1 << 24
AVIF_SHARES = 2.25  # of UNSTOPPABLE_PIXELS, in all parts of an AVIF
# Reads of a file: Pillow keeps an object of 100 bytes for each chunk of 4.
MAX_READS = 1 << 20
# Bytes that a decoder reads between two checkpoints: a PNG's may become a thousand times
# as many. A JPEG of one scan keeps Pillow's 64 KiB; max_image_pixels bounds it.
BLOCK_BYTES = 1 << 13
# Pillow needs four bytes per pixel, before and after a step.
BYTES_PER_PIXEL = 8
_ORIENTATION = 0x0112
_LIGHT = 128  # mean of a border from which it is light


class PictureShape(NamedTuple):
    """A model's picture: size in pixels and colour channels (1 or 3)."""

    width: int
    height: int
    channels: int


def read_picture(
    body: memoryview,
    shape: PictureShape,
    options: ImageOptions,
    max_pixels: int,
    hints: Hints = NO_HINTS,
    *,
    takes_any_size: bool = True,
) -> tuple[Array, Placement]:
    """Decode, rotate upright, convert and resize a picture.

    Args:
        shape: its size is ignored if ``options.sizing`` is set, which may depend on the
            picture.
        max_pixels: a larger picture is rejected before any pixel is decoded.
        hints: may say that the body is a raw camera frame, and name a region.
        takes_any_size: whether the input takes other sizes than that of ``shape``. If
            not, ``options.sizing`` only counts for pictures that it brings to this size.

    Returns:
        uint8 of shape [height, width, channels], 0 to 255; and the picture's placement.
    """
    size = (shape.width, shape.height)
    with _opened(body, hints, max_pixels, size) as source:
        region = _region(hints, source.upright_size)
        placement = None
        if options.sizing is not None:
            placement = place_sized(source.upright_size, options.sizing, region)
            if min(placement.source.width, placement.source.height) == 0:
                raise invalid_input("the picture is too small to be cropped")
            if not takes_any_size and placement.input != size:
                placement = None
                options = options._replace(sizing=None)
        if placement is None:
            placement = _placed(source.upright_size, size, options, region)
        else:
            _check_size(placement.input, max_pixels)
        mode = "RGB"
        if shape.channels == 1:
            mode = "L"
        decoded = _decode(source, mode, placement, max_pixels)
        resized = _resize(decoded, placement, options, region)
        width, height = placement.input
        pixels = np.asarray(resized, dtype=np.uint8)
        pixels = pixels.reshape(height, width, shape.channels)
    if options.color == "bgr":
        pixels = pixels[..., ::-1]
    if options.invert == "always" or (options.invert == "auto" and _is_light(pixels)):
        pixels = 255 - pixels
    return pixels, placement


def _is_light(pixels: Array) -> bool:
    """Return whether the border, and so the background, is light."""
    border = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    return bool(np.concatenate(border).mean() >= _LIGHT)


def _placed(
    picture: tuple[int, int],
    size: tuple[int, int],
    options: ImageOptions,
    region: Area | None,
) -> Placement:
    """Place a picture by ``options.resize`` instead of ``options.sizing``."""
    resize = options.resize or "stretch"
    fraction = options.crop_fraction or 1.0
    return place(picture, size, resize, region, fraction)


def read_whole(
    body: memoryview, max_pixels: int, longest: int, hints: Hints = NO_HINTS
) -> tuple[Image, tuple[int, int]]:
    """Return the upright picture in RGB, and its original (width, height).

    It is scaled down to at most ``longest`` pixels a side.
    """
    with _opened(body, hints, max_pixels, (longest, longest)) as source:
        width, height = source.upright_size
        scale = min(1.0, longest / max(width, height))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        placement = place(source.upright_size, size, "stretch")
        picture = _decode(source, "RGB", placement, max_pixels)
        if picture.size == size:
            return picture.copy(), source.upright_size
        box = (0, 0, *picture.size)
        resized = strips.resize(picture, size, "bilinear", box)
        return resized, source.upright_size


class _OpenedPicture(NamedTuple):
    """A picture before its pixels are decoded.

    Attributes:
        upright_size: (width, height).
        orientation: EXIF's, 1 to 8.
    """

    image: Image
    upright_size: tuple[int, int]
    orientation: int


@contextmanager
def _opened(
    body: memoryview, hints: Hints, max_pixels: int, size: tuple[int, int]
) -> Iterator[_OpenedPicture]:
    """Open a picture or camera frame and reserve memory for immediate decoding.

    Pillow's exceptions about a broken file become INVALID_INPUT.

    Args:
        size: the size to which the picture will be scaled.
    """
    try:
        import PIL.Image
    except ImportError:
        raise invalid_input(
            "pictures need Pillow: pip install 'pocketserve[image]', on Termux pkg install python-pillow"
        ) from None
    PIL.Image.MAX_IMAGE_PIXELS = None  # our own limit is checked before decoding
    if not len(body):
        raise invalid_input("the body is empty; send a picture")
    try:
        if hints.values and is_frame(hints):
            yield _open_frame(body, hints, max_pixels, size)
            return
        with _open(body, max_pixels) as image:
            yield _with_orientation(image)
    except ApiError:
        raise
    except Exception as error:
        # Decoders raise OSError, ValueError, SyntaxError, struct.error and others.
        raise invalid_input(
            f"the picture cannot be decoded: {str(error)[:200] or type(error).__name__}"
        ) from None


def _open_frame(
    body: memoryview, hints: Hints, max_pixels: int, size: tuple[int, int]
) -> _OpenedPicture:
    width, height = frame_size(hints, max_pixels)
    _make_room((width, height), max_pixels)
    is_large = min(width / size[0], height / size[1]) >= 2
    halved = is_large and "region" not in hints.values
    image = read_frame(body, hints, halved=halved)
    orientation = ORIENTATIONS[hints.values.get("rotation", 0)]
    return _OpenedPicture(image, (width, height), orientation)


def _with_orientation(image: Image) -> _OpenedPicture:
    orientation = image.getexif().get(_ORIENTATION, 1)
    upright_size = image.size
    if orientation in strips.SIDEWAYS:
        upright_size = image.size[::-1]
    return _OpenedPicture(image, upright_size, orientation)


def _open(body: memoryview, max_pixels: int) -> Image:
    """Open a file or pixel array.

    Decode nothing beyond the claimed size.
    """
    import PIL.Image

    if arrays.is_npy(body):
        pixels = arrays.picture_in(arrays.read_npy(body))
        if pixels is not None:
            _make_room((pixels.shape[1], pixels.shape[0]), max_pixels)
            return PIL.Image.fromarray(pixels)
    from pocketserve.tasks.vision.picture_headers import size_to_hold  # tensors skip it

    early = size_to_hold(body)  # opening a GIF or WebP already allocates
    if early is not None:
        _make_room(early, max_pixels)
        if bytes(body[:4]) == b"RIFF":
            _check_unstoppable(early, "WebP")
    formats, decoded_pixels = _prepare_container(body, max_pixels)
    try:
        image = PIL.Image.open(cast("IO[bytes]", CheckedReader(body)), formats=formats)
    except PIL.UnidentifiedImageError:
        raise _unidentified(body, formats) from None
    if decoded_pixels and image.width * image.height > decoded_pixels:
        raise invalid_input(
            "the AVIF picture announces more pixels than it has; send a JPEG or PNG"
        )
    is_scalable = image.format in SCALABLE
    if is_scalable and early is None:
        # The first scan has the whole picture: libjpeg rejects a second one.
        return image
    image.decodermaxblock = BLOCK_BYTES
    if is_scalable:
        _check_scans(body, image.width * image.height, max_pixels)
    elif early is None:  # reading a PNG's EXIF data already decodes it
        _make_room(image.size, max_pixels)
    return image


def _prepare_container(
    body: memoryview, max_pixels: int
) -> tuple[tuple[str, ...], int]:
    """Check an AVIF or HEIC file, and return the formats to try.

    The second value is the number of an AVIF's decoded pixels, else 0.
    """
    from pocketserve.formats.avif import is_avif  # late: tensors need none

    start = bytes(body[:12])
    if start[4:8] == b"ftyp" and is_avif(body):
        return ("AVIF",), _check_avif(body, max_pixels)
    if start[4:8] == b"ftyp" and start[8:] in HEIF_BRANDS:
        _register_heif()
        return ("HEIF",), 0
    return FORMATS, 0


def _unidentified(body: memoryview, formats: tuple[str, ...]) -> ApiError:
    """Return the error about a file that Pillow doesn't recognise."""
    if formats is not FORMATS:
        name = formats[0].replace("HEIF", "HEIC")
        return invalid_input(
            f"the {name} picture is damaged or of a kind that cannot be read; send a JPEG or PNG"
        )
    from pocketserve.tasks.encoded import base64_hint  # late: only errors need them
    from pocketserve.tasks.vision.picture_headers import picture_kind

    kind = picture_kind(body)
    if kind:
        return invalid_input(f"{kind} is not read; send a JPEG or PNG")
    return invalid_input(
        f"this is not a picture that the server can read ({', '.join(FORMATS)}, AVIF)"
        f"{base64_hint(body)}"
    )


def _check_scans(body: memoryview, pixels: int, max_pixels: int) -> None:
    """Reject a JPEG with too many scans for its size.

    The decoder processes all pixels again for each scan, and a scan needs 14 bytes.
    """
    from pocketserve.tasks.vision.picture_headers import MAX_SCANS, scans_of

    in_proportion = FULL_SIZE_SCANS * max(max_pixels, EXACT_PIXELS) // max(1, pixels)
    maximum = min(MAX_SCANS, in_proportion)
    if scans_of(bytes(body)) > maximum:
        raise invalid_input(
            f"the JPEG file has more scans than the {maximum} that its size allows; save it anew"
        )


def _check_unstoppable(size: tuple[int, int], kind: str) -> None:
    """Reject a picture whose uninterruptible decoding would take too long."""
    width, height = size
    if width * height > UNSTOPPABLE_PIXELS:
        text = f"the {kind} has {width}x{height} pixels; the limit is {UNSTOPPABLE_PIXELS}: send a JPEG"
        raise invalid_input(text)


def _check_avif(body: memoryview, max_pixels: int) -> int:
    """Reserve memory for an AVIF.

    Return the pixels that its decoder allocates.
    """
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


def _needed_size(placement: Placement) -> tuple[int, int]:
    """Return the smallest size of the whole upright picture that loses nothing."""
    area = placement.source
    target = placement.target
    width = int(placement.picture[0] * target.width / area.width)
    height = int(placement.picture[1] * target.height / area.height)
    return max(1, width), max(1, height)


def _decode(
    source: _OpenedPicture, mode: str, placement: Placement, max_pixels: int
) -> Image:
    """Reserve memory, decode the picture and rotate it upright.

    A large JPEG's decoder scales it down cheaply, but not below the size needed.
    """
    image = source.image
    limit = min(EXACT_PIXELS, max_pixels)
    if image.format in SCALABLE and image.width * image.height > limit:
        width, height = _needed_size(placement)
        size = (width, height)
        if source.orientation in strips.SIDEWAYS:
            size = (height, width)
        image.draft(mode, size)
    _make_room(image.size, max_pixels)
    image.load()
    return strips.upright(image, mode, source.orientation)


def _make_room(size: tuple[int, int], max_pixels: int) -> None:
    """Reserve a picture's pixels from the memory that all requests share."""
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
    """A picture file in memory, with a checkpoint at each read."""

    def __init__(self, file: memoryview) -> None:
        self._file = file
        self._check = current_check()
        self._at = 0
        self._left = MAX_READS
        if bytes(file[:2]) == b"BM":  # a BMP's runs are read byte by byte
            self._left = len(file) + 2

    def read(self, size: int | None = -1) -> bytes:
        self._check()
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
    """A file in memory, with a checkpoint at each write of an encoder."""

    def write(self, data: Buffer, /) -> int:
        checkpoint()
        return super().write(data)


def _register_heif() -> None:
    """Make Pillow open HEIC; idempotent."""
    try:
        import pillow_heif
    except ImportError:
        raise invalid_input(
            "HEIC pictures need pillow-heif: pip install 'pocketserve[heic]'; or send a JPEG"
        ) from None
    version: str = pillow_heif.libheif_version()
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if tuple(numbers[:2]) < LIBHEIF:
        raise invalid_input(
            f"HEIC pictures need libheif {'.'.join(map(str, LIBHEIF))} or newer, and this is {version:.20}: "
            "pip install --upgrade pillow-heif; or send a JPEG"
        )
    pillow_heif.register_heif_opener()


def _region(hints: Hints, picture: tuple[int, int]) -> Area | None:
    """Return the parameter ``region``, clipped to the picture."""
    text = hints.values.get("region")
    if text is None:
        return None
    try:
        left, top, width, height = (float(part) for part in text.split(","))
        right = min(left + width, picture[0])
        bottom = min(top + height, picture[1])
    except ValueError:
        raise invalid_parameter(
            "parameter region must be x,y,width,height in pixels, such as 10,20,100,80"
        ) from None
    left = max(left, 0.0)
    top = max(top, 0.0)
    width = right - left
    height = bottom - top
    if not (width >= 1 and height >= 1):  # also true for NaN
        raise invalid_parameter(
            f"region lies outside of the picture of {picture[0]}x{picture[1]} pixels"
        )
    return Area(left, top, width, height)


def _resize(
    image: Image, placement: Placement, options: ImageOptions, region: Area | None
) -> Image:
    if region is None and image.size == placement.picture and options.sizing:
        scaled = options.sizing.scaled(placement.picture)
        fits = scaled[0] * scaled[1] <= WHOLE_PIXELS
        if options.sizing.crop is not None and fits:
            return _crop_scaled(image, placement, options, scaled)
    if options.sizing is not None and options.sizing.cut is not None:
        region = placement.source
    scale = _decoded_scale(image, placement)
    origin = (0, 0)
    if region is not None:
        # Resampling must not mix in pixels from outside the region.
        cut = _covering(region, *scale, image.size)
        image = strips.crop(image, cut)
        origin = cut[:2]
    box = _source_box(placement.source, scale, origin)
    box = _clipped(box, image.size)
    size = (int(placement.target.width), int(placement.target.height))
    if image.size != size or box != (0, 0, *image.size):
        image = strips.resize(image, size, options.resample or "bilinear", box)
    return _fill_around(image, placement, options)


def _decoded_scale(image: Image, placement: Placement) -> tuple[float, float]:
    """Return the scale of the decoded picture.

    The decoder may have reduced it.
    """
    width, height = placement.picture
    return image.width / width, image.height / height


def _source_box(
    source: Area, scale: tuple[float, float], origin: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Return a source's edges in pixels of the decoded picture, from an origin."""
    left = source.x * scale[0] - origin[0]
    top = source.y * scale[1] - origin[1]
    # From the moved edges: a whole picture then keeps exactly its size.
    right = left + source.width * scale[0]
    bottom = top + source.height * scale[1]
    return left, top, right, bottom


def _clipped(
    box: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Clip a box (left, top, right, bottom) to a picture."""
    left, top, right, bottom = box
    width, height = size
    return max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)


def _covering(
    region: Area, x: float, y: float, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return the box of whole pixels that covers a scaled region."""
    right = math.ceil((region.x + region.width) * x)
    bottom = math.ceil((region.y + region.height) * y)
    return (
        math.floor(region.x * x),
        math.floor(region.y * y),
        min(right, size[0]),
        min(bottom, size[1]),
    )


def _crop_scaled(
    image: Image, placement: Placement, options: ImageOptions, scaled: tuple[int, int]
) -> Image:
    """Scale the whole picture, then crop it.

    Scaling only the needed part would round some pixels differently than the model's own
    processor does.
    """
    source = placement.source
    target = placement.target
    left = round(source.x * scaled[0] / image.width)
    top = round(source.y * scaled[1] / image.height)
    box = (left, top, left + int(target.width), top + int(target.height))
    if image.size != scaled:
        whole = (0, 0, *image.size)
        image = strips.resize(image, scaled, options.resample or "bilinear", whole)
    return _fill_around(strips.crop(image, box), placement, options)


def _fill_around(image: Image, placement: Placement, options: ImageOptions) -> Image:
    """Place the scaled picture in the input; fill the rest with ``fill``."""
    import PIL.Image

    if image.size == placement.input:
        return image
    fill = tuple(round(value) for value in options.fill or (0.0,))
    colour: Any = fill
    if image.mode == "L":
        colour = fill[0]
    elif len(fill) != 3:
        colour = fill[:1] * 3
    boxed = PIL.Image.new(image.mode, placement.input, colour)
    boxed.paste(image, (int(placement.target.x), int(placement.target.y)))
    return boxed
