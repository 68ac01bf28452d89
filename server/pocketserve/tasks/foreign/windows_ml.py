"""Fields of Windows ML in an ONNX file's metadata, which Azure Custom Vision writes.

Other texts in the metadata are descriptions, so unknown ones are not reported, except in the same namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key

PREFIX = "Image."
PICTURE_TASKS = (
    "image-classification",
    "object-detection",
    "image-segmentation",
    "pose-estimation",
)
_SOURCE = "onnx/onnx, docs/MetadataProps.md"
_APPLIED = f"{_SOURCE}; the neutral values are applied"


def has_image_fields(content: Mapping[str, Any]) -> bool:
    """Return whether the metadata describe pictures."""
    return any(name.startswith(PREFIX) for name in content)


TABLE = ForeignFile(
    "the model file's metadata",
    (
        Key(
            "Image.BitmapPixelFormat",
            Effect.UNSUPPORTED,
            _APPLIED,
            neutral=("Gray8", "Rgb8", "Bgr8"),
            tasks=PICTURE_TASKS,
        ),
        Key(
            "Image.ColorSpaceGamma",
            Effect.UNSUPPORTED,
            _SOURCE,
            neutral=("SRGB",),
            tasks=PICTURE_TASKS,
        ),
        Key(
            "Image.NominalPixelRange",
            Effect.UNSUPPORTED,
            _APPLIED,
            neutral=("NominalRange_0_255", "Normalized_0_1", "Normalized_1_1"),
            tasks=PICTURE_TASKS,
        ),
        Key("Image.*", Effect.UNSUPPORTED, _SOURCE, tasks=PICTURE_TASKS),
    ),
    reports_unknown=False,
    belongs=has_image_fields,
    is_inside=True,
)
