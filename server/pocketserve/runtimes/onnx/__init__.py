"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, Requirement, late

FRAMEWORK = Requirement(
    "onnxruntime", ".onnx models", "onnxruntime", "python-onnxruntime"
)
INSTALL = f"pip install 'pocketserve[onnx]'; in Termux: pkg install {FRAMEWORK.termux}"

FORMATS = (
    ModelFormat(
        "onnx",
        "pocketserve.runtimes.onnx.session",
        suffixes=(".onnx",),
        packages=("onnxruntime",),
        install=INSTALL,
        frameworks=(FRAMEWORK,),
        own_threads=True,
        metadata=late(f"{__name__}.description.read_onnx_metadata"),
        associated_files=late(f"{__name__}.description.read_carried_files"),
        class_outputs=late(f"{__name__}.class_names.read_class_outputs"),
        other_files=late(f"{__name__}.check.external_files"),
        devices=late(f"{__name__}.native.onnx_devices"),
        layers=late(f"{__name__}.layers.open_onnx_layers"),
        triton="onnxruntime",
    ),
)
