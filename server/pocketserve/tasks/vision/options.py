"""The table ``[image]`` of a manifest; see ``docs/models.md``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, declared_values


class ImageOptions(NamedTuple):
    """The way from a picture to the input tensor: (pixel - mean) / std with pixels from 0 to 255.

    None leaves a key to the model's files; ``size`` is (width, height), for inputs whose shape leaves them open.
    """

    color: Annotated[str | None, TomlTable.choice, ("rgb", "bgr", "grayscale")] = None
    resize: Annotated[str | None, TomlTable.choice, ("stretch", "crop", "letterbox")] = None
    mean: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    std: Annotated[tuple[float, ...] | None, partial(TomlTable.numbers, nonzero=True)] = None
    invert: Annotated[str, TomlTable.choice, ("never", "always", "auto")] = "never"
    resample: Annotated[str | None, TomlTable.choice, ("nearest", "bilinear", "bicubic", "lanczos")] = None
    crop_fraction: Annotated[float | None, TomlTable.number, 0.01, 1.0] = None
    fill: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    size: tuple[int, int] | None = None


def _image(table: TomlTable) -> ImageOptions:
    width, height = (table.integer(key, 1, 1 << 14) for key in ("width", "height"))
    if (width is None) != (height is None):
        raise table.fault("width" if width is None else "height", "is missing; give both")
    size = None if width is None or height is None else (width, height)
    return ImageOptions(**declared_values(ImageOptions, table), size=size)


IMAGE = Section("image", ImageOptions, _image)
