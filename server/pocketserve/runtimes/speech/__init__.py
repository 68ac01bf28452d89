"""Whisper models: an encoder and a decoder, as on the hub."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, late
from pocketserve.runtimes.onnx import INSTALL

FORMATS = (
    ModelFormat(
        "whisper",
        "pocketserve.runtimes.speech.onnx",
        file_starts=("encoder_model",),
        part_starts=("decoder_",),
        claims=late(f"{__name__}.files.is_whisper_onnx"),
        packages=("onnxruntime",),
        install=INSTALL,
        own_threads=True,
        other_files=late(f"{__name__}.files.decoder_files"),
    ),
)
