"""Pictures of every format and colour mode become pixels, or get one error sentence."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odd_pictures import CLAIMED, bombs, gif_of, png, saved
from pocketserve.tasks.vision import strips
from pocketserve.tasks.vision.picture_headers import size_to_hold
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
)
MAX_PIXELS = 1_000_000
RED = (255, 0, 0)
BLUE = (0, 0, 255)
WHITE = (255, 255, 255)
DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits" / "samples"


def read(
    body: bytes,
    width: int = 2,
    height: int = 2,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    **options: Any,
) -> Array:
    """Return the pixels that a model would get."""
    shape = PictureShape(width, height, channels)
    return read_picture(memoryview(body), shape, ImageOptions(**options), max_pixels)[0]


def two_halves(mode: str = "RGB", width: int = 40, height: int = 20) -> Any:
    """Return a picture that is red at the left and blue at the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image.convert(mode)


def near(pixel: Array, colour: tuple[int, ...], tolerance: int = 6) -> bool:
    """Return whether a pixel is about that colour.

    Lossy formats and conversions round.
    """
    return bool(np.abs(pixel.astype(int) - np.array(colour)).max() <= tolerance)


FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("RGB", {"quality": 95}),
    "JPEG CMYK": ("CMYK", {"quality": 95}),
    "JPEG progressive": ("RGB", {"quality": 95, "progressive": True}),
    "PNG": ("RGB", {}),
    "PNG palette": ("P", {}),
    "PNG RGBA": ("RGBA", {}),
    "WEBP": ("RGB", {"lossless": True}),
    "BMP": ("RGB", {}),
    "GIF": ("P", {}),
}


@pytest.mark.parametrize("case", FORMATS)
def test_picture_formats(case: str) -> None:
    """Each format becomes RGB of the target size in its usual colour modes."""
    mode, options = FORMATS[case]
    pixels = read(
        saved(two_halves(mode), case.split()[0], **options), width=8, height=4
    )
    assert (pixels.shape, pixels.dtype) == ((4, 8, 3), np.uint8)
    assert near(pixels[2, 1], RED)
    assert near(pixels[2, 6], BLUE)


@pytest.mark.parametrize("case", ["JPEG", "PNG", "BMP"])
def test_a_file_is_not_copied(case: str) -> None:
    """It is read piece by piece from the receive buffer.

    GIF and WebP read larger pieces.
    """
    mode, options = FORMATS[case]
    file = saved(two_halves(mode), case, **options) + bytes(1 << 22)
    read(file)  # excludes the imports of the first picture
    tracemalloc.start()
    try:
        read(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("TIFF", "TIFF is not"),
        ("PPM", "PPM is not"),
        ("ICO", "ICO is not"),
        ("TGA", "JPEG, PNG, WEBP, BMP, GIF, AVIF"),
    ],
)
def test_other_formats_are_rejected(kind: str, message: str) -> None:
    """Only formats of phones and browsers are enabled, since each decoder is a risk."""
    with pytest.raises(ApiError, match=message) as caught:
        read(saved(two_halves(width=32, height=32), kind))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_jpeg_is_scaled_by_its_decoder() -> None:
    """A large JPEG is decoded at a fraction of its size.

    Its full size may exceed the limit.
    """
    body = saved(two_halves(width=1600, height=800), "JPEG", quality=95)
    pixels = read(body, width=100, height=50, max_pixels=100_000)
    assert near(pixels[25, 10], RED)
    assert near(pixels[25, 90], BLUE)
    with pytest.raises(ApiError, match="1600x800"):
        read(body, width=1600, height=800, max_pixels=100_000)


def test_a_progressive_jpeg_counts_with_its_full_size() -> None:
    """Its decoder needs the whole picture, so scaling saves no memory."""
    body = saved(two_halves(width=1600, height=800), "JPEG", progressive=True)
    with pytest.raises(ApiError, match="1600x800"):
        read(body, width=100, height=50, max_pixels=1_000_000)
    assert near(read(body, width=100, height=50, max_pixels=1_280_000)[25, 10], RED)


