"""The table ``[image]`` of a manifest; see ``docs/models.md``."""

from __future__ import annotations

from typing import NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, with_defaults


class ImageOptions(NamedTuple):
    """The way from a picture to the input tensor: (pixel - mean) / std with pixels from 0 to 255.

    None leaves a key to the model's files; ``size`` is (width, height), for inputs whose shape leaves them open.
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


def _image(table: TomlTable) -> ImageOptions:
    width, height = table.integer("width", 1, 1 << 14), table.integer("height", 1, 1 << 14)
    if (width is None) != (height is None):
        raise table.fault("width" if width is None else "height", "is missing; give both")
    return with_defaults(
        ImageOptions,
        color=table.choice("color", ("rgb", "bgr", "grayscale")),
        resize=table.choice("resize", ("stretch", "crop", "letterbox")),
        mean=table.numbers("mean"),
        std=table.numbers("std", nonzero=True),
        invert=table.choice("invert", ("never", "always", "auto")),
        resample=table.choice("resample", ("nearest", "bilinear", "bicubic", "lanczos")),
        crop_fraction=table.number("crop_fraction", 0.01, 1.0),
        fill=table.numbers("fill"),
        size=(width, height) if width else None,
    )


IMAGE = Section("image", ImageOptions, _image)
