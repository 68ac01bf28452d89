"""Place pictures in a model's input, and map points and boxes back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array


class Area(NamedTuple):
    """A part of a picture in pixels, from the upper left corner.

    A whole pixel reaches from edge to edge.
    """

    x: float
    y: float
    width: float
    height: float


class Placement(NamedTuple):
    """A picture's part, scaled to an input's part.

    Attributes:
        picture: (width, height) of the upright picture, as of ``input``.
        source: the part of the picture.
        target: the part of the input.
    """

    picture: tuple[int, int]  # (width, height), as of ``input``
    input: tuple[int, int]
    source: Area
    target: Area

    def to_picture(self, points: Array) -> Array:
        """Map points [..., (x, y)] from the input to the picture, without clipping."""
        source = np.array(self.source)
        target = np.array(self.target)
        moved: Array = (points - target[:2]) * (source[2:] / target[2:]) + source[:2]
        return moved

    def boxes_to_picture(self, boxes: Array) -> Array:
        """Map boxes [n, (left, top, right, bottom)] to the picture, clipped to it."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2).astype(np.float64))
        cut: Array = np.clip(corners, 0, np.array(self.picture)).reshape(-1, 4)
        return cut


class Sizing(NamedTuple):
    """A picture's size after another library's image processor.

    It scales first, then crops or pads. Only the first of ``exact``, ``shortest``, ``within``
    and ``cut`` that is set applies; without any of them the picture keeps its size. All pairs
    are (width, height).

    Attributes:
        exact: the size after scaling, ignoring proportions.
        shortest: length of the shorter side after scaling; proportions are kept.
        longest: limit of the longer side, together with ``shortest``.
        within: the picture is scaled to the largest size that fits into it.
        cut: share of the shorter side that is cut from the middle first and scaled to
            ``exact``.
        multiple: sides are rounded down to a multiple of this.
        multiple_above: sides are rounded up to a multiple of this.
        crop: the middle of the scaled picture is cut to it; a smaller picture gets an even
            border.
        pad: the scaled picture is padded to it at the right and at the bottom.
        rounds: the crop's position is rounded to the nearest pixel, and a border at the
            left and at the top down, as by torchvision; otherwise down and up.
    """

    exact: tuple[int, int] | None = None
    shortest: int = 0
    longest: int = 0
    within: tuple[int, int] | None = None
    cut: tuple[float, float] | None = None
    multiple: int = 1
    multiple_above: int = 1
    crop: tuple[int, int] | None = None
    pad: tuple[int, int] | None = None
    rounds: bool = False

    @property
    def result(self) -> tuple[int, int] | None:
        """Return the size of every result; None if it depends on the picture."""
        return self.crop or self.pad or self.exact

    def scaled(self, picture: tuple[float, float]) -> tuple[int, int]:
        """Return the size of a picture after scaling.

        The rounding is that of huggingface/transformers, image_transforms.py, and of torchvision's Resize.
        """
        if self.exact is not None:
            return self.exact
        width, height = picture
        if self.shortest:
            width, height = self._by_shortest_side(width, height)
        elif self.within is not None:
            scale = min(self.within[0] / width, self.within[1] / height)
            width = width * scale
            height = height * scale
        sides = (int(width), int(height))
        if self.multiple > 1:
            sides = (
                sides[0] - sides[0] % self.multiple,
                sides[1] - sides[1] % self.multiple,
            )
        sides = (max(1, sides[0]), max(1, sides[1]))
        return round_up(sides, self.multiple_above)

    def _by_shortest_side(self, width: float, height: float) -> tuple[float, float]:
        short = min(width, height)
        long = max(width, height)
        new_short = float(self.shortest)
        new_long = self.shortest * long / short
        if self.longest and new_long > self.longest:
            exact_short = self.longest * short / long
            new_short = float(round(exact_short))
            new_long = exact_short * long / short
        if width <= height:
            return (new_short, new_long)
        return (new_long, new_short)


def round_up(sides: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Return sides that are multiples of a number, and not smaller."""
    width, height = sides
    return -(-width // multiple) * multiple, -(-height // multiple) * multiple


def place_sized(
    picture: tuple[int, int], sizing: Sizing, region: Area | None = None
) -> Placement:
    """Place a picture as another library's image processor does.

    Args:
        picture: (width, height) of the upright picture.
        region: the part of the picture that counts; None is all of it.
    """
    source = region or Area(0, 0, *picture)
    if sizing.cut is not None:
        source = _middle(source, sizing.cut)
    scaled = sizing.scaled((source.width, source.height))
    size = sizing.crop or sizing.pad or scaled
    x, width, target_x, target_width = _visible(
        source.x, source.width, scaled[0], size[0], sizing
    )
    y, height, target_y, target_height = _visible(
        source.y, source.height, scaled[1], size[1], sizing
    )
    visible = Area(x, y, width, height)
    return Placement(
        picture, size, visible, Area(target_x, target_y, target_width, target_height)
    )


def _middle(area: Area, share: tuple[float, float]) -> Area:
    """Return an area's middle, in whole pixels; it may be empty.

    Its sides are shares of the area's shorter side.
    """
    shorter = min(area.width, area.height)
    width = min(area.width, int(share[0] * shorter))
    height = min(area.height, int(share[1] * shorter))
    x = area.x + (area.width - width) // 2
    y = area.y + (area.height - height) // 2
    return Area(x, y, width, height)


def _visible(
    start: float, length: float, scaled: int, size: int, sizing: Sizing
) -> tuple[float, float, int, int]:
    """Return one axis of a placement.

    The numbers are start and length in the picture, then start and length in the input.
    """
    if scaled <= size:
        border = 0
        if sizing.crop is not None:
            border = (size - scaled + (not sizing.rounds)) // 2
        return start, length, border, scaled
    cut = round((scaled - size) / 2) if sizing.rounds else (scaled - size) // 2
    ratio = length / scaled
    return start + cut * ratio, size * ratio, 0, size


def place(
    picture: tuple[int, int],
    size: tuple[int, int],
    resize: str,
    region: Area | None = None,
    crop_fraction: float = 1.0,
) -> Placement:
    """Place a picture in an input.

    Args:
        picture: (width, height) of the upright picture.
        size: (width, height) of the input.
        resize: ``stretch`` the whole, ``crop`` its middle in the input's proportions, or
            ``letterbox`` the whole.
        region: the part of the picture that counts; None is all of it.
        crop_fraction: share of the largest fitting crop that is kept.
    """
    source = region or Area(0, 0, *picture)
    target = Area(0, 0, *size)
    if resize == "crop":
        scale = min(source.width / size[0], source.height / size[1]) * crop_fraction
        width = size[0] * scale
        height = size[1] * scale
        source = Area(
            source.x + (source.width - width) / 2,
            source.y + (source.height - height) / 2,
            width,
            height,
        )
    elif resize == "letterbox":
        scale = min(size[0] / source.width, size[1] / source.height)
        # Whole pixels: the filling has a sharp edge.
        width = max(1, min(size[0], round(source.width * scale)))
        height = max(1, min(size[1], round(source.height * scale)))
        target = Area((size[0] - width) // 2, (size[1] - height) // 2, width, height)
    return Placement(picture, size, source, target)


def box_entry(box: Array) -> dict[str, float]:
    """Return a box (left, top, right, bottom) as an entry, rounded to hundredths."""
    left, top, right, bottom = box.tolist()
    return {
        "x": round(left, 2),
        "y": round(top, 2),
        "width": round(right - left, 2),
        "height": round(bottom - top, 2),
    }
