"""Where a picture's pixels went in the model's input, and the way back."""

from __future__ import annotations

import numpy as np

from pocketserve.tensors import Array
from pocketserve_wire.records import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """A part of a picture in its pixels, from its upper left corner. Whole pixels are from edge to edge."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Placement:
    """How the upright picture lies in the model's input.

    ``source`` of the picture was scaled to ``target`` of the input; what is outside of ``target`` is filling.

    Attributes:
        picture: (width, height) of the upright picture that was sent.
        input: (width, height) of the model's input.
    """

    picture: tuple[int, int]
    input: tuple[int, int]
    source: Area
    target: Area

    def to_picture(self, points: Array) -> Array:
        """Points [..., (x, y)] of the input, in its pixels, to pixels of the picture; not cut at its edges."""
        source, target = self.source, self.target
        scale = np.array([source.width / target.width, source.height / target.height])
        moved: Array = (points - np.array([target.x, target.y])) * scale + np.array([source.x, source.y])
        return moved

    def to_input(self, points: Array) -> Array:
        """The other way round."""
        source, target = self.source, self.target
        scale = np.array([target.width / source.width, target.height / source.height])
        moved: Array = (points - np.array([source.x, source.y])) * scale + np.array([target.x, target.y])
        return moved

    def boxes_to_picture(self, boxes: Array) -> Array:
        """Boxes [n, (left, top, right, bottom)] in pixels of the input to those of the picture, cut at its edges."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2).astype(np.float64))
        cut: Array = np.clip(corners, 0, np.array(self.picture)).reshape(-1, 4)
        return cut


def whole(size: tuple[int, int]) -> Placement:
    """An input that is the picture itself."""
    area = Area(0, 0, *size)
    return Placement(size, size, area, area)


def place(
    picture: tuple[int, int], size: tuple[int, int], how: str, region: Area | None = None, crop_fraction: float = 1.0
) -> Placement:
    """Choose what of a picture goes where in an input.

    Args:
        picture, size: (width, height) of the upright picture and of the input.
        how: ``stretch`` the whole, ``crop`` its middle in the input's proportions, or ``letterbox`` the whole.
        region: the part of the picture that counts; None is all of it.
        crop_fraction: share of the largest fitting crop that is kept.
    """
    source = region or Area(0, 0, *picture)
    target = Area(0, 0, *size)
    if how == "crop":
        scale = min(source.width / size[0], source.height / size[1]) * crop_fraction
        width, height = size[0] * scale, size[1] * scale
        source = Area(source.x + (source.width - width) / 2, source.y + (source.height - height) / 2, width, height)
    elif how == "letterbox":
        scale = min(size[0] / source.width, size[1] / source.height)
        # Whole pixels: the filling has a sharp edge.
        width = max(1, min(size[0], round(source.width * scale)))
        height = max(1, min(size[1], round(source.height * scale)))
        target = Area((size[0] - width) // 2, (size[1] - height) // 2, width, height)
    return Placement(picture, size, source, target)


def box_entry(box: Array) -> dict[str, float]:
    """A box (left, top, right, bottom) as answers give it, in pixels rounded to hundredths."""
    left, top, right, bottom = (float(value) for value in box)
    return {
        "x": round(left, 2),
        "y": round(top, 2),
        "width": round(right - left, 2),
        "height": round(bottom - top, 2),
    }