DEEP_OR_TRANSPARENT = [
    "RGBA",
    "LA",
    "I;16",
    "P with a transparent colour",
    "RGB with a transparent colour",
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("case", DEEP_OR_TRANSPARENT)
def test_conversion_in_strips_changes_no_pixel(
    case: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a shorter last strip."""
    noise = np.random.default_rng(1).integers(0, 256, (11, 5, 4), np.uint8)
    mode = case.split()[0]
    if mode == "I;16":
        image = Image.fromarray(noise[..., :2].copy().view(np.uint16)[..., 0])
    else:
        image = (
            Image.fromarray(noise).convert("RGB" if mode == "P" else mode).convert(mode)
        )
    body = (
        saved(image, transparency=3 if mode == "P" else tuple(noise[0, 0, :3].tolist()))
        if " " in case
        else saved(image)
    )
    whole = read(body, 5, 11, channels)
    monkeypatch.setattr(strips, "STRIP_PIXELS", 17)
    assert np.array_equal(read(body, 5, 11, channels), whole)
    assert whole.std() > 0


def in_scans(width: int, height: int) -> bytes:
    """Return the start of a large baseline JPEG with its components in separate scans."""
    body = bytearray(saved(Image.new("RGB", (64, 64)), "JPEG", subsampling=0))
    frame = body.index(b"\xff\xc0")
    body[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    scan = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"
    return bytes(body[: body.index(b"\xff\xda")]) + scan + bytes(200) + b"\xff\xd9"


@pytest.mark.parametrize(
    "noise",
    [b"", b"\0junk", b"\xff\0\xff\xd0", b"\xff\xff\xff", b"\xff\xfe\0\x04\xff\xda"],
)
def test_a_jpeg_in_several_scans_counts_with_its_full_size(noise: bytes) -> None:
    """Its decoder stores all coefficients too, whatever lies between the segments."""
    body = in_scans(1600, 800)
    body = body[:2] + b"\xff\xfe\0\x02" + noise + body[2:]
    with pytest.raises(ApiError, match="1600x800 pixels; the limit"):
        read(body, width=100, height=50)
    assert size_to_hold(in_scans(16, 8)) == (16, 8)
    assert size_to_hold(saved(two_halves(), "JPEG")) is None


BEFORE: dict[str, bytes] = {
    "nothing": b"",
    "a comment": b"!\xfe\x02ab\x01,\0",
    "an empty comment": b"!\xfe\0",
    "a loop": b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0",
    "a loop cut short": b"!\xff\x0bNETSCAPE2.0\0\x01a\0",
    "an extension whose first block is empty": b"!\x01\0\x02,,\0",
    "stray bytes": b"\0ab",
}


@pytest.mark.parametrize("case", BEFORE)
def test_a_gif_is_measured_before_it_is_opened(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the file would already allocate for a frame larger than the screen."""
    small = gif_of((8, 8), (9, 30), BEFORE[case])
    assert size_to_hold(small) == Image.open(io.BytesIO(small)).size == (9, 30)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    for screen, frame in (((8, 8), (2000, 1000)), ((2000, 1000), (8, 8))):
        with pytest.raises(ApiError, match="2000x1000 pixels; the limit"):
            read(gif_of(screen, frame, BEFORE[case]))


@pytest.mark.parametrize(
    "body",
    [
        gif_of((8, 8), (8, 8), bytes(1 << 17)),
        b"\xff\xd8" + b"\xff\xfe\0\x02" * (1 << 17),
    ],
)
def test_endless_gif_blocks_are_rejected(body: bytes) -> None:
    """The search for the first picture is bounded."""
    with pytest.raises(ApiError, match="in front of the picture"):
        read(body)


@SETTINGS
@given(
    st.sampled_from(
        [
            b"GIF89a",
            b"\xff\xd8\xff",
            *(b"RIFF....WEBP" + kind for kind in (b"VP8 ", b"VP8L", b"VP8X")),
        ]
    ),
    st.binary(max_size=200),
)
def test_random_bytes_do_not_break_header_parsing(start: bytes, rest: bytes) -> None:
    assert size_to_hold(start + rest) is None or len(rest) > 6


def test_several_jpegs_in_one_file() -> None:
    """Many phones write MPO: a JPEG followed by more.

    The first is used, and scaled by its decoder.
    """
    first = two_halves(width=1600, height=800)
    second = Image.new("RGB", (1600, 800), WHITE)
    body = saved(first, "MPO", save_all=True, append_images=[second], quality=95)
    assert near(read(body, width=100, height=50, max_pixels=100_000)[25, 10], RED)


def test_the_first_frame_of_a_gif_is_used() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    assert near(
        read(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0],
        RED,
    )


ORIENTATIONS = {
    1: (0, 0),
    2: (0, 3),
    3: (1, 3),
    4: (1, 0),
    5: (0, 0),
    6: (0, 1),
    7: (3, 1),
    8: (3, 0),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientation(kind: str, orientation: int) -> None:
    """A sideways photo is turned upright before it is resized."""
    stored = Image.new("RGB", (64, 32), BLUE)
    stored.paste(RED, (0, 0, 16, 16))  # the stored top left corner
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = orientation >= 5
    options = (
        {"lossless": True}
        if kind == "WEBP"
        else {"quality": 95}
        if kind == "JPEG"
        else {}
    )
    pixels = read(
        saved(stored, kind, exif=exif, **options), *((2, 4) if turned else (4, 2))
    )
    is_red = pixels[:, :, 0].astype(int) > pixels[:, :, 2]
    assert [tuple(place) for place in np.argwhere(is_red)] == [
        ORIENTATIONS[orientation]
    ]


def test_alpha_is_blended_with_white() -> None:
    """Transparent pixels become white, half transparent ones half white."""
    image = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 255, 255))
    image.putpixel((0, 1), (255, 0, 0, 128))
    pixels = read(saved(image))
    assert pixels[0].tolist() == [list(WHITE), list(BLUE)]
    assert near(pixels[1, 0], (255, 127, 127))
    assert read(saved(image), channels=1)[0].tolist() == [[255], [29]]


def test_grey_alpha_is_blended_with_white() -> None:
    image = Image.new("LA", (2, 2), (0, 0))
    image.putpixel((1, 1), (10, 255))
    assert read(saved(image), channels=1).reshape(-1).tolist() == [255, 255, 255, 10]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry(kind: str) -> None:
    """A palette's transparent colour becomes white."""
    image = Image.new("P", (2, 2), 0)
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 1), 1)
    pixels = read(saved(image, kind, transparency=0))
    expected = zip(pixels.reshape(-1, 3), [WHITE, WHITE, WHITE, BLUE], strict=True)
    assert all(near(pixel, colour) for pixel, colour in expected)


