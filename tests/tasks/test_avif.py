"""AVIF pictures are bounded before decoding.

Other formats are rejected by name.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.formats.avif import AvifError, frame_sizes, is_avif
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve_wire import ApiError

image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
features = pytest.importorskip("PIL.features", reason="pictures need Pillow")

with_avif = pytest.mark.skipif(
    not features.check("avif"), reason="this Pillow has no libavif"
)
SHAPE = PictureShape(32, 24, 3)
LIMIT = 64_000_000


def picture(width: int = 64, height: int = 48, mode: str = "RGB") -> Any:
    """Return a picture with different halves."""
    colours = {
        "RGB": ((200, 40, 40), (40, 40, 200)),
        "RGBA": ((200, 40, 40, 255), (0, 0, 0, 0)),
        "L": (220, 30),
    }[mode]
    whole = image.new(mode, (width, height), colours[0])
    whole.paste(colours[1], (width // 2, 0, width, height))
    return whole


def file_of(content: Any, kind: str = "AVIF", **options: Any) -> memoryview:
    if kind == "AVIF":
        options = {
            "quality": 100,
            "subsampling": "4:4:4",
            **options,
        }
    file = io.BytesIO()
    content.save(file, kind, **options)
    return memoryview(file.getvalue())


def read(body: memoryview, max_pixels: int = LIMIT) -> np.ndarray:
    pixels, _ = read_picture(body, SHAPE, ImageOptions(), max_pixels)
    return pixels.astype(int)


@with_avif
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_an_avif_gets_the_same_answer_as_its_png(mode: str) -> None:
    whole = picture(mode=mode)
    assert np.abs(read(file_of(whole)) - read(file_of(whole, "PNG"))).max() <= 6


@with_avif
def test_a_turned_avif_is_upright() -> None:
    exif = image.Exif()
    exif[0x0112] = 6
    upright = read(file_of(picture().transpose(image.Transpose.ROTATE_270), "PNG"))
    assert np.abs(read(file_of(picture(), exif=exif)) - upright).max() <= 6


@with_avif
@pytest.mark.parametrize(
    ("size", "mode"),
    [
        ((64, 48), "RGB"),
        ((301, 200), "RGBA"),
        ((1, 1), "L"),
        ((4100, 20), "RGB"),
    ],
)
def test_sizes_come_from_the_streams(size: tuple[int, int], mode: str) -> None:
    assert set(frame_sizes(file_of(picture(*size, mode)))) == {size}


@with_avif
def test_a_large_avif_is_rejected_before_decoding() -> None:
    body = file_of(picture(640, 480))
    with pytest.raises(
        ApiError, match=r"640x480 pixels; the limit is 100000 \(max_image_pixels\)"
    ):
        read(body, 100_000)


@with_avif
def test_an_animation_is_rejected() -> None:
    body = file_of(
        picture(), save_all=True, append_images=[picture(mode="L").convert("RGB")]
    )
    with pytest.raises(ApiError, match="animated AVIF is not supported"):
        read(body)


def box(kind: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + kind + content


def bits(*fields: tuple[int, int]) -> bytes:
    """Pack numbers with their lengths in bits."""
    text = "".join(f"{value:0{length}b}" for value, length in fields)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def stream(width: int, height: int, *, reduced: bool = True) -> bytes:
    """Return an AV1 stream with only a sequence header."""
    size_fields = (
        (15, 4),
        (15, 4),
        (width - 1, 16),
        (height - 1, 16),
    )
    if reduced:
        header = bits((0, 3), (1, 1), (1, 1), (8, 5), *size_fields)
    else:
        header = bits(
            (0, 3),
            (1, 1),
            (0, 1),
            (0, 1),
            (0, 1),
            (0, 5),
            (0, 12),
            (8, 5),
            (1, 1),
            *size_fields,
        )
    return bytes([1 << 3 | 2, len(header)]) + header


def crafted(*streams: bytes, extent: int | None = None) -> memoryview:
    """Return an AVIF file of these streams, without other parts that a decoder needs."""
    data = b"".join(streams)
    entries = [
        box(b"infe", b"\2\0\0\0" + number.to_bytes(2, "big") + b"\0\0av01\0")
        for number in range(len(streams))
    ]
    info = box(b"iinf", bytes(4) + len(streams).to_bytes(2, "big") + b"".join(entries))
    places = b""
    at = 0
    for number, content in enumerate(streams):
        size = extent
        if extent is None:
            size = len(content)
        places += (
            number.to_bytes(2, "big")
            + b"\0\1\0\0\0\1"
            + at.to_bytes(4, "big")
            + size.to_bytes(4, "big")
        )
        at += len(content)
    location = box(
        b"iloc", b"\1\0\0\0\x44\0" + len(streams).to_bytes(2, "big") + places
    )
    meta = box(b"meta", bytes(4) + info + location + box(b"idat", data))
    return memoryview(box(b"ftyp", b"avif\0\0\0\0avifmif1") + meta)


@with_avif
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (crafted(stream(65536, 65536)), "65536x65536 pixels"),
        (crafted(stream(60000, 2)), "a side may have 32767"),
        (crafted(stream(10, 10, reduced=False)), "65536x65536 pixels"),
        (crafted(*[stream(5000, 3000)] * 3), "45000000 pixels in all its parts"),
        (crafted(stream(10, 10), extent=0), "the AVIF picture is damaged"),
        (crafted(stream(10, 10), extent=100_000), "the AVIF picture is damaged"),
        (crafted(b""), "the AVIF picture is damaged"),
        (crafted(b"\x0a\x7f"), "the AVIF picture is damaged"),
        (crafted(stream(10, 10)), "the AVIF picture is damaged"),
        (memoryview(box(b"ftyp", b"avif\0\0\0\0avif")), "the AVIF picture is damaged"),
        (memoryview(box(b"ftyp", b"avis\0\0\0\0avif")), "animated AVIF"),
    ],
)
def test_invalid_avif_files_are_rejected(body: memoryview, fault: str) -> None:
    """Includes streams that announce more pixels than the file's header."""
    with pytest.raises(ApiError, match=fault):
        read(body)


