"""Draw answers on pictures: boxes, masks, skeletons and bars.

All measures follow from the canvas size, so they are legible on a thumbnail and on a
photo. Small pictures are enlarged to make room for text; large ones are reduced, as
nobody needs 12 megapixels of PNG.
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

LONGEST = 1600  # pixels of the longer side, at most
SHORTEST = 480  # pixels of the longer side, at least
NARROWEST = 200  # pixels of the shorter side, at least
PANEL = (24, 26, 31)
INK = (245, 246, 248)
MUTED = (62, 66, 76)
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)
BRIGHT = 140  # luminance of a colour from which its text is black
JPEG_QUALITY = 90  # of 100; the file is an eighth of the PNG of a photo
MASK_SHARE = 0.55  # opacity
LEGEND_ALPHA = 190
SKELETON_ALPHA = 235
SMOOTH = 2  # skeletons are drawn at this multiple and reduced, which smooths lines
MAX_BOXES = 300  # more cannot be told apart
MAX_BARS = 50  # each makes the picture higher; 10,000 would take gigabytes
MAX_LABEL_MOVES = 12
MAX_LABEL_CHARS = 200
Colour = tuple[int, int, int]
Frame = tuple[float, float, float, float]  # left, top, right, bottom
_SATURATIONS = (0.72, 0.88, 0.58)
_VALUES = (0.98, 0.90, 1.0)


def colour(index: int) -> Colour:
    """Return a class's colour; consecutive classes differ strongly."""
    hue = (0.58 + index * 0.618034) % 1.0
    saturation = _SATURATIONS[index % 3]
    value = _VALUES[index // 3 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


class Canvas:
    """A request's upright picture.

    Methods draw in its original coordinates.
    """

    def __init__(self, body: memoryview, hints: Hints, max_pixels: int) -> None:
        from PIL import ImageFont, ImageOps

        picture, size = read_whole(body, max_pixels, LONGEST, hints)
        picture = _enlarged(picture)
        self._scale = (picture.width / size[0], picture.height / size[1])
        # A picture hardly larger than a line of text gets margins to write on.
        x = max(0, NARROWEST - picture.width)
        y = max(0, NARROWEST - picture.height)
        left = x // 2
        top = y // 2
        self._origin = (left, top)
        self._set_image(ImageOps.expand(picture, (left, top, x - left, y - top), PANEL))
        longest = max(self._image.size)
        self._line = max(2, round(longest / 270))
        self._rim = max(1, self._line // 3)
        self._font = ImageFont.load_default(max(13, round(longest / 44)))
        _, font_top, _, font_bottom = self._font.getbbox("Ág")
        self._text_bottom = font_bottom
        self._text_height = float(font_bottom - font_top)
        self._labels: list[Frame] = []

    def _set_image(self, image: Image) -> None:
        from PIL import ImageDraw

        self._image = image
        self._draw = ImageDraw.Draw(image)

    def file(self, kind: str) -> bytes:
        """Return the picture as a PNG or JPEG file."""
        file = CheckedFile()
        # compress_level applies to PNG, quality to JPEG.
        self._image.save(file, kind, compress_level=3, quality=JPEG_QUALITY)
        return file.getvalue()

    def boxes(self, entries: Sequence[tuple[Mapping[str, float], str, int]]) -> None:
        """Draw labelled frames for (box, text, class), the first on top.

        Labels come last, so no frame crosses one.
        """
        visible = entries[:MAX_BOXES]
        for box, _, index in reversed(visible):
            x = box["x"]
            y = box["y"]
            left, top = self._at(x, y)
            right, bottom = self._at(x + box["width"], y + box["height"])
            right = max(right - 1, left)
            bottom = max(bottom - 1, top)
            self._draw_box((left, top, right, bottom), colour(index))
        for box, text, index in visible:
            self._label(text, *self._at(box["x"], box["y"]), colour(index))

    def _draw_box(self, frame: Frame, shade: Colour) -> None:
        """Draw a frame with a dark rim, visible on a background of its own colour."""
        left, top, right, bottom = frame
        rim = self._rim
        radius = min(2 * self._line, (right - left) / 3, (bottom - top) / 3)
        outer = (left - rim, top - rim, right + rim, bottom + rim)
        self._draw.rounded_rectangle(
            outer, radius + rim, outline=PANEL, width=self._line + 2 * rim
        )
        self._draw.rounded_rectangle(frame, radius, outline=shade, width=self._line)

    def outline(self, points: Sequence[tuple[float, float]], index: int) -> None:
        """Draw a closed line through points (x, y) in a class's colour."""
        corners = [self._at(x, y) for x, y in points]
        closed = [*corners, *corners[:2]]
        rim_width = self._line + 2 * self._rim
        self._draw.line(closed, fill=PANEL, width=rim_width, joint="curve")
        self._draw.line(closed, fill=colour(index), width=self._line, joint="curve")

    def mask(self, classes: Array, area: Area, clear: Sequence[int] = ()) -> None:
        """Paint each class's colour over its pixels in an area.

        Args:
            classes: [rows, columns], stretched over the area.
            clear: classes that stay transparent.
        """
        import PIL.Image

        left, top = map(round, self._at(area.x, area.y))
        right, bottom = map(round, self._at(area.x + area.width, area.y + area.height))
        size = (max(1, right - left), max(1, bottom - top))
        colours, alphas = _painted(classes, clear)
        layer = PIL.Image.fromarray(colours)
        cover = PIL.Image.fromarray(alphas)
        self._image.paste(
            layer.resize(size, PIL.Image.Resampling.NEAREST),
            (left, top),
            cover.resize(size, PIL.Image.Resampling.BILINEAR),
        )

    def skeleton(
        self,
        points: Sequence[tuple[float, float] | None],
        bones: Sequence[tuple[int, int]],
        index: int,
    ) -> None:
        """Draw the visible points [(x, y)], and bones with two visible ends.

        Args:
            points: None for an invisible one.
            bones: pairs of positions in ``points``.
        """
        import PIL.Image

        size = (SMOOTH * self._image.width, SMOOTH * self._image.height)
        layer = PIL.Image.new("RGBA", size, (0, 0, 0, 0))
        spots = self._smooth_spots(points)
        lines = []
        for first, second in bones:
            if first in spots and second in spots:
                lines.append([spots[first], spots[second]])
        dots = list(spots.values())
        self._draw_skeleton(layer, dots, lines, colour(index))
        reduced = layer.resize(self._image.size, PIL.Image.Resampling.BOX)
        self._image.paste(reduced, (0, 0), reduced)

    def _draw_skeleton(
        self,
        layer: Image,
        spots: Sequence[tuple[float, float]],
        lines: Sequence[Sequence[tuple[float, float]]],
        shade: Colour,
    ) -> None:
        from PIL import ImageDraw

        draw = ImageDraw.Draw(layer)
        width = round(1.5 * SMOOTH * self._line)
        for line in lines:
            draw.line(line, fill=(*PANEL, SKELETON_ALPHA), width=width + 2 * SMOOTH)
        for line in lines:
            draw.line(line, fill=(*shade, SKELETON_ALPHA), width=width)
        radius = 1.1 * width
        edge = max(1, width // 3)
        for x, y in spots:
            frame = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(frame, fill=(*INK, 255), outline=(*PANEL, 255), width=edge)

    def _smooth_spots(
        self, points: Sequence[tuple[float, float] | None]
    ) -> dict[int, tuple[float, float]]:
        """Return the positions of visible points on the enlarged canvas."""
        spots = {}
        for number, point in enumerate(points):
            if point is not None:
                x, y = self._at(*point)
                spots[number] = (SMOOTH * x, SMOOTH * y)
        return spots

    def legend(self, entries: Sequence[tuple[str, int]]) -> None:
        """Draw names with colours in the lower left corner, as many as fit."""
        line = self._text_height * 1.5
        pad = self._text_height * 0.5
        swatch = self._text_height * 0.9
        fitting = int((self._image.height * 0.8 - 2 * pad) / line)
        rows = entries[: max(1, fitting)]
        if not rows:
            return
        widest = max(self._width(text) for text, _ in rows)
        text_left = 3 * pad + swatch
        right = min(text_left + widest + pad, self._image.width - pad)
        top = self._image.height - 2 * pad - line * len(rows)
        self._draw_panel((pad, top, right, self._image.height - pad))
        for row, (text, index) in enumerate(rows):
            middle = top + pad / 2 + line * (row + 0.5)
            self._draw_swatch(2 * pad, middle, swatch, colour(index))
            fitting_text = self._cut(text, right - text_left)
            self._draw.text(
                (text_left, middle), fitting_text, INK, self._font, anchor="lm"
            )

    def _draw_swatch(
        self, left: float, middle: float, size: float, shade: Colour
    ) -> None:
        half = size / 2
        frame = (left, middle - half, left + size, middle + half)
        self._draw.rounded_rectangle(frame, size / 4, fill=shade)

    def _draw_panel(self, frame: Frame) -> None:
        """Draw a translucent background for the legend."""
        import PIL.Image
        from PIL import ImageDraw

        cover = PIL.Image.new("L", self._image.size, 0)
        radius = self._text_height * 0.4
        ImageDraw.Draw(cover).rounded_rectangle(frame, radius, fill=LEGEND_ALPHA)
        self._image.paste(PANEL, (0, 0, *self._image.size), cover)

    def bars(self, entries: Sequence[tuple[str, float]]) -> None:
        """Draw a panel below the picture with a bar for each class.

        It shows the first MAX_BARS classes. Scores that are not probabilities are relative
        to the largest one.
        """
        rows = list(entries[:MAX_BARS])
        full = _full_score([score for _, score in rows])
        line = self._text_height * 2.3
        pad = self._text_height * 0.8
        top = self._image.height
        self._add_panel(round(2 * pad + line * max(1, len(rows))))
        if not rows:
            base = (pad, top + pad)
            self._draw_bar("nothing above the threshold", "", 0.0, base)
        for row, (text, score) in enumerate(rows):
            value = f"{score:.4g}"
            if full == 1.0:
                value = f"{score:.1%}"
            share = 0.0
            if full:
                share = score / full
            base = (pad, top + pad + line * row)
            self._draw_bar(text, value, min(1.0, max(0.0, share)), base)

    def _add_panel(self, height: int) -> None:
        """Add a panel below the picture; widen a narrow picture."""
        from PIL import ImageOps

        margin = max(0, round(SHORTEST * 0.75) - self._image.width)
        left = margin // 2
        border = (left, 0, margin - left, height)
        self._set_image(ImageOps.expand(self._image, border, PANEL))

    def _draw_bar(
        self, text: str, value: str, share: float, corner: tuple[float, float]
    ) -> None:
        """Draw a text, its value at the right, and a bar below."""
        pad, top = corner
        right = self._image.width - pad
        thick = max(3, self._text_height * 0.35)
        self._draw.text((right, top), value, INK, self._font, anchor="ra")
        room = right - pad - self._width(value or "0.0%") - pad
        self._draw.text((pad, top), self._cut(text, room), INK, self._font, anchor="la")
        below = top + self._text_bottom * 1.15
        frame = (pad, below, right, below + thick)
        self._draw.rounded_rectangle(frame, thick / 2, fill=MUTED)
        length = (right - pad) * share
        if length >= thick:
            filled = (pad, below, pad + length, below + thick)
            self._draw.rounded_rectangle(filled, thick / 2, fill=colour(0))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        """Return the canvas position of a point of the original picture."""
        left, top = self._origin
        return x * self._scale[0] + left, y * self._scale[1] + top

    def _label(self, text: str, left: float, top: float, shade: Colour) -> None:
        """Draw a filled label on a frame's upper edge.

        It moves inside if there is no room above, and down if another label is there.
        """
        pad = self._text_height * 0.3
        text = self._cut(text, self._image.width - 2 * pad)
        width = self._width(text) + 2 * pad
        height = self._text_height + 2 * pad
        x = max(0.0, min(left - self._line / 2, self._image.width - width))
        y = self._free_row(x, top, width, height)
        frame = (x, y, x + width, y + height)
        self._labels.append(frame)
        self._draw.rounded_rectangle(frame, pad, fill=shade)
        ink = _ink_on(shade)
        self._draw.text((x + pad, y + height / 2), text, ink, self._font, anchor="lm")

    def _free_row(self, x: float, top: float, width: float, height: float) -> float:
        """Return the top of a label that crosses none.

        After MAX_LABEL_MOVES it may cross another one.
        """
        y = top
        if top >= height:
            y = top - height
        for _ in range(MAX_LABEL_MOVES):
            crossing = self._crossing_label((x, y, x + width, y + height))
            if crossing is None or crossing[3] + height > self._image.height:
                break
            y = crossing[3] + 1
        return y

    def _crossing_label(self, frame: Frame) -> Frame | None:
        for label in self._labels:
            if _cross(label, frame):
                return label
        return None

    def _width(self, text: str) -> float:
        return float(self._font.getlength(text))

    def _cut(self, text: str, room: float) -> str:
        """Shorten a text to the available width."""
        text = " ".join(text.split())[:MAX_LABEL_CHARS]
        if self._width(text) <= room:
            return text
        for length in range(len(text), 0, -1):
            shortened = text[:length] + "…"
            if self._width(shortened) <= room:
                return shortened
        return "…"


def _enlarged(picture: Image) -> Image:
    """Enlarge a picture whose longer side is too short to draw on."""
    grow = SHORTEST / max(picture.size)
    if grow <= 1:
        return picture
    width = max(1, round(picture.width * grow))
    height = max(1, round(picture.height * grow))
    return picture.resize((width, height))


def _painted(classes: Array, clear: Sequence[int]) -> tuple[Array, Array]:
    """Return the colours and the opacity of a map of classes, uint8."""
    kinds, positions = np.unique(classes, return_inverse=True)
    positions = positions.reshape(classes.shape)
    colours = np.array([colour(int(kind)) for kind in kinds], np.uint8)
    is_opaque = ~np.isin(kinds, list(clear))
    alphas = (is_opaque * round(255 * MASK_SHARE)).astype(np.uint8)
    return colours[positions], alphas[positions]


def _full_score(scores: Sequence[float]) -> float:
    """Return the score of a full bar.

    It is 1 for probabilities, else the largest score.
    """
    if all(0 <= score <= 1 for score in scores):
        return 1.0
    return max(abs(score) for score in scores)


def _ink_on(shade: Colour) -> Colour:
    """Return the colour of a text on a coloured background."""
    red, green, blue = shade
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    if luminance > BRIGHT:
        return BLACK
    return WHITE


def _cross(first: Frame, second: Frame) -> bool:
    """Return whether two frames overlap."""
    left, top, right, bottom = first
    return (
        left < second[2]
        and second[0] < right
        and top < second[3]
        and second[1] < bottom
    )
