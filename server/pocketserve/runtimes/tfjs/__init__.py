"""TensorFlow.js models, run by Node."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, late

FORMATS = (
    ModelFormat(
        "tfjs",
        "pocketserve.runtimes.tfjs.session",
        marker="model.json",
        by_name=True,
        missing=late(f"{__name__}.packages.missing"),
        devices=late(f"{__name__}.packages.tfjs_devices"),
        starts_processes=True,
        whole_folder=True,
    ),
)