def test_overlapping_items_take_no_more_memory_than_the_file() -> None:
    """Joining them would take many times the file's size."""
    padding = bytes([15 << 3 | 2, 127]) + bytes(127)
    whole = stream(10, 10) + padding * 8
    assert frame_sizes(crafted(whole)) == [(10, 10)]
    with pytest.raises(AvifError):
        frame_sizes(crafted(b"", b"", b"", whole, extent=len(whole)))


@with_avif
def test_a_header_with_more_pixels_than_the_stream_is_rejected() -> None:
    """libavif would scale the picture up."""
    body = bytes(file_of(picture()))
    at = body.index(b"ispe") + 8
    changed = (
        body[:at]
        + (4000).to_bytes(4, "big")
        + (3000).to_bytes(4, "big")
        + body[at + 8 :]
    )
    with pytest.raises(ApiError, match="announces more pixels than it has"):
        read(memoryview(changed))


@with_avif
def test_truncated_files_are_rejected() -> None:
    whole = file_of(picture())
    for length in range(12, len(whole)):
        with pytest.raises(ApiError):
            read(whole[:length])


@with_avif
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8
    )
)
@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
)
def test_damaged_files_do_no_harm(changes: list[tuple[int, int]]) -> None:
    """Each is read or rejected, within its announced size."""
    damaged = bytearray(file_of(picture()))
    for at, value in changes:
        damaged[at % len(damaged)] = value
    body = memoryview(bytes(damaged))
    try:
        sizes = frame_sizes(body) if is_avif(body) else []
        assert all(width <= 65536 and height <= 65536 for width, height in sizes)
        read(body)
    except (AvifError, ApiError):
        pass


def test_without_libavif_the_error_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    with pytest.raises(
        ApiError, match=r"AVIF pictures need Pillow 11\.3 or newer .* or send a JPEG"
    ):
        read(crafted(stream(10, 10)))


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("TIFF", b"II*\0\x08\0\0\0"),
        ("TIFF", b"MM\0*\0\0\0\x08"),
        ("PPM", b"P6\n4 4\n255\n"),
        ("PPM", b"P3 4 4 255 "),
        ("JPEG XL", b"\xff\x0a\xfa\x1f"),
        ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n"),
        ("SVG", b'<svg xmlns="http://www.w3.org/2000/svg">'),
        ("SVG", b'<?xml version="1.0"?><svg/>'),
        ("PDF", b"%PDF-1.7\n"),
        ("PSD", b"8BPS\0\1"),
        ("ICO", b"\0\0\1\0\1\0"),
    ],
)
def test_other_formats_are_rejected_by_name(kind: str, start: bytes) -> None:
    with pytest.raises(ApiError, match=f"^{kind} is not read; send a JPEG or PNG$"):
        read(memoryview(start + bytes(100)))
