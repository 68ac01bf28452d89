"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pocketserve.runtimes.model_format import ModelFormat, Requirement

FRAMEWORK = Requirement("onnxruntime", ".onnx models", "onnxruntime", "python-onnxruntime")
INSTALL = f"pip install 'pocketserve[onnx]'; in Termux: pkg install {FRAMEWORK.termux}"


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
        frameworks=(FRAMEWORK,),
        own_threads=True,
        other_files=_external_data,
        triton="onnxruntime",
    ),
)
