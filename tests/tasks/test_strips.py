"""Picture operations run in strips, check for cancellation, and equal Pillow's results."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from odd_pictures import rotated, saved
from pocketserve.tasks.audio.resampling import resample
from pocketserve.tasks.audio.wav import BLOCK_FRAMES, PCM, SampleFormat, decode
from pocketserve.tasks.base import Hints
from pocketserve.tasks.cancellation import cancellation_scope
from pocketserve.tasks.vision import strips
from pocketserve.tasks.vision.frames import read_frame
from pocketserve.tasks.vision.pictures import (
    UNSTOPPABLE_PIXELS,
    PictureShape,
    read_picture,
    read_whole,
)
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
SIZES = [
    ((90, 70), (31, 12)),
    ((90, 70), (200, 33)),
    ((7, 160), (40, 41)),
    ((160, 7), (9, 30)),
    ((60, 60), (61, 60)),
]


def noise(size: tuple[int, int], mode: str) -> Any:
    """Return a picture with distinct rows and columns."""
    pixels = np.random.default_rng(3).integers(
        0,
        256,
        (
            size[1],
            size[0],
            4,
        ),
        np.uint8,
    )
    return Image.fromarray(pixels).convert(mode)


class Asked:
    """Counts the checks of a preparation and cancels at one of them."""

    def __init__(self, until: int = -1) -> None:
        self.count = 0
        self._until = until

    def __call__(self) -> None:
        self.count += 1
        if self.count == self._until:
            raise ApiError(ErrorCode.CANCELLED, "given up")


@pytest.mark.parametrize("filter_name", FILTERS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(("size", "wanted"), SIZES)
@pytest.mark.parametrize(
    "part",
    [
        (0.0, 0.0, 1.0, 1.0),
        (0.13, 0.21, 0.87, 0.7),
    ],
)
def test_scaling_in_strips_equals_pillow(
    size: tuple[int, int],
    wanted: tuple[int, int],
    part: tuple[float, ...],
    mode: str,
    filter_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = noise(size, mode)
    box = tuple(share * side for share, side in zip(part, size * 2, strict=True))
    whole = image.resize(wanted, Image.Resampling[filter_name.upper()], box)
    monkeypatch.setattr(strips, "STRIP_PIXELS", 500)
    assert np.array_equal(
        np.asarray(strips.resize(image, wanted, filter_name, box)), np.asarray(whole)
    )


@pytest.mark.parametrize("orientation", range(2, 9))
def test_turning_in_strips_equals_pillow(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noise((23, 31), "RGB")
    turned = Image.open(io.BytesIO(rotated(seen, orientation, "PNG")))
    monkeypatch.setattr(strips, "STRIP_PIXELS", 50)
    assert np.array_equal(
        np.asarray(strips.upright(turned, "RGB", orientation)), np.asarray(seen)
    )


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK"])
def test_converting_in_strips_equals_pillow(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = noise((23, 31), mode)
    whole = np.asarray(strips.upright(image, "RGB", 1))
    monkeypatch.setattr(strips, "STRIP_PIXELS", 50)
    assert np.array_equal(np.asarray(strips.upright(image, "RGB", 1)), whole)
    assert mode == "RGBA" or np.array_equal(whole, np.asarray(image.convert("RGB")))


def test_cropping_in_strips_equals_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise((40, 50), "RGB")
    box = (3, 7, 38, 49)
    monkeypatch.setattr(strips, "STRIP_PIXELS", 50)
    assert np.array_equal(
        np.asarray(strips.crop(image, box)), np.asarray(image.crop(box))
    )


@pytest.mark.parametrize("kind", ["turned", "see-through", "palette", "deep", "plain"])
def test_every_operation_checks_before_every_strip(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cancellation at any check, at most one strip is processed."""
    side = 64
    strip = 256
    image = noise((side, side), "RGB")
    file = {
        "turned": lambda: rotated(image, 6, "PNG"),
        "see-through": lambda: saved(noise((side, side), "RGBA")),
        "palette": lambda: saved(image.quantize(64), "GIF"),
        "deep": lambda: saved(
            Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
        ),
        "plain": lambda: saved(image),
    }[kind]()
    shape = PictureShape(8, 8, 3)
    monkeypatch.setattr(strips, "STRIP_PIXELS", strip)
    asked = Asked()
    with cancellation_scope(asked):
        read_picture(memoryview(file), shape, ImageOptions(), 10_000)
    steps = 2
    if kind == "plain":
        steps = 1
    assert asked.count >= steps * side * side // strip
    for until in range(1, asked.count + 1):
        with (
            cancellation_scope(Asked(until)),
            pytest.raises(ApiError, match="given up"),
        ):
            read_picture(memoryview(file), shape, ImageOptions(), 10_000)


