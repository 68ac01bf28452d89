"""Advise users who ask for an unsupported engine."""

from __future__ import annotations

from typing import NamedTuple

from pocketserve.runtimes.devices import device_name


class OtherEngine(NamedTuple):
    """An engine that Pocketserve does not use directly.

    Attributes:
        words: its names in lower case, as in ``--to``, ``--device`` or a manifest.
        advice: one sentence with the reason and the closest alternative.
    """

    words: tuple[str, ...]
    advice: str


ENGINES = (
    OtherEngine(
        ("openvino", "ov", "ir"),
        "OpenVINO runs ONNX versions where onnxruntime-openvino is installed in place of onnxruntime, by providers = "
        '["OpenVINOExecutionProvider"] in model.toml; `pocketserve convert MODEL --to openvino` writes its own files',
    ),
    OtherEngine(
        ("coreml", "core-ml", "mlprogram", "mlpackage"),
        "Core ML runs on Apple's systems only, which Pocketserve does not serve from; `pocketserve convert MODEL --to "
        "coreml` writes its package on Linux, too",
    ),
    OtherEngine(
        ("tensorrt", "trt", "nvtensorrtrtx"),
        "TensorRT runs on NVIDIA's graphics cards only, and a compiled engine runs only "
        "on the GPU model it was built for; on a desktop with one, "
        'install onnxruntime-gpu and serve an ONNX version with providers = ["TensorrtExecutionProvider"]',
    ),
    OtherEngine(
        ("nnapi",),
        "NNAPI is a part of Android that Android 15 deprecates, and no Termux package can use it; serve a "
        "TFLite version with XNNPACK, or with the chip maker's delegate",
    ),
    OtherEngine(
        ("tract",),
        "Tract is a library to embed in your own program, and reads ONNX files as they are; `pocketserve convert MODEL "
        "--to onnx` makes one, which ONNX Runtime serves here",
    ),
    OtherEngine(
        ("mlkit", "ml-kit", "ml_kit"),
        "ML Kit runs TFLite files inside an Android app and has no interface for Python; `pocketserve convert MODEL "
        "--to tflite` makes such a file, and Pocketserve serves the same one",
    ),
)


def engine_advice(*words: object) -> str | None:
    """Return the advice for the first engine that the words name, or None."""
    names = {device_name(word) for word in words if isinstance(word, str)}
    for engine in ENGINES:
        if not names.isdisjoint(engine.words):
            return engine.advice
    return None


def engine_note(*words: object) -> str:
    """Return the advice as the end of a sentence, or an empty text."""
    advice = engine_advice(*words)
    if advice is not None:
        return f"; {advice}"
    return ""
