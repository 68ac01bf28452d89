"""Make pictures as people, phones and attackers send them.

They have odd colour modes, damage, or claim enormous sizes.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np

CLAIMED = 16_000
"""Side in pixels that the bombs claim: a gigabyte of RGBA."""


def saved(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of a picture file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(
    width: int, height: int, rows: bytes = b"", depth: int = 1, colour: int = 0
) -> bytes:
    """Build a PNG, 1-bit grey by default, which may announce more than it contains."""
    header = struct.pack(
        ">IIBBBBB",
        width,
        height,
        depth,
        colour,
        0,
        0,
        0,
    )
    chunks = [
        (b"IHDR", header),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    parts = []
    for kind, data in chunks:
        parts.append(
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def gif_of(
    screen: tuple[int, int], frame: tuple[int, int], before: bytes = b""
) -> bytes:
    """Return a GIF whose disposal method takes memory when it is opened."""
    start = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6) + before
    disposal = b"!\xf9\x04" + bytes([2 << 2, 0, 0, 0, 0])
    return (
        start
        + disposal
        + b","
        + struct.pack("<HHHHB", 0, 0, *frame, 0)
        + b"\x02\x02\x4c\x01\0;"
    )


def bombs(side: int = CLAIMED) -> dict[str, bytes]:
    """Return small files that claim ``side`` x ``side`` pixels.

    Each name begins with the format.
    """
    return {
        "PNG": png(side, side, bytes(100), depth=8, colour=6),
        "JPEG progressive": _jpeg(side, progressive=True),
        "GIF": gif_of((8, 8), (side, side)),
        "GIF screen": gif_of((side, side), (8, 8)),
        "WEBP animated": _webp_animation(side),
        "WEBP lossless": _webp_lossless(side),
        "WEBP lossy": _webp_lossy(side),
        "BMP": _bmp(side, 24, 0),
        "BMP with runs": _bmp(side, 8, 1),
    }


def _small() -> Any:
    from PIL import Image

    return Image.new("RGB", (16, 16))


def _jpeg(side: int, **options: Any) -> bytes:
    body = bytearray(saved(_small(), "JPEG", **options))
    frame = body.index(b"\xff\xc2" if options else b"\xff\xc0")
    body[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    return bytes(body)


def _webp_lossy(side: int) -> bytes:
    body = bytearray(saved(_small(), "WEBP"))
    body[26:30] = struct.pack("<HH", side, side)
    return bytes(body)


def _webp_lossless(side: int) -> bytes:
    body = bytearray(saved(_small(), "WEBP", lossless=True))
    (bits,) = struct.unpack_from("<I", body, 21)
    body[21:25] = struct.pack("<I", bits & ~0xFFFFFFF | (side - 1) | (side - 1) << 14)
    return bytes(body)


def _webp_animation(side: int) -> bytes:
    """Place one small frame on a large canvas."""
    frame = (
        bytes(6)
        + struct.pack("<I", 15)[:3] * 2
        + bytes(4)
        + saved(_small(), "WEBP")[12:]
    )
    canvas = b"\x02\0\0\0" + struct.pack("<I", side - 1)[:3] * 2
    chunks = (
        (b"VP8X", canvas),
        (b"ANIM", bytes(6)),
        (b"ANMF", frame),
    )
    content = b"WEBP" + b"".join(
        name + struct.pack("<I", len(data)) + data for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(content)) + content


def _bmp(side: int, bits: int, compression: int) -> bytes:
    palette = b""
    if bits == 8:
        palette = bytes(1024)
    header = struct.pack(
        "<IiiHHIIiiII", 40, side, side, 1, bits, compression, 0, 0, 0, 0, 0
    )
    start = b"BM" + struct.pack("<IHHI", 54 + len(palette), 0, 0, 54 + len(palette))
    return start + header + palette + b"\0\1" + bytes(100)


def with_transparent_corner(picture: Any) -> tuple[Any, Any]:
    """Return the picture with a transparent corner, and how it looks on white."""
    from PIL import Image

    veil = Image.new("L", picture.size, 255)
    veil.paste(0, (0, 0, picture.width // 6, picture.height // 6))
    see_through = picture.copy()
    see_through.putalpha(veil)
    on_white = Image.new("RGB", picture.size, (255, 255, 255))
    on_white.paste(picture, (0, 0), veil)
    return see_through, on_white


def colour_modes(picture: Any) -> dict[str, tuple[bytes, Any]]:
    """Return a picture's files in other colour modes, each with its RGB equivalent."""
    from PIL import Image

    grey = picture.convert("L")
    grey_rgb = grey.convert("RGB")
    grey_jpeg = saved(grey, "JPEG", quality=97)
    decoded_jpeg = Image.open(io.BytesIO(grey_jpeg)).convert("RGB")
    deep = Image.fromarray(np.asarray(grey, np.uint16) * 257)
    palette = picture.quantize(256)
    palette_rgb = palette.convert("RGB")
    cmyk = picture.convert("CMYK")
    see_through, on_white = with_transparent_corner(picture)
    return {
        "grayscale": (saved(grey), grey_rgb),
        "grayscale JPEG": (grey_jpeg, decoded_jpeg),
        "CMYK": (saved(cmyk, "JPEG", quality=97), picture),
        "RGBA": (saved(see_through), on_white),
        "RGBA WebP": (saved(see_through, "WEBP", lossless=True), on_white),
        "palette": (saved(palette), palette_rgb),
        "palette GIF": (saved(palette, "GIF"), palette_rgb),
        "16-bit": (saved(deep), grey_rgb),
    }


def variants(picture: Any) -> dict[str, tuple[bytes, Any]]:
    """Return a picture's files in every form, each with its RGB equivalent."""
    kinds = colour_modes(picture)
    kinds["BMP"] = (saved(picture, "BMP"), picture)
    progressive = saved(picture, "JPEG", quality=97, progressive=True)
    kinds["progressive JPEG"] = (progressive, picture)
    for orientation in range(2, 9):
        kinds[f"rotated {orientation}"] = (rotated(picture, orientation), picture)
    kinds["rotated PNG"] = (rotated(picture, 6, "PNG"), picture)
    kinds["rotated WebP"] = (rotated(picture, 8, "WEBP", lossless=True), picture)
    return kinds


def rotated(
    picture: Any, orientation: int, kind: str = "JPEG", **options: Any
) -> bytes:
    """Return a file whose pixels are rotated, with the orientation in EXIF."""
    from PIL import Image

    # Pillow's transpositions that undo each orientation.
    back = {
        2: 0,
        3: 3,
        4: 1,
        5: 5,
        6: 2,
        7: 6,
        8: 4,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    if kind == "JPEG":
        options = {
            "quality": 97,
            "subsampling": 0,
            **options,
        }
    return saved(
        picture.transpose(Image.Transpose(back[orientation])),
        kind,
        exif=exif,
        **options,
    )


def damaged(picture: Any) -> dict[str, bytes]:
    """Return files without a complete picture."""
    whole = {
        "PNG": saved(picture),
        "JPEG": saved(picture, "JPEG"),
        "WEBP": saved(picture, "WEBP"),
    }
    whole |= {"GIF": saved(picture.quantize(64), "GIF"), "BMP": saved(picture, "BMP")}
    cut = {}
    for kind, body in whole.items():
        cut[f"truncated {kind}"] = body[: len(body) // 2]
    return {
        **cut,
        "zero-byte": b"",
        "zeros": bytes(2000),
        "text": b"no picture at all",
        "PDF": b"%PDF-1.7\n" + bytes(99),
    }
