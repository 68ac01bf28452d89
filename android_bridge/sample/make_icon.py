"""Draws the icon's PNG files for Android 6 and 7, which know no adaptive icons; the same shapes as the vector.

Usage: python android_bridge/sample/make_icon.py    (needs Pillow)
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw  # noqa: TID253  # a tool, not the server

SIZES = {"mdpi": 48, "hdpi": 72, "xhdpi": 96, "xxhdpi": 144, "xxxhdpi": 192}
SCALE = 16
"""Drawn so many times larger and then made small, which smooths the edges."""
GREEN, ORANGE, WHITE = "#0B5D4E", "#C2571A", "#FFFFFF"


def draw() -> Image.Image:
    """The icon on the 72 units that an adaptive icon shows."""
    size = 72 * SCALE
    picture = Image.new("RGBA", (size, size), (0, 0, 0, 0))
    pen = ImageDraw.Draw(picture)

    def at(*values: float) -> list[float]:
        return [(value - 18) * SCALE for value in values]

    pen.rounded_rectangle(at(21, 21, 87, 87), 15 * SCALE, GREEN)
    pen.rounded_rectangle(at(35, 25, 73, 83), 6 * SCALE, WHITE)
    rows = (42, 54, 66)
    for left in rows:
        for right in rows:
            if abs(left - right) <= 12:
                pen.line(at(44, left, 64, right), GREEN, round(1.6 * SCALE))
    for x, colour in ((44, ORANGE), (64, GREEN)):
        for y in rows:
            pen.ellipse(at(x - 4, y - 4, x + 4, y + 4), colour)
    return picture


def main() -> None:
    """Write every size."""
    drawn = draw()
    for density, size in SIZES.items():
        folder = Path(__file__).parent / "res" / f"mipmap-{density}"
        folder.mkdir(parents=True, exist_ok=True)
        drawn.resize((size, size), Image.Resampling.LANCZOS).save(
            folder / "ic_launcher.png", optimize=True
        )


if __name__ == "__main__":
    main()