def test_loading_a_picture_to_draw_on_checks_for_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strips, "STRIP_PIXELS", 256)
    asked = Asked()
    with cancellation_scope(asked):
        read_whole(memoryview(saved(noise((64, 64), "RGB"))), 10_000, 32)
    assert asked.count >= 64 * 64 // 256


def test_a_highly_compressed_png_is_read_in_small_blocks() -> None:
    file = saved(Image.new("RGB", (4000, 4000)))
    asked = Asked()
    with cancellation_scope(asked):
        read_picture(
            memoryview(file), PictureShape(8, 8, 3), ImageOptions(), 20_000_000
        )
    assert asked.count >= len(file) // 8192 + 16


def test_a_webp_too_large_to_cancel_is_rejected() -> None:
    """The header's size is checked before decoding."""
    file = bytearray(saved(Image.new("RGB", (8, 8)), "WEBP", lossless=True))
    side = 4097
    assert side * side > UNSTOPPABLE_PIXELS
    file[21:25] = ((side - 1) | (side - 1) << 14).to_bytes(4, "little")
    with pytest.raises(
        ApiError, match="the WebP has 4097x4097 pixels; the limit is 16777216"
    ):
        read_picture(
            memoryview(bytes(file)), PictureShape(8, 8, 3), ImageOptions(), 64_000_000
        )


@pytest.mark.parametrize("form", ["nv21", "yuv420", "rgba", "rgb", "gray"])
@pytest.mark.parametrize("halved", [False, True])
def test_frames_are_read_in_strips(
    form: str, halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 10
    height = 14
    size = width * height
    body = np.random.default_rng(4).integers(
        0,
        256,
        {
            "rgba": 4 * size,
            "rgb": 3 * size,
            "gray": size,
        }.get(form, size * 3 // 2),
        np.uint8,
    )
    hints = Hints(
        values={
            "format": form,
            "width": width,
            "height": height,
        }
    )
    asked = Asked()
    whole = np.asarray(read_frame(memoryview(body.tobytes()), hints, halved=halved))
    monkeypatch.setattr(strips, "STRIP_PIXELS", 2 * height)
    with cancellation_scope(asked):
        assert np.array_equal(
            np.asarray(read_frame(memoryview(body.tobytes()), hints, halved=halved)),
            whole,
        )
    assert asked.count >= 3


@pytest.mark.parametrize("height", [1, 3])
def test_a_frame_of_an_odd_number_of_rows(height: int) -> None:
    body = np.arange(5 * height, dtype=np.uint8)
    hints = Hints(
        values={
            "format": "gray",
            "width": 5,
            "height": height,
        }
    )
    assert np.array_equal(
        read_frame(memoryview(body.tobytes()), hints), body.reshape(height, 5)
    )


def test_sounds_and_long_filters_run_in_blocks() -> None:
    asked = Asked()
    with cancellation_scope(asked):
        decode(
            memoryview(bytes(4 * BLOCK_FRAMES)),
            SampleFormat(PCM, 1, 48_000, 1),
            10**6,
            mono=True,
        )
    assert asked.count == 4
    with cancellation_scope(asked):
        resample(np.zeros((1 << 18, 1), np.float32), 768_000, 1000)
    assert asked.count >= 4 + 2
