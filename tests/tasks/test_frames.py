"""Raw camera frames: each layout gives its picture, and wrong lengths are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.tasks.base import Hints
from pocketserve.tasks.vision import frames, strips
from pocketserve.tasks.vision.frames import frame_size, is_frame
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve_wire import ApiError, ErrorCode

pytest.importorskip("PIL.Image", reason="pictures need Pillow")

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
)
WIDTH = 8
HEIGHT = 6


def hints(form: str, width: int = WIDTH, height: int = HEIGHT, **values: Any) -> Hints:
    """Return the client's description of a frame."""
    return Hints(
        values={
            "format": form,
            "width": width,
            "height": height,
            **values,
        }
    )


def read_frame(body: memoryview, hints: Hints, *, halved: bool = False) -> Any:
    """Return the pixels of a frame, upright."""
    image = frames.read_frame(body, hints, halved=halved)
    return np.asarray(
        strips.upright(
            image, image.mode, frames.ORIENTATIONS[hints.values.get("rotation", 0)]
        )
    )


def to_rgb(y: Any, u: Any, v: Any) -> Any:
    """Return the colours of a frame with these planes."""
    return read_frame(
        memoryview(bytes(y) + bytes(u) + bytes(v)),
        hints("yuv420", y.shape[1], y.shape[0]),
    )


