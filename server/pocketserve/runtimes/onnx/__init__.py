"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pocketserve.runtimes.model_format import ModelFormat

INSTALL = "pip install 'pocketserve[onnx]'; in Termux: pkg install python-onnxruntime"


def _external_data(path: Path) -> Iterable[str]:
    from pocketserve.runtimes.onnx.check import check_model  # late: not for other formats

    return check_model(path, may_change=True).locations


FORMATS = (
    ModelFormat(
        "onnx",
        "pocketserve.runtimes.onnx.session",
        suffixes=(".onnx",),
        packages=("onnxruntime",),
        install=INSTALL,
        own_threads=True,
        other_files=_external_data,
        triton="onnxruntime",
    ),
)
