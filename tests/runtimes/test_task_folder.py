"""Read Hugging Face folders for tasks without a framework."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pocketserve.formats import DamagedFileError
from pocketserve.repository.files import version_files
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    RuntimeMissingError,
)
from pocketserve.runtimes.hugging_face import library
from pocketserve.runtimes.hugging_face.task_folder import read_task_folder
from pocketserve.runtimes.hugging_face.task_session import (
    LIBRARY_BYTES,
    RUNTIME,
    task_folder_bytes,
)
from pocketserve_wire import ApiError, ErrorCode

VALUES = 6


def write(folder: Path, class_name: Any = "ViTForImageClassification") -> Path:
    """Write a folder with one tensor of half floats; return ``config.json``."""
    folder.mkdir()
    entry = {
        "dtype": "F16",
        "shape": [2, 3],
        "data_offsets": [0, 2 * VALUES],
    }
    header = json.dumps({"w": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(2 * VALUES)
    (folder / "model.safetensors").write_bytes(content)
    config = folder / "config.json"
    config.write_text(json.dumps({"architectures": [class_name]}))
    return config


@pytest.mark.parametrize(
    "class_name",
    [
        "ViTForImageClassification",
        "DeiTForImageClassificationWithTeacher",
        "BertForSequenceClassification",
        "ASTForAudioClassification",
        "DetrForObjectDetection",
        "SegformerForSemanticSegmentation",
        "MaskFormerForInstanceSegmentation",
        "RobertaForQuestionAnswering",
        "BertModel",
    ],
)
def test_architectures_of_tasks_are_models(tmp_path: Path, class_name: str) -> None:
    config = write(tmp_path / "m", class_name)
    (tmp_path / "m" / "modeling_own.py").write_text("")
    version = scan(tmp_path)["m"].versions["auto-model"]
    assert version.path == config
    names = [path.name for path in version_files(version)]
    assert names == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("files", "claims", "others"),
    [
        (["pytorch_model.bin"], True, []),
        (["pytorch_model.bin", "tf_model.h5"], True, ["keras"]),
        (["pytorch_model.bin", "model.onnx"], False, ["onnx"]),
        (["pytorch_model-00001-of-00002.bin", "model.tflite"], False, ["tflite"]),
        (["model.safetensors", "model.onnx"], True, ["onnx"]),
    ],
)
@pytest.mark.parametrize(
    ("class_name", "format"),
    [
        ("BertModel", "auto-model"),
        ("LlamaForCausalLM", "transformers"),
    ],
)
def test_pickles_claim_no_folder_with_a_model_that_can_be_served(
    tmp_path: Path,
    class_name: str,
    format: str,
    files: list[str],
    claims: bool,
    others: list[str],
) -> None:
    config = write(tmp_path / "m", class_name)
    config.with_name("model.safetensors").unlink()
    for name in files:
        config.with_name(name).write_bytes(b"x")
    expected = {*others, format} if claims else {*others}
    assert set(scan(tmp_path)["m"].versions) == expected


@pytest.mark.parametrize(
    "class_name",
    [
        "BertForMaskedLM",
        "",
        "no name",
        3,
        "x" * 200,
    ],
)
def test_other_architectures_are_none(tmp_path: Path, class_name: Any) -> None:
    write(tmp_path / "m", class_name)
    assert not scan(tmp_path)["m"].versions


def test_an_embedder_may_have_the_head_of_its_training(tmp_path: Path) -> None:
    config = write(tmp_path / "m", "MPNetForMaskedLM")
    config.with_name("modules.json").write_text("[]")
    assert read_task_folder(config).is_embedder


def test_memory_is_that_of_single_precision(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    expected = LIBRARY_BYTES + 4 * VALUES
    assert task_folder_bytes(config, {}, 0) == expected
    with pytest.raises(ApiError, match="the memory budget is 1 MiB") as error:
        task_folder_bytes(config, {}, 2**20)
    assert error.value.code == ErrorCode.MEMORY_BUDGET


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    weights = config.with_name("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match="truncated"):
        read_task_folder(config)


def test_a_changed_configuration_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    config.write_text("{}")
    with pytest.raises(DamagedFileError, match="no architecture"):
        read_task_folder(config)


def test_a_missing_library_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / "m")
    monkeypatch.setattr(library, "PACKAGES", ("no_such_package",))
    with pytest.raises(RuntimeMissingError, match=r"pip install 'pocketserve\[trans"):
        RUNTIME.open(ModelSource(config))