@pytest.mark.parametrize(
    ("values", "grey"),
    [
        ([0, 257, 32896, 65535], [0, 1, 128, 255]),
        ([0, 100, 200, 255], [0, 0, 1, 1]),
        ([0] * 4, [0] * 4),
    ],
    ids=["whole range", "dark", "black"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_16_bit_grey(values: list[int], grey: list[int], channels: int) -> None:
    """16-bit greys are scaled instead of truncated, and dark pictures stay dark."""
    body = saved(Image.fromarray(np.array(values, np.uint16).reshape(2, 2)))
    assert read(body, channels=channels)[:, :, 0].reshape(-1).tolist() == grey


@pytest.mark.parametrize("channels", [1, 3])
def test_one_bit(channels: int) -> None:
    """Black and white become 0 and 255."""
    image = Image.new("1", (2, 2), 0)
    image.putpixel((1, 0), 1)
    assert read(saved(image), channels=channels)[:, :, -1].tolist() == [
        [0, 255],
        [0, 0],
    ]


def test_grey_for_a_colour_model_and_back() -> None:
    """Grey becomes three equal channels, and colour becomes its luminance."""
    pixels = read(saved(Image.new("L", (3, 3), 77)))
    assert (pixels == 77).all()
    assert pixels.shape == (2, 2, 3)
    assert (
        read(saved(Image.new("RGB", (3, 3), RED)), channels=1).reshape(-1).tolist()
        == [76] * 4
    )


def columns(how: str, image: Any) -> list[str]:
    """Return the colours along the middle row of a square of 8."""
    middle = read(saved(image), width=8, height=8, resize=how)[4]
    names = {
        RED: "r",
        BLUE: "b",
        (0, 0, 0): ".",
    }
    return [
        next((name for colour, name in names.items() if near(pixel, colour)), "?")
        for pixel in middle
    ]


def test_ways_of_resizing() -> None:
    """The picture is wide.

    Stretch keeps all, crop keeps the middle, and letterbox adds black bars.
    """
    wide = Image.new("RGB", (160, 80), BLUE)
    wide.paste(RED, (0, 0, 40, 80))  # the quarter that crop drops
    assert columns("stretch", wide)[0] == "r"
    assert columns("stretch", wide)[3:] == ["b"] * 5
    assert columns("crop", wide)[1:] == ["b"] * 7
    boxed = read(saved(wide), width=8, height=8, resize="letterbox")
    assert [bool((row == 0).all()) for row in boxed] == [
        True,
        True,
        False,
        False,
        False,
        False,
        True,
        True,
    ]
    assert near(boxed[4, 0], RED)


@pytest.mark.parametrize("how", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize(
    "size",
    [
        (1, 1),
        (1, 300),
        (300, 1),
        (5, 7),
    ],
)
def test_extreme_proportions_fill_the_target_size(
    how: str, size: tuple[int, int]
) -> None:
    assert read(
        saved(Image.new("RGB", size, RED)), width=5, height=7, resize=how
    ).shape == (7, 5, 3)


def test_a_picture_of_the_target_size_is_unchanged() -> None:
    exact = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert (read(saved(Image.fromarray(exact)), width=4, height=4) == exact).all()


@pytest.mark.parametrize(
    ("when", "ground", "ink"),
    [
        ("never", 200, 0),
        ("always", 200, 0),
        ("always", 20, 255),
        ("auto", 200, 0),
        ("auto", 20, 255),
        ("auto", 128, 0),
    ],
)
def test_inverting(when: str, ground: int, ink: int) -> None:
    """Dark on light becomes light on dark.

    This happens always, or if the border is light.
    """
    image = Image.new("L", (6, 6), ground)
    image.paste(ink, (2, 2, 4, 4))
    pixels = read(
        saved(image),
        width=6,
        height=6,
        channels=1,
        invert=when,
    )
    turned = when == "always" or (when == "auto" and ground >= 128)
    assert (pixels[0, 0, 0], pixels[2, 2, 0]) == (
        (255 - ground, 255 - ink) if turned else (ground, ink)
    )


# Invalid pictures


@pytest.mark.parametrize(
    "size",
    [
        (30_000, 30_000),
        (2**31 - 1, 2**31 - 1),
        (1_000_001, 1),
    ],
)
def test_huge_pictures_are_rejected_before_decoding(size: tuple[int, int]) -> None:
    """The announced size is checked before decoding.

    These files contain no pixels.
    """
    with pytest.raises(ApiError, match="limit is 1000000") as caught:
        read(png(*size))
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.parametrize("case", bombs())
def test_bombs_of_every_format_are_rejected(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes announce a quarter of a gigapixel."""
    if case.startswith(("GIF", "WEBP", "JPEG")):
        monkeypatch.setattr(
            Image, "open", lambda *_, **__: pytest.fail("opened, which allocates")
        )
    body = bombs()[case]
    assert len(body) < 2000
    with pytest.raises(
        ApiError, match=f"{CLAIMED}x{CLAIMED} pixels; the limit is 64000000"
    ) as caught:
        read(body, max_pixels=64_000_000)
    assert caught.value.code is ErrorCode.INVALID_INPUT


MEASURE = """
import sys
sys.path[:0] = {paths!r}
import PIL.Image
from odd_pictures import bombs
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve_wire import ApiError

def most():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmPeak"))

files = bombs()
PIL.Image.init()
before = most()
for body in files.values():
    try:
        read_picture(memoryview(body), PictureShape(64, 64, 3), ImageOptions(), 64_000_000)
    except ApiError:
        continue
    raise SystemExit("a bomb was decoded")
print(most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bombs_need_no_memory() -> None:
    """The process never reserves the announced size, which is at least 245 MiB."""
    code = MEASURE.format(paths=[str(Path(__file__).resolve().parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024  # KiB


@pytest.mark.parametrize(
    "size",
    [
        (1, 1),
        (37, 1000),
        (1000, 37),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lossless": True},
        {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0"},
        {"save_all": True},
    ],
    ids=str,
)
def test_the_canvas_of_a_webp(size: tuple[int, int], options: dict[str, Any]) -> None:
    """The header's size is the size that Pillow would allocate."""
    if "save_all" in options:
        options = {**options, "append_images": [Image.new("RGB", size, WHITE)]}
    body = saved(Image.new("RGB", size, RED), "WEBP", **options)
    assert size_to_hold(body) == Image.open(io.BytesIO(body)).size == size
    assert [size_to_hold(body[:length]) for length in (12, 16, 29)] == [None] * 3


def test_the_limit_itself_is_allowed() -> None:
    """The limit's number of pixels is decoded, one more is rejected."""
    body = png(8, 2, b"\0\xff\0\0")
    assert read(body, width=8, height=2, max_pixels=16)[0, 0].tolist() == list(WHITE)
    with pytest.raises(ApiError, match="8x2 pixels"):
        read(body, max_pixels=15)


WHOLE = saved(two_halves(width=64, height=64))
NO_PICTURES = {
    "nothing": b"",
    "zeros": bytes(1000),
    "text": b"this is not a picture",
    "JSON": b'{"inputs": []}',
    "PDF": b"%PDF-1.7\n",
    "PNG signature": WHOLE[:8],
    "PNG header": WHOLE[:33],
    "PNG cut": WHOLE[: len(WHOLE) // 2],
    "PNG without pixels": png(8, 8),
    "PNG of no size": png(0, 0),
    "JPEG cut": saved(two_halves(width=64, height=64), "JPEG")[:400],
    "JPEG start": b"\xff\xd8\xff\xe0",
    "GIF cut": saved(two_halves("P"), "GIF")[:30],
    "WEBP cut": saved(two_halves(), "WEBP")[:40],
    "BMP cut": saved(two_halves(), "BMP")[:60],
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
}


@pytest.mark.parametrize("case", NO_PICTURES)
def test_invalid_pictures_are_rejected(case: str) -> None:
    """Damaged and unknown files are a client error of one sentence."""
    with pytest.raises(ApiError) as caught:
        read(NO_PICTURES[case])
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert len(caught.value.message) < 300


@SETTINGS
@given(data=st.data())
def test_damaged_pictures_do_no_harm(data: st.DataObject) -> None:
    """A changed file is decoded or rejected, without a crash."""
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP"]))
    body = bytearray(saved(two_halves(), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        shape = read(bytes(body)).shape
    except ApiError as error:
        shape = (2, 2, 3) if error.code is ErrorCode.INVALID_INPUT else ()
    assert shape == (2, 2, 3)


def test_the_samples_of_the_digits_model_are_inverted() -> None:
    """The model's training data was light on dark."""
    for path in sorted(DIGITS.glob("*.png")):
        pixels = read(path.read_bytes(), 28, 28, 1, invert="auto")
        assert pixels.shape == (28, 28, 1)
        assert pixels[0].mean() < 128 < pixels.max()
