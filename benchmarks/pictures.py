"""I1: what our preprocessing of a photo adds to what Pillow needs for decoding and resizing it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.samples import Comparison
from pocketserve.tasks.vision.picture_input import PictureInput
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import TensorSpec

ROUNDS, WARM_UP = 60, 5
WIDTH, HEIGHT = 4000, 3000
SIDE = 224
GOAL = 1.3
SIDEWAYS = 6


def run() -> list[Comparison]:
    """Compare for a photo as it is and one that was taken sideways, into float and into uint8 inputs."""
    cases = [
        ("upright, to FP32", "FP32", 1),
        ("upright, to UINT8", "UINT8", 1),
        ("sideways, to FP32", "FP32", SIDEWAYS),
    ]
    return [_compare(what, datatype, orientation) for what, datatype, orientation in cases]


def _compare(what: str, datatype: str, orientation: int) -> Comparison:
    body = photo(orientation)
    options = ImageOptions(mean=(127.5,), std=(127.5,))
    picture = PictureInput(TensorSpec("image", datatype, (1, SIDE, SIDE, 3)), options, 64_000_000)
    sides: tuple[Callable[[], Any], ...] = (lambda: picture.read(memoryview(body)), lambda: _pillow_alone(body))
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + WARM_UP):
        for side, kept in zip(sides, samples, strict=True):
            began = time.perf_counter()
            side()
            if turn >= WARM_UP:
                kept.append((time.perf_counter() - began) * 1e3)
    return Comparison("I1", f"12 MP JPEG, {what}", "ms", *samples, goal=GOAL, against="Pillow alone")


def _pillow_alone(body: bytes) -> Any:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(body)) as image:
        image.draft("RGB", (SIDE, SIDE))
        upright = ImageOps.exif_transpose(image)
        return np.asarray(upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def photo(orientation: int) -> bytes:
    """A JPEG of 12 megapixels with the detail of a photo: soft shapes, edges and the sensor's noise."""
    from PIL import Image

    random = np.random.default_rng(12)
    small = Image.fromarray(random.integers(0, 256, (HEIGHT // 50, WIDTH // 50, 3), np.uint8))
    soft = np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
    noisy = soft + random.integers(-8, 9, (HEIGHT, WIDTH, 1), np.int16)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90, exif=exif)
    return file.getvalue()
