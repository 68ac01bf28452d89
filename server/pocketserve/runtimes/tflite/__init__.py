"""TensorFlow Lite models."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, Requirement, late

FRAMEWORKS = (
    Requirement("ai_edge_litert.interpreter", ".tflite models", "ai-edge-litert"),
    Requirement(
        "tflite_runtime.interpreter",
        ".tflite models",
        "tflite-runtime",
        "python-tflite-runtime",
    ),
)
INSTALL = (
    f"pip install 'pocketserve[tflite]'; in Termux: pkg install {FRAMEWORKS[1].termux}"
)

FORMATS = (
    ModelFormat(
        "tflite",
        "pocketserve.runtimes.tflite.session",
        suffixes=(".tflite", ".lite"),
        magic=((4, b"TFL3"),),
        packages=("ai_edge_litert", "tflite_runtime", "tensorflow"),
        install=INSTALL,
        frameworks=FRAMEWORKS,
        own_threads=True,
        code_options=("delegate", "delegate_options"),
        metadata=late(f"{__name__}.description.read_metadata"),
        associated_files=late(f"{__name__}.description.read_associated_files"),
        properties=late(f"{__name__}.description.read_properties"),
        devices=late(f"{__name__}.delegates.tflite_devices"),
        layers=late(f"{__name__}.layers.open_tflite_layers"),
    ),
)