def planes(
    seed: int = 7, width: int = WIDTH, height: int = HEIGHT
) -> tuple[Any, Any, Any]:
    """Return random Y, U and V planes."""
    random = np.random.default_rng(seed)
    shapes = (
        (height, width),
        (height // 2, width // 2),
        (height // 2, width // 2),
    )
    y, u, v = (random.integers(0, 256, shape, np.uint8) for shape in shapes)
    return y, u, v


def padded(plane: Any, stride: int, *, last: bool = True) -> bytes:
    """Pad the rows of a plane with random bytes, optionally the last row too."""
    rows = []
    for row in plane:
        rows.append(bytes(row) + b"\xaa" * (stride - len(bytes(row))))
    if last:
        return b"".join(rows)
    return b"".join(rows[:-1]) + bytes(plane[-1])


def spread(plane: Any, step: int) -> Any:
    """Interleave a plane with other values, like Android's buffers."""
    wide = np.full((plane.shape[0], (plane.shape[1] - 1) * step + 1), 0x55, np.uint8)
    wide[:, ::step] = plane
    return wide


def reference(y: Any, u: Any, v: Any) -> Any:
    """Compute the JFIF formulas in floating point."""
    blue, red = (
        np.kron(plane.astype(float) - 128, np.ones((2, 2))) for plane in (u, v)
    )
    luma = y.astype(float)
    rgb = [
        luma + 1.402 * red,
        luma - 0.344136 * blue - 0.714136 * red,
        luma + 1.772 * blue,
    ]
    return np.clip(np.rint(np.stack(rgb, axis=-1)), 0, 255)


@pytest.mark.parametrize("seed", range(5))
def test_colours_match_the_formulas(seed: int) -> None:
    """Integer arithmetic is within one step of the formulas."""
    assert (
        np.abs(to_rgb(*planes(seed)).astype(int) - reference(*planes(seed))).max() <= 1
    )


def test_known_colours() -> None:
    """Grey stays grey, and pure red, green and blue have their JFIF values."""
    for triple, colour in {
        (128, 128, 128): (128, 128, 128),
        (255, 128, 128): (255, 255, 255),
        (76, 85, 255): (254, 0, 0),
        (150, 44, 21): (0, 255, 1),
        (29, 255, 107): (0, 0, 254),
    }.items():
        y, u, v = (
            np.full((2, 2) if index == 0 else (1, 1), value, np.uint8)
            for index, value in enumerate(triple)
        )
        assert np.abs(to_rgb(y, u, v)[0, 0].astype(int) - colour).max() <= 1


def test_nv21() -> None:
    """The luma plane, then alternating V and U, with and without padding."""
    y, u, v = planes()
    both = np.stack([v, u], axis=-1).reshape(HEIGHT // 2, WIDTH)
    wanted = to_rgb(y, u, v)
    assert (
        read_frame(memoryview(bytes(y) + bytes(both)), hints("nv21")) == wanted
    ).all()
    for last in (True, False):
        body = padded(y, 12) + padded(both, 12, last=last)
        assert (
            read_frame(memoryview(body), hints("nv21", row_stride=12)) == wanted
        ).all()
    body = padded(y, 12) + padded(both, 10)
    assert (
        read_frame(memoryview(body), hints("nv21", row_stride=12, uv_row_stride=10))
        == wanted
    ).all()


@SETTINGS
@given(
    data=st.data(),
    half=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    step=st.integers(1, 2),
    more=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    last=st.booleans(),
)
def test_yuv420(
    data: Any, half: tuple[int, int], step: int, more: tuple[int, int], last: bool
) -> None:
    """Three planes with any strides, as in Android's Image."""
    width = 2 * half[0]
    height = 2 * half[1]
    y, u, v = planes(data.draw(st.integers(0, 99)), width, height)
    used = (half[0] - 1) * step + 1
    row = width + more[0]
    uv_row = used + more[1]
    body = padded(y, row) + b"".join(
        padded(spread(plane, step), uv_row, last=last) for plane in (u, v)
    )
    said = hints(
        "yuv420", width, height, row_stride=row, uv_row_stride=uv_row, pixel_stride=step
    )
    assert (read_frame(memoryview(body), said) == to_rgb(y, u, v)).all()


def test_packed_formats() -> None:
    """rgba, rgb and gray, with and without padding.

    A camera's alpha is ignored.
    """
    random = np.random.default_rng(1)
    for form, channels in (
        ("rgba", 4),
        ("rgb", 3),
        ("gray", 1),
    ):
        pixels = random.integers(0, 256, (HEIGHT, WIDTH, channels), np.uint8)
        wanted = pixels[..., 0] if channels == 1 else pixels[..., :3]
        assert (read_frame(memoryview(pixels.tobytes()), hints(form)) == wanted).all()
        body = padded(pixels.reshape(HEIGHT, -1), 50)
        assert (
            read_frame(memoryview(body), hints(form, row_stride=50)) == wanted
        ).all()


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_rotation(rotation: int) -> None:
    """Frames rotate clockwise, Pillow counter-clockwise."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    found = read_frame(memoryview(pixels.tobytes()), hints("rgb", rotation=rotation))
    wanted = np.asarray(image.fromarray(pixels).rotate(-rotation, expand=True))
    assert (found == wanted).all()


def test_predict_a_frame() -> None:
    """It is resized like any picture, and boxes refer to the upright frame."""
    pytest.importorskip("PIL.Image")
    frame = np.zeros((20, 40, 3), np.uint8)
    frame[:, :20] = 200
    said = hints("rgb", 40, 20, rotation=90)
    pixels, placement = read_picture(
        memoryview(frame.tobytes()), PictureShape(4, 8, 3), ImageOptions(), 10**6, said
    )
    assert placement.picture == (20, 40)
    assert (pixels[:3] == 200).all()
    assert (pixels[5:] == 0).all()


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_large_frame_is_halved(rotation: int) -> None:
    """The result is within a few steps of the full frame's, with the same placement."""
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(3).integers(0, 256, (6, 8), np.uint8)
    soft = image.fromarray(noise).resize((64, 48))
    small = soft.resize((32, 24))
    y = soft.tobytes()
    u = small.tobytes()
    v = small.rotate(180).tobytes()
    body = memoryview(y + u + v)
    said = hints("yuv420", 64, 48, rotation=rotation)
    full = image.fromarray(read_frame(body, said))
    whole = np.asarray(full.resize((8, 6), image.Resampling.BILINEAR))

    shape = PictureShape(8, 6, 3)
    pixels, placement = read_picture(body, shape, ImageOptions(), 10**6, said)
    assert placement.picture == ((48, 64) if rotation % 180 else (64, 48))
    assert np.abs(pixels.astype(int) - whole).max() <= 8
    halved = read_frame(body, said, halved=True)
    assert halved.shape[0] == placement.picture[1] // 2


REFUSED: dict[str, tuple[Hints, int, ErrorCode, str]] = {
    "unknown format": (
        hints("nv12"),
        72,
        ErrorCode.INVALID_PARAMETER,
        "format must be one of",
    ),
    "no size": (
        Hints(values={"format": "rgb"}),
        72,
        ErrorCode.INVALID_PARAMETER,
        "width and height",
    ),
    "a size without format": (
        Hints(values={"width": 8}),
        72,
        ErrorCode.INVALID_PARAMETER,
        "width needs format",
    ),
    "odd width": (
        hints("nv21", 7),
        72,
        ErrorCode.INVALID_PARAMETER,
        "even width and height",
    ),
    "odd height": (
        hints("yuv420", 8, 5),
        72,
        ErrorCode.INVALID_PARAMETER,
        "even width and height",
    ),
    "one byte less": (
        hints("nv21"),
        71,
        ErrorCode.INVALID_INPUT,
        "has 72 bytes, the body has 71",
    ),
    "one byte more": (
        hints("yuv420"),
        73,
        ErrorCode.INVALID_INPUT,
        "has 72 bytes, the body has 73",
    ),
    "too little rgb": (hints("rgb"), 143, ErrorCode.INVALID_INPUT, "has 144 bytes"),
    "a short stride": (
        hints("rgb", row_stride=23),
        144,
        ErrorCode.INVALID_PARAMETER,
        "a row has 24 bytes",
    ),
    "a short colour stride": (
        hints("yuv420", uv_row_stride=3),
        72,
        ErrorCode.INVALID_PARAMETER,
        "a row has 4",
    ),
    "between two lengths": (
        hints("rgb", row_stride=30),
        176,
        ErrorCode.INVALID_INPUT,
        "has 174 or 180 bytes",
    ),
    "too many pixels": (
        hints("gray", 60_000, 60_000),
        10,
        ErrorCode.INVALID_INPUT,
        "limit is 1000000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_frames_are_rejected(case: str) -> None:
    """The error gives the right number of bytes."""
    said, length, code, part = REFUSED[case]

    def read() -> None:
        if is_frame(said):
            frame_size(said, 10**6)
            read_frame(memoryview(bytes(length)), said)

    with pytest.raises(ApiError, match=part) as caught:
        read()
    assert caught.value.code is code
