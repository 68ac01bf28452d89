"""Answers drawn on pictures: boxes, masks, skeletons and bars, legible on a thumbnail and on a photo alike.

All measures follow from the canvas's own size, which is held between two limits: a small picture is enlarged, since
text needs room, and a large one reduced, since nobody looks at 12 megapixels of PNG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.tasks.base import Hints, invalid_input
from pocketserve.tasks.vision.geometry import Area
from pocketserve.tasks.vision.picture_input import is_tensor
from pocketserve.tasks.vision.pictures import CheckedFile, read_whole
from pocketserve.tensors import Array

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

LONGEST, SHORTEST, NARROWEST = 1600, 480, 200
"""Pixels of the canvas: the longer side's limits, and the least of the shorter one."""

PANEL, INK, MUTED = (24, 26, 31), (245, 246, 248), (62, 66, 76)
MASK_SHARE = 0.55
SMOOTH = 2
"""Skeletons are drawn at this multiple and reduced, which smooths their slanting lines."""

MAX_BOXES = 300
"""More cannot be told apart."""

MAX_BARS = 50
"""Each makes the picture higher: 10,000 of them would take gigabytes."""

Colour = tuple[int, int, int]


def colour(index: int) -> Colour:
    """A colour for a class: neighbours differ strongly, and the same class is the same everywhere."""
    hue = (0.58 + index * 0.618034) % 1.0
    import colorsys  # late: few ask for a picture

    red, green, blue = colorsys.hsv_to_rgb(hue, (0.72, 0.88, 0.58)[index % 3], (0.98, 0.90, 1.0)[index // 3 % 3])
    return round(red * 255), round(green * 255), round(blue * 255)


class Canvas:
    """The upright picture, to be drawn on in its own pixels.

    Args:
        body, hints: the request's picture.
        max_pixels: see :func:`~pocketserve.tasks.vision.pictures.read_picture`.

    Raises:
        ApiError: INVALID_INPUT where the body is numbers.
    """

    def __init__(self, body: memoryview, hints: Hints, max_pixels: int) -> None:
        from PIL import ImageDraw

        if is_tensor(body, hints):
            raise invalid_input("annotate needs a picture, the body holds numbers")
        picture, size = read_whole(body, max_pixels, LONGEST, hints)
        grow = max(1.0, SHORTEST / max(picture.size))
        if grow > 1:
            picture = picture.resize([max(1, round(side * grow)) for side in picture.size])
        self._scale = (picture.width / size[0], picture.height / size[1])
        self._image, self._origin = _with_margins(picture)
        self._draw = ImageDraw.Draw(self._image)
        longest = max(self._image.size)
        self._line = max(2, round(longest / 270))
        self._font = _font(max(13, round(longest / 44)))
        self._taken: list[tuple[float, float, float, float]] = []

    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = CheckedFile()
        self._image.save(file, "PNG", compress_level=3)
        return file.getvalue()

    def boxes(self, entries: Sequence[tuple[Mapping[str, float], str, int]]) -> None:
        """A frame with a label for each (box, text, class), the first on top; no frame runs through a label."""
        shown = entries[:MAX_BOXES]
        placed = [(self._frame(box, index), text, index) for box, text, index in reversed(shown)]
        for (left, top), text, index in reversed(placed):
            self._label(text, left, top, colour(index))

    def _frame(self, box: Mapping[str, float], index: int) -> tuple[float, float]:
        """One frame; its upper left corner on the canvas."""
        left, top = self._at(box["x"], box["y"])
        right, bottom = self._at(box["x"] + box["width"], box["y"] + box["height"])
        right, bottom = max(right - 1, left), max(bottom - 1, top)
        radius = min(2 * self._line, (right - left) / 3, (bottom - top) / 3)
        # A dark rim keeps the frame visible on a ground of its own colour.
        rim = max(1, self._line // 3)
        outer = (left - rim, top - rim, right + rim, bottom + rim)
        self._draw.rounded_rectangle(outer, radius + rim, outline=PANEL, width=self._line + 2 * rim)
        self._draw.rounded_rectangle((left, top, right, bottom), radius, outline=colour(index), width=self._line)
        return left, top

    def mask(self, classes: Array, area: Area, clear: Sequence[int] = ()) -> None:
        """Every class's colour over the part of the picture that the mask covers, but for the clear ones."""
        import PIL.Image

        left, top = self._at(area.x, area.y)
        right, bottom = self._at(area.x + area.width, area.y + area.height)
        place = tuple(round(value) for value in (left, top, right, bottom))
        size = (max(1, place[2] - place[0]), max(1, place[3] - place[1]))
        kinds = np.unique(classes)
        table = np.array([colour(int(kind)) for kind in kinds], np.uint8)
        shown = ~np.isin(kinds, list(clear))
        positions = np.searchsorted(kinds, classes)
        nearest, smooth = PIL.Image.Resampling.NEAREST, PIL.Image.Resampling.BILINEAR
        paint = PIL.Image.fromarray(table[positions]).resize(size, nearest)
        cover = PIL.Image.fromarray((shown[positions] * round(255 * MASK_SHARE)).astype(np.uint8)).resize(size, smooth)
        self._image.paste(paint, (place[0], place[1]), cover)

    def skeleton(
        self, points: Sequence[tuple[float, float] | None], bones: Sequence[tuple[int, int]], index: int
    ) -> None:
        """The points that are seen, joined where both ends are.

        Args:
            points: x and y in pixels of the picture; None was not seen.
            bones: pairs of positions in ``points``.
            index: chooses the colour.
        """
        import PIL.Image
        from PIL import ImageDraw

        layer = PIL.Image.new("RGBA", (SMOOTH * self._image.width, SMOOTH * self._image.height), (0, 0, 0, 0))
        draw = ImageDraw.Draw(layer)
        places = [None if at is None else self._at(*at) for at in points]
        spots = [None if at is None else (SMOOTH * at[0], SMOOTH * at[1]) for at in places]
        bones = [pair for pair in bones if max(pair) < len(spots)]
        width = round(1.5 * SMOOTH * self._line)
        for rim, shade in ((SMOOTH, PANEL), (0, colour(index))):
            for first, second in bones:
                ends = [spot for spot in (spots[first], spots[second]) if spot is not None]
                if len(ends) == 2:
                    draw.line(ends, fill=(*shade, 235), width=width + 2 * rim)
        radius = 1.1 * width
        for spot in spots:
            if spot is not None:
                frame = [spot[0] - radius, spot[1] - radius, spot[0] + radius, spot[1] + radius]
                draw.ellipse(frame, fill=(*INK, 255), outline=(*PANEL, 255), width=max(1, width // 3))
        reduced = layer.resize(self._image.size, PIL.Image.Resampling.BOX)
        self._image.paste(reduced, (0, 0), reduced)

    def legend(self, entries: Sequence[tuple[str, int]]) -> None:
        """Names with their colours, in the lower left corner; as many as there is room for."""
        line = self._height() * 1.5
        pad = self._height() * 0.5
        room = int((self._image.height * 0.8 - 2 * pad) / line)
        shown = entries[: max(1, room)]
        if not shown:
            return
        swatch = self._height() * 0.9
        widest = max(self._width(text) for text, _ in shown)
        right = min(3 * pad + swatch + widest + pad, self._image.width - pad)
        top = self._image.height - 2 * pad - line * len(shown)
        self._panel((pad, top, right, self._image.height - pad))
        for row, (text, index) in enumerate(shown):
            middle = top + pad / 2 + line * (row + 0.5)
            frame = (2 * pad, middle - swatch / 2, 2 * pad + swatch, middle + swatch / 2)
            self._draw.rounded_rectangle(frame, swatch / 4, fill=colour(index))
            fitting = self._cut(text, right - 3 * pad - swatch)
            self._draw.text((3 * pad + swatch, middle), fitting, INK, self._font, anchor="lm")

    def bars(self, entries: Sequence[tuple[str, float]]) -> None:
        """A panel below the picture with a bar for each class, but for those beyond the first MOST_BARS.

        Args:
            entries: names with probabilities, or with other numbers, which are compared with the largest.
        """
        import PIL.Image
        from PIL import ImageDraw

        line, pad = self._height() * 2.3, self._height() * 0.8
        rows = entries[:MAX_BARS] or [("nothing above the threshold", 0.0)]
        width = max(self._image.width, round(SHORTEST * 0.75))
        height = round(2 * pad + line * len(rows))
        grown = PIL.Image.new("RGB", (width, self._image.height + height), PANEL)
        grown.paste(self._image, ((width - self._image.width) // 2, 0))
        top = self._image.height
        self._image, self._draw = grown, ImageDraw.Draw(grown)
        scores = [score for _, score in rows]
        # Probabilities have their own scale; other numbers are compared with the largest.
        full = 1.0 if all(0 <= score <= 1 for score in scores) else max(map(abs, scores))
        for row, (text, score) in enumerate(rows):
            base = top + pad + line * row
            value = f"{score:.1%}" if full == 1.0 else f"{score:.4g}"
            right = width - pad
            self._draw.text((right, base), value if entries else "", INK, self._font, anchor="ra")
            room = right - pad - self._width(value) - pad
            self._draw.text((pad, base), self._cut(text, room), INK, self._font, anchor="la")
            below = base + self._font.getbbox("Ág")[3] * 1.15
            thick = max(3, self._height() * 0.35)
            self._draw.rounded_rectangle((pad, below, right, below + thick), thick / 2, fill=MUTED)
            length = (right - pad) * min(1.0, max(0.0, score / full if full else 0.0))
            if length >= thick:
                self._draw.rounded_rectangle((pad, below, pad + length, below + thick), thick / 2, fill=colour(0))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return x * self._scale[0] + self._origin[0], y * self._scale[1] + self._origin[1]

    def _label(self, text: str, left: float, top: float, shade: Colour) -> None:
        """A filled tag on the frame's upper edge; inside where there is no room above, lower where one lies already."""
        pad = self._height() * 0.3
        text = self._cut(text, self._image.width - 2 * pad)
        width, height = self._width(text) + 2 * pad, self._height() + 2 * pad
        x = max(0.0, min(left - self._line / 2, self._image.width - width))
        y = top - height if top >= height else top
        for _ in range(12):
            crossing = next((one for one in self._taken if _cross(one, (x, y, x + width, y + height))), None)
            if crossing is None or crossing[3] + height > self._image.height:
                break
            y = crossing[3] + 1
        frame = (x, y, x + width, y + height)
        self._taken.append(frame)
        self._draw.rounded_rectangle(frame, pad, fill=shade)
        red, green, blue = shade
        ink = (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)
        self._draw.text((x + pad, y + height / 2), text, ink, self._font, anchor="lm")

    def _panel(self, frame: tuple[float, float, float, float]) -> None:
        """A dark, half transparent ground for text."""
        import PIL.Image
        from PIL import ImageDraw

        cover = PIL.Image.new("L", self._image.size, 0)
        ImageDraw.Draw(cover).rounded_rectangle(frame, self._height() * 0.4, fill=190)
        self._image.paste(PANEL, (0, 0, *self._image.size), cover)

    def _height(self) -> float:
        box = self._font.getbbox("Ág")
        return float(box[3] - box[1])

    def _width(self, text: str) -> float:
        return float(self._font.getlength(text))

    def _cut(self, text: str, room: float) -> str:
        """The text, or as much of it as there is room for."""
        text = " ".join(text.split())[:200]
        if self._width(text) <= room:
            return text
        while text and self._width(text + "…") > room:
            text = text[:-1]
        return text + "…"


def _with_margins(picture: Image) -> tuple[Image, tuple[int, int]]:
    """A picture that is hardly wider or higher than a line gets margins to write on; and where it lies then."""
    import PIL.Image

    width, height = max(picture.width, NARROWEST), max(picture.height, NARROWEST)
    if (width, height) == picture.size:
        return picture, (0, 0)
    grown = PIL.Image.new("RGB", (width, height), PANEL)
    origin = ((width - picture.width) // 2, (height - picture.height) // 2)
    grown.paste(picture, origin)
    return grown, origin


def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _cross(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
