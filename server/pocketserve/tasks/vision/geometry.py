"""The placement of a picture in the model's input, and points and boxes of the input in the picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array


class Area(NamedTuple):
    """A part of a picture in its pixels, from its upper left corner. Whole pixels are from edge to edge."""

    x: float
    y: float
    width: float
    height: float


class Placement(NamedTuple):
    """``source`` of the upright picture, scaled to ``target`` of the input; outside of ``target`` is filling."""

    picture: tuple[int, int]  # (width, height), as of ``input``
    input: tuple[int, int]
    source: Area
    target: Area

    def to_picture(self, points: Array) -> Array:
        """Move points [..., (x, y)] from pixels of the input to those of the picture; not cut at its edges."""
        source, target = np.array(self.source), np.array(self.target)
        moved: Array = (points - target[:2]) * (source[2:] / target[2:]) + source[:2]
        return moved

    def boxes_to_picture(self, boxes: Array) -> Array:
        """Move boxes [n, (left, top, right, bottom)] from the input to the picture, cut at its edges."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2).astype(np.float64))
        cut: Array = np.clip(corners, 0, np.array(self.picture)).reshape(-1, 4)
        return cut


def place(
    picture: tuple[int, int], size: tuple[int, int], resize: str, region: Area | None = None, crop_fraction: float = 1.0
) -> Placement:
    """Choose what of a picture goes where in an input.

    Args:
        picture, size: (width, height) of the upright picture and of the input.
        resize: ``stretch`` the whole, ``crop`` its middle in the input's proportions, or ``letterbox`` the whole.
        region: the part of the picture that counts; None is all of it.
        crop_fraction: share of the largest fitting crop that is kept.
    """
    source = region or Area(0, 0, *picture)
    target = Area(0, 0, *size)
    if resize == "crop":
        scale = min(source.width / size[0], source.height / size[1]) * crop_fraction
        width, height = size[0] * scale, size[1] * scale
        source = Area(source.x + (source.width - width) / 2, source.y + (source.height - height) / 2, width, height)
    elif resize == "letterbox":
        scale = min(size[0] / source.width, size[1] / source.height)
        # Whole pixels: the filling has a sharp edge.
        width = max(1, min(size[0], round(source.width * scale)))
        height = max(1, min(size[1], round(source.height * scale)))
        target = Area((size[0] - width) // 2, (size[1] - height) // 2, width, height)
    return Placement(picture, size, source, target)


def box_entry(box: Array) -> dict[str, float]:
    """Return a box (left, top, right, bottom) as answers give it, in pixels rounded to hundredths."""
    left, top, right, bottom = box.tolist()
    return {"x": round(left, 2), "y": round(top, 2), "width": round(right - left, 2), "height": round(bottom - top, 2)}
