"""HEIC pictures: decoded by pillow-heif, or rejected with one clear sentence."""

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

RED = (255, 0, 0)
BLUE = (0, 0, 255)
START = b"\0\0\0\x18ftypheic" + bytes(100)


def read(
    body: bytes, width: int = 8, height: int = 4, max_pixels: int = 1_000_000
) -> Array:
    """Return the pixels that a model would get."""
    return read_picture(
        memoryview(body), PictureShape(width, height, 3), ImageOptions(), max_pixels
    )[0]


def test_without_the_decoder_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file's first bytes suffice, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(
        ApiError,
        match=r"HEIC pictures need pillow-heif: pip install 'pocketserve\[heic\]'",
    ) as caught:
        read(START)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_an_older_decoder_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older libheif decodes more pixels than a file announces, so it is not used."""
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
    """Return the decoder, which also encodes."""
    found = importlib.import_module("pillow_heif")
    found.register_heif_opener()
    return found


def heic(picture: Any, orientation: int | None = None, **options: Any) -> bytes:
    """Return a HEIC file.

    With an orientation, store unturned pixels as a phone does.
    """
    picture = picture.copy()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.info["exif"] = exif.tobytes()
    return saved(picture, "HEIF", quality=90, **options)


def two_halves(width: int = 160, height: int = 80) -> Any:
    """Return a picture that is red at the left and blue at the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


@pytest.mark.heic
def test_pixels_are_decoded(heif: Any) -> None:
    """Pixels differ only by the codec's loss."""
    pixels = read(heic(two_halves()))
    assert np.abs(pixels[2, [1, 6]].astype(int) - (RED, BLUE)).max() <= 12


@pytest.mark.heic
def test_transparency(heif: Any) -> None:
    """Transparent pixels become white."""
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
def test_the_orientation_is_applied_once(heif: Any, orientation: int) -> None:
    """Phones write the orientation for HEIF and as EXIF.

    It is applied once.
    """
    stored = Image.new("RGB", (256, 128), BLUE)
    stored.paste(RED, (0, 0, 64, 64))  # the stored top left corner
    pixels = read(heic(stored, orientation), *((2, 4) if orientation >= 5 else (4, 2)))
    is_red = pixels[:, :, 0].astype(int) > pixels[:, :, 2]
    assert [tuple(place) for place in np.argwhere(is_red)] == [TURNS[orientation]]


@pytest.mark.heic
def test_draw_on_a_heic_picture(heif: Any) -> None:
    """``annotate`` gets the upright picture as well."""
    picture, size = read_whole(memoryview(heic(two_halves(), 6)), 1_000_000, 1600)
    assert picture.size == size == (80, 160)


@pytest.mark.heic
def test_the_announced_size_is_limited(heif: Any) -> None:
    """The header's size is checked first.

    Libheif rejects pixels beyond it.
    """
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
def test_truncated_files_are_rejected(heif: Any, part: float) -> None:
    body = heic(Image.effect_noise((128, 128), 60).convert("RGB"))
    with pytest.raises(ApiError) as caught:
        read(body[: int(len(body) * part)])
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert len(caught.value.message) < 300


@pytest.mark.heic
def test_other_formats_stay_disabled(heif: Any) -> None:
    """Pillow's other decoders stay disabled once HEIC is enabled."""
    read(heic(two_halves()))
    with pytest.raises(ApiError, match="TIFF is not read"):
        read(saved(two_halves(), "TIFF"))
    assert pictures.FORMATS == ("JPEG", "PNG", "WEBP", "BMP", "GIF")
