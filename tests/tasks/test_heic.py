"""HEIC, as phones take it: really encoded and decoded where pillow-heif is installed, else one clear sentence."""

from __future__ import annotations

import importlib
import struct
import sys
from typing import Any

import numpy as np
import pytest

from odd_pictures import saved
from pocketserve.tasks.vision import pictures
from pocketserve.tasks.vision.pictures import PictureShape, read_picture, read_whole
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

RED, BLUE = (255, 0, 0), (0, 0, 255)
START = b"\0\0\0\x18ftypheic" + bytes(100)


def read(
    body: bytes, width: int = 8, height: int = 4, max_pixels: int = 1_000_000
) -> Array:
    """The pixels that a model would get."""
    return read_picture(
        memoryview(body), PictureShape(width, height, 3), ImageOptions(), max_pixels
    )[0]


def test_without_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install; the bytes of the file's start suffice to know."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(
        ApiError,
        match=r"HEIC pictures need pillow-heif: pip install 'pocketserve\[heic\]'",
    ) as caught:
        read(START)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_with_an_older_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A libheif that decodes more than a file announces is not let near files of strangers."""
    old: Any = type(sys)("pillow_heif")
    old.libheif_version = lambda: "1.21.2"
    monkeypatch.setitem(sys.modules, "pillow_heif", old)
    with pytest.raises(
        ApiError,
        match=r"libheif 1\.23 or newer, and this is 1\.21\.2: pip install --upgrade",
    ):
        read(START)


@pytest.fixture
def heif() -> Any:
    """The decoder, which is an encoder too."""
    found = importlib.import_module("pillow_heif")
    found.register_heif_opener()
    return found


def heic(picture: Any, orientation: int | None = None, **options: Any) -> bytes:
    """A HEIC file; with an orientation, as a phone writes it: the pixels of the sensor, and how to turn them."""
    picture = picture.copy()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.info["exif"] = exif.tobytes()
    return saved(picture, "HEIF", quality=90, **options)


def two_halves(width: int = 160, height: int = 80) -> Any:
    """Red to the left, blue to the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


@pytest.mark.heic
def test_pixels(heif: Any) -> None:
    """A real file arrives as the picture that it was made of, to the codec's own accuracy."""
    pixels = read(heic(two_halves()))
    assert np.abs(pixels[2, [1, 6]].astype(int) - (RED, BLUE)).max() <= 12


@pytest.mark.heic
def test_transparency(heif: Any) -> None:
    """What is transparent shows white."""
    picture = two_halves().convert("RGBA")
    picture.putalpha(Image.new("L", picture.size, 0))
    assert read(heic(picture)).min() >= 250


@pytest.mark.heic
def test_grey(heif: Any) -> None:
    """Grey files become three equal channels."""
    pixels = read(heic(Image.new("L", (64, 64), 77)))
    assert np.abs(pixels.astype(int) - 77).max() <= 3


TURNS = {
    1: (0, 0),
    2: (0, 3),
    3: (1, 3),
    4: (1, 0),
    5: (0, 0),
    6: (0, 1),
    7: (3, 1),
    8: (3, 0),
}


@pytest.mark.heic
@pytest.mark.parametrize("orientation", TURNS)
def test_turned_once(heif: Any, orientation: int) -> None:
    """Phones write the turn twice, for HEIF and as EXIF; the picture is turned once."""
    stored = Image.new("RGB", (256, 128), BLUE)
    stored.paste(RED, (0, 0, 64, 64))  # the stored top left corner
    pixels = read(heic(stored, orientation), *((2, 4) if orientation >= 5 else (4, 2)))
    is_red = pixels[:, :, 0].astype(int) > pixels[:, :, 2]
    assert [tuple(place) for place in np.argwhere(is_red)] == [TURNS[orientation]]


@pytest.mark.heic
def test_to_draw_on(heif: Any) -> None:
    """``annotate`` gets the upright picture, too."""
    picture, size = read_whole(memoryview(heic(two_halves(), 6)), 1_000_000, 1600)
    assert picture.size == size == (80, 160)


@pytest.mark.heic
def test_the_announced_size_counts(heif: Any) -> None:
    """A large picture is refused by its header; one whose pixels are more than its header says, by libheif."""
    body = heic(Image.new("RGB", (1200, 900), RED))
    with pytest.raises(ApiError, match="1200x900 pixels; the limit is 1000000"):
        read(body)
    assert read(body, max_pixels=1200 * 900).shape == (4, 8, 3)
    start = body.index(b"ispe") + 8
    lie = body[:start] + struct.pack(">II", 64, 64) + body[start + 8 :]
    with pytest.raises(ApiError, match="cannot be decoded") as caught:
        read(lie, max_pixels=2_000_000)
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.heic
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_cut_files(heif: Any, part: float) -> None:
    """One sentence for a file that ends too early."""
    body = heic(Image.effect_noise((128, 128), 60).convert("RGB"))
    with pytest.raises(ApiError) as caught:
        read(body[: int(len(body) * part)])
    assert (
        caught.value.code is ErrorCode.INVALID_INPUT and len(caught.value.message) < 300
    )


@pytest.mark.heic
def test_other_formats_stay(heif: Any) -> None:
    """Pillow's other decoders stay closed once HEIC is open."""
    read(heic(two_halves()))
    with pytest.raises(ApiError, match="TIFF is not read"):
        read(saved(two_halves(), "TIFF"))
    assert pictures.FORMATS == ("JPEG", "PNG", "WEBP", "BMP", "GIF")
