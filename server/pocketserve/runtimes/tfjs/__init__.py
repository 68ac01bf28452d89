"""TensorFlow.js models, run by Node."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat


def _missing() -> str | None:
    from pocketserve.runtimes.tfjs.packages import missing  # late: not for other formats

    return missing()


FORMATS = (
    ModelFormat(
        "tfjs",
        "pocketserve.runtimes.tfjs.session",
        marker="model.json",
        by_name=True,
        missing=_missing,
        starts_processes=True,
        whole_folder=True,
    ),
)
