"""The index names the task of models that were never loaded, where their format has one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import gguf_files
from conftest import StartServer
from folder_files import CONFIG, write_safetensors


def test_unloaded_models_have_their_formats_task(
    new_server: StartServer, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    gguf_files.write_tiny(models / "chat.gguf")
    gguf_files.write_tiny(models / "embedder.gguf", llama__pooling_type=1)
    (models / "damaged.gguf").write_bytes(b"GGUF")
    for name, config in (("folder", CONFIG), ("torch", {"model_type": "whisper"})):
        (models / name).mkdir()
        (models / name / "config.json").write_text(json.dumps(config))
        weights = {"one": np.zeros(4, np.float32)}
        write_safetensors(models / name / "model.safetensors", weights)
    (models / "folder" / "tokenizer.json").write_text("{}")
    (models / "onnx").mkdir()
    (models / "onnx" / "config.json").write_text('{"model_type": "whisper"}')
    (models / "onnx" / "encoder_model.onnx").write_bytes(b"never loaded")
    server = new_server(models)
    index = server.call("POST", "/v2/repository/index").json()
    tasks = {entry["name"]: entry.get("task") for entry in index}
    assert tasks == {
        "chat": "text-generation",
        "embedder": "text-embedding",
        "damaged": "",
        "folder": "text-generation",
        "torch": "speech-to-text",
        "onnx": "speech-to-text",
    }
