"""Sections and names of the tasks on pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pocketserve.repository.sections.base import Section
from pocketserve.repository.toml_table import Table

TASKS = ("image-classification",)


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How a picture becomes the input tensor: (pixel - mean) / std with pixels from 0 to 255.

    Attributes:
        color: ``rgb``, ``bgr`` or ``grayscale``; None takes what the input's channels say.
        resize: ``stretch``, ``crop`` or ``letterbox``; None leaves it to the file, else ``stretch``.
        mean, std: one number, or one per channel.
        invert: ``never``, ``always`` or ``auto``.
        resample: ``nearest``, ``bilinear``, ``bicubic`` or ``lanczos``; None leaves it to the file, else bilinear.
        crop_fraction: with ``crop``: the share of the shorter side that is kept.
        fill: with ``letterbox``: the grey or colour of the bars, 0 to 255.
        size: (width, height) for inputs whose shape leaves them open.
    """

    color: str | None = None
    resize: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    invert: str = "never"
    resample: str | None = None
    crop_fraction: float | None = None
    fill: tuple[float, ...] | None = None
    size: tuple[int, int] | None = None


def _image(table: Table) -> ImageOptions:
    width, height = table.integer("width", 1, 1 << 14), table.integer("height", 1, 1 << 14)
    if (width is None) != (height is None):
        raise table.fault("width" if width is None else "height", "is missing; give both")
    return ImageOptions(
        color=table.choice("color", ("rgb", "bgr", "grayscale")),
        resize=table.choice("resize", ("stretch", "crop", "letterbox")),
        mean=table.numbers("mean"),
        std=table.numbers("std", nonzero=True),
        invert=table.choice("invert", ("never", "always", "auto")) or "never",
        resample=table.choice("resample", ("nearest", "bilinear", "bicubic", "lanczos")),
        crop_fraction=table.number("crop_fraction", 0.01, 1.0),
        fill=table.numbers("fill"),
        size=None if width is None or height is None else (width, height),
    )


SECTIONS: Mapping[str, Section] = {"image": Section(ImageOptions, _image)}
