"""Speech models in the layouts of the hub: Whisper, and CTC models as safetensors."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, late
from pocketserve.runtimes.onnx import INSTALL
from pocketserve.runtimes.torch import INSTALL as INSTALL_TORCH

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
        task=late(f"{__name__}.files.speech_task"),
        other_files=late(f"{__name__}.files.decoder_files"),
    ),
    ModelFormat(
        "whisper-torch",
        "pocketserve.runtimes.speech.pytorch",
        file_starts=("model.safetensors",),
        claims=late(f"{__name__}.files.is_whisper_weights"),
        packages=("torch",),
        install=INSTALL_TORCH,
        own_threads=True,
        task=late(f"{__name__}.files.speech_task"),
        last_choice=True,
        other_files=late(f"{__name__}.files.files_of_weights"),
    ),
    ModelFormat(
        "ctc-torch",
        "pocketserve.runtimes.speech.ctc_pytorch",
        file_starts=("model.safetensors",),
        claims=late(f"{__name__}.files.is_ctc_weights"),
        packages=("torch",),
        install=INSTALL_TORCH,
        own_threads=True,
        task=late(f"{__name__}.files.speech_task"),
        last_choice=True,
        other_files=late(f"{__name__}.files.files_of_weights"),
    ),
)
