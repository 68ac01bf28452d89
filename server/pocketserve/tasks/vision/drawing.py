"""Answers drawn on pictures: boxes, masks, skeletons and bars, legible on a thumbnail and on a photo alike.

All measures follow from the canvas's own size, which is held between two limits: a small picture is enlarged, since
text needs room, and a large one reduced, since nobody looks at 12 megapixels of PNG.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.tasks.base import Hints
from pocketserve.tasks.vision.geometry import Area
from pocketserve.tasks.vision.pictures import CheckedFile, read_whole
from pocketserve.tensors import Array

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST, SHORTEST, NARROWEST = (
    1600,
    480,
    200,
)  # pixels: the longer side's limits, and the least of the shorter one
PANEL, INK, MUTED = (24, 26, 31), (245, 246, 248), (62, 66, 76)
JPEG_QUALITY = 90  # of 100; the file is an eighth of the PNG of a photo
MASK_SHARE = 0.55
SMOOTH = 2  # skeletons are drawn at this multiple and reduced, which smooths their slanting lines
MAX_BOXES = 300  # more cannot be told apart
MAX_BARS = 50  # each makes the picture higher: 10,000 of them would take gigabytes
Colour = tuple[int, int, int]
Frame = tuple[float, float, float, float]  # left, top, right, bottom


def colour(index: int) -> Colour:
    """Return a colour for a class: neighbours differ strongly, and the same class is the same everywhere."""
    hue = (0.58 + index * 0.618034) % 1.0
    red, green, blue = colorsys.hsv_to_rgb(
        hue, (0.72, 0.88, 0.58)[index % 3], (0.98, 0.90, 1.0)[index // 3 % 3]
    )
    return round(red * 255), round(green * 255), round(blue * 255)


class Canvas:
    """The upright picture of a request, to be drawn on in its own pixels."""

    def __init__(self, body: memoryview, hints: Hints, max_pixels: int) -> None:
        from PIL import ImageFont, ImageOps

        picture, size = read_whole(body, max_pixels, LONGEST, hints)
        grow = SHORTEST / max(picture.size)
        if grow > 1:
            picture = picture.resize(
                [max(1, round(side * grow)) for side in picture.size]
            )
        self._scale = (picture.width / size[0], picture.height / size[1])
        # A picture that is hardly wider or higher than a line of text gets margins to write on.
        x, y = max(0, NARROWEST - picture.width), max(0, NARROWEST - picture.height)
        self._origin = (x // 2, y // 2)
        self._set_image(
            ImageOps.expand(picture, (*self._origin, x - x // 2, y - y // 2), PANEL)
        )
        longest = max(self._image.size)
        self._line = max(2, round(longest / 270))
        self._font = ImageFont.load_default(max(13, round(longest / 44)))
        _, top, _, bottom = self._font.getbbox("Ág")
        self._text_bottom, self._text_height = bottom, float(bottom - top)
        self._labels: list[Frame] = []

    def _set_image(self, image: Image) -> None:
        from PIL import ImageDraw

        self._image, self._draw = image, ImageDraw.Draw(image)

    def file(self, kind: str) -> bytes:
        """Return the picture as a PNG or JPEG file."""
        file = CheckedFile()
        self._image.save(
            file, kind, compress_level=3, quality=JPEG_QUALITY
        )  # each kind reads its own
        return file.getvalue()

    def boxes(self, entries: Sequence[tuple[Mapping[str, float], str, int]]) -> None:
        """Draw a frame with a label for each (box, text, class), the first on top; no frame runs through a label."""
        rim = max(
            1, self._line // 3
        )  # a dark one keeps a frame visible on a ground of its own colour
        for box, _, index in reversed(entries[:MAX_BOXES]):
            left, top = self._at(box["x"], box["y"])
            right, bottom = self._at(box["x"] + box["width"], box["y"] + box["height"])
            right, bottom = max(right - 1, left), max(bottom - 1, top)
            radius = min(2 * self._line, (right - left) / 3, (bottom - top) / 3)
            outer = (left - rim, top - rim, right + rim, bottom + rim)
            self._draw.rounded_rectangle(
                outer, radius + rim, outline=PANEL, width=self._line + 2 * rim
            )
            self._draw.rounded_rectangle(
                (left, top, right, bottom),
                radius,
                outline=colour(index),
                width=self._line,
            )
        for box, text, index in entries[:MAX_BOXES]:
            self._label(text, *self._at(box["x"], box["y"]), colour(index))

    def outline(self, points: Sequence[tuple[float, float]], index: int) -> None:
        """Draw a closed line through points (x, y) in a class's colour."""
        corners = [self._at(x, y) for x, y in points]
        closed = [*corners, *corners[:2]]
        rim = max(1, self._line // 3)
        self._draw.line(closed, fill=PANEL, width=self._line + 2 * rim, joint="curve")
        self._draw.line(closed, fill=colour(index), width=self._line, joint="curve")

    def mask(self, classes: Array, area: Area, clear: Sequence[int] = ()) -> None:
        """Draw every class's colour over the part of the picture that the mask covers, but for the clear ones."""
        import PIL.Image

        left, top = map(round, self._at(area.x, area.y))
        right, bottom = map(round, self._at(area.x + area.width, area.y + area.height))
        size = (max(1, right - left), max(1, bottom - top))
        kinds, positions = np.unique(classes, return_inverse=True)
        positions = positions.reshape(classes.shape)
        table = np.array([colour(int(kind)) for kind in kinds], np.uint8)
        cover = (~np.isin(kinds, list(clear)) * round(255 * MASK_SHARE)).astype(
            np.uint8
        )
        self._image.paste(
            PIL.Image.fromarray(table[positions]).resize(
                size, PIL.Image.Resampling.NEAREST
            ),
            (left, top),
            PIL.Image.fromarray(cover[positions]).resize(
                size, PIL.Image.Resampling.BILINEAR
            ),
        )

    def skeleton(
        self,
        points: Sequence[tuple[float, float] | None],
        bones: Sequence[tuple[int, int]],
        index: int,
    ) -> None:
        """Draw the points [(x, y)] that are visible, and those bones, pairs of positions, of which both ends are."""
        import PIL.Image
        from PIL import ImageDraw

        layer = PIL.Image.new(
            "RGBA",
            (SMOOTH * self._image.width, SMOOTH * self._image.height),
            (0, 0, 0, 0),
        )
        draw = ImageDraw.Draw(layer)
        spots = {
            number: tuple(SMOOTH * value for value in self._at(*point))
            for number, point in enumerate(points)
            if point is not None
        }
        width = round(1.5 * SMOOTH * self._line)
        for rim, shade in ((SMOOTH, PANEL), (0, colour(index))):
            for first, second in bones:
                if first in spots and second in spots:
                    draw.line(
                        [spots[first], spots[second]],
                        fill=(*shade, 235),
                        width=width + 2 * rim,
                    )
        radius = 1.1 * width
        for x, y in spots.values():
            frame = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(
                frame, fill=(*INK, 255), outline=(*PANEL, 255), width=max(1, width // 3)
            )
        reduced = layer.resize(self._image.size, PIL.Image.Resampling.BOX)
        self._image.paste(reduced, (0, 0), reduced)

    def legend(self, entries: Sequence[tuple[str, int]]) -> None:
        """Draw names with their colours into the lower left corner; as many as there is room for."""
        import PIL.Image
        from PIL import ImageDraw

        line, pad, swatch = (
            self._text_height * 1.5,
            self._text_height * 0.5,
            self._text_height * 0.9,
        )
        rows = entries[: max(1, int((self._image.height * 0.8 - 2 * pad) / line))]
        if not rows:
            return
        widest = max(self._width(text) for text, _ in rows)
        right = min(3 * pad + swatch + widest + pad, self._image.width - pad)
        top = self._image.height - 2 * pad - line * len(rows)
        cover = PIL.Image.new("L", self._image.size, 0)  # half transparent
        frame = (pad, top, right, self._image.height - pad)
        ImageDraw.Draw(cover).rounded_rectangle(
            frame, self._text_height * 0.4, fill=190
        )
        self._image.paste(PANEL, (0, 0, *self._image.size), cover)
        for row, (text, index) in enumerate(rows):
            middle = top + pad / 2 + line * (row + 0.5)
            frame = (
                2 * pad,
                middle - swatch / 2,
                2 * pad + swatch,
                middle + swatch / 2,
            )
            self._draw.rounded_rectangle(frame, swatch / 4, fill=colour(index))
            fitting = self._cut(text, right - 3 * pad - swatch)
            self._draw.text(
                (3 * pad + swatch, middle), fitting, INK, self._font, anchor="lm"
            )

    def bars(self, entries: Sequence[tuple[str, float]]) -> None:
        """Draw a panel below the picture with a bar for each of the first MAX_BARS classes.

        Scores that are no probabilities are compared with the largest.
        """
        from PIL import ImageOps

        line, pad = self._text_height * 2.3, self._text_height * 0.8
        rows = entries[:MAX_BARS] or [("nothing above the threshold", 0.0)]
        top, margin = (
            self._image.height,
            max(0, round(SHORTEST * 0.75) - self._image.width),
        )
        border = (
            margin // 2,
            0,
            margin - margin // 2,
            round(2 * pad + line * len(rows)),
        )
        self._set_image(ImageOps.expand(self._image, border, PANEL))
        scores = [score for _, score in rows]
        full = (
            1.0 if all(0 <= score <= 1 for score in scores) else max(map(abs, scores))
        )
        right, thick = self._image.width - pad, max(3, self._text_height * 0.35)
        for row, (text, score) in enumerate(rows):
            base = top + pad + line * row
            value = f"{score:.1%}" if full == 1.0 else f"{score:.4g}"
            self._draw.text(
                (right, base), value if entries else "", INK, self._font, anchor="ra"
            )
            room = right - pad - self._width(value) - pad
            self._draw.text(
                (pad, base), self._cut(text, room), INK, self._font, anchor="la"
            )
            below = base + self._text_bottom * 1.15
            self._draw.rounded_rectangle(
                (pad, below, right, below + thick), thick / 2, fill=MUTED
            )
            length = (right - pad) * min(1.0, max(0.0, score / full if full else 0.0))
            if length >= thick:
                self._draw.rounded_rectangle(
                    (pad, below, pad + length, below + thick), thick / 2, fill=colour(0)
                )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return x * self._scale[0] + self._origin[0], y * self._scale[1] + self._origin[
            1
        ]

    def _label(self, text: str, left: float, top: float, shade: Colour) -> None:
        """Draw a filled tag on the frame's upper edge; inside where there is no room above, lower where another is."""
        pad = self._text_height * 0.3
        text = self._cut(text, self._image.width - 2 * pad)
        width, height = self._width(text) + 2 * pad, self._text_height + 2 * pad
        x = max(0.0, min(left - self._line / 2, self._image.width - width))
        y = top - height if top >= height else top
        for _ in range(12):
            crossing = next(
                (
                    label
                    for label in self._labels
                    if _cross(label, (x, y, x + width, y + height))
                ),
                None,
            )
            if crossing is None or crossing[3] + height > self._image.height:
                break
            y = crossing[3] + 1
        frame = (x, y, x + width, y + height)
        self._labels.append(frame)
        self._draw.rounded_rectangle(frame, pad, fill=shade)
        red, green, blue = shade
        ink = (
            (0, 0, 0)
            if 0.299 * red + 0.587 * green + 0.114 * blue > 140
            else (255, 255, 255)
        )
        self._draw.text((x + pad, y + height / 2), text, ink, self._font, anchor="lm")

    def _width(self, text: str) -> float:
        return float(self._font.getlength(text))

    def _cut(self, text: str, room: float) -> str:
        """Return the text, or as much of it as there is room for."""
        text = " ".join(text.split())[:200]
        if self._width(text) > room:
            fitting = (
                length
                for length in range(len(text), 0, -1)
                if self._width(text[:length] + "…") <= room
            )
            text = text[: next(fitting, 0)] + "…"
        return text


def _cross(first: Frame, second: Frame) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )
