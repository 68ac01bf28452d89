"""Export a models folder as Triton's repository, and run its code on a stand-in."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from places import MODELS, copy_folder
from pocketserve.cli import main
from pocketserve.config import load_config
from pocketserve.repository.triton_config import parse
from pocketserve.service import Service
from pocketserve_scale.triton import MODEL_CODE, export_models
from scalar_model import scalar_model
from sequence_models import FEEDBACK, running_sum

GOLDEN = """\
name: "digits.tflite-int8"
backend: "python"
max_batch_size: 0  # the shapes hold the batch already
input [
  { name: "image" data_type: TYPE_FP32 dims: [ -1, 8, 8, 1 ] }
]
output [
  { name: "scores" data_type: TYPE_FP32 dims: [ -1, 10 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "model" value: { string_value: "digits" } }
parameters { key: "version" value: { string_value: "tflite-int8" } }
parameters { key: "models_dir" value: { string_value: "FOLDER" } }
"""


def export(models: Path, target: Path) -> list[Any]:
    service = Service(
        load_config(
            {
                "models_dir": models,
                "quarantine": False,
                "state_dir": target.parent / "state",
            }
        )
    )
    try:
        return export_models(service, models, target)
    finally:
        service.close()


def test_the_embedded_models_are_exported(models_copy: Path, tmp_path: Path) -> None:
    """Each version is a Triton model with equal code.

    Omissions have a reason.
    """
    rows = export(models_copy, tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {
        "digits",
        "digits.tflite",
        "digits.tflite-int8",
        "petals",
        "petals.tflite",
    } <= written
    assert {name for row in rows for name in row.names} == written
    text = (tmp_path / "out" / "digits.tflite-int8" / "config.pbtxt").read_text()
    assert text == GOLDEN.replace("FOLDER", str(models_copy))
    default = (tmp_path / "out" / "digits" / "config.pbtxt").read_text()
    assert 'name: "digits"\n' in default
    assert 'string_value: "tflite" }' in default
    assert {path.read_text() for path in (tmp_path / "out").rglob("model.py")} == {
        MODEL_CODE
    }
    assert all(row.names or row.reason for row in rows)
    reasons = {row.version: row.reason for row in rows if row.model == "digits"}
    assert reasons["tflite"] == ""
    assert "torch" in reasons
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


@pytest.mark.onnx
def test_scalars_are_exported_and_stateful_models_are_not(tmp_path: Path) -> None:
    """A scalar has one dimension in Triton.

    Odd paths are quoted.
    """
    models = tmp_path / 'mödels "x" \\'
    for name in ("double", "sum"):
        (models / name).mkdir(parents=True)
    scalar_model(models / "double" / "double.onnx")
    running_sum(models / "sum" / "sum.onnx", 2)
    (models / "sum" / "model.toml").write_text(FEEDBACK)
    rows = {row.model: row for row in export(models, tmp_path / "out")}
    assert not rows["sum"].names
    assert rows["sum"].reason.startswith("it keeps state")
    text = (tmp_path / "out" / "double" / "config.pbtxt").read_text()
    config = parse(text)
    assert config["input"] == [
        {"name": ["x"], "data_type": ["TYPE_FP64"], "dims": ["1"]}
    ]
    assert text.isascii()
    assert text.count('m\\303\\266dels \\042x\\042 \\134"') == 1


def test_impossible_names_are_omitted(tmp_path: Path) -> None:
    """They are duplicates in Triton, or invalid folder names."""
    models = tmp_path / "models"
    long = 128 * "m"
    version = 127 * "v"
    for model, name in (
        ("a", "b.c"),
        ("a.b", "c"),
        (long, version),
    ):
        copy_folder(MODELS / "petals", models / model)
        (models / model / "model.toml").write_text(
            f'[versions."{name}"]\nfile = "petals.tflite"\n'
        )
    rows = {}
    for row in export(models, tmp_path / "out"):
        rows[(row.model, row.version)] = row
    assert rows["a", "b.c"].names == ("a.b.c", "a")
    assert rows["a.b", "c"].names == ()
    assert "another version is 'a.b.c'" in rows["a.b", "c"].reason
    assert rows[long, version].names == ()
    assert "longer than 255 bytes" in rows[long, version].reason
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.b.c", "a"}


def test_the_command_reports_each_version(
    tmp_path: Path, models_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It overwrites no folder, and fails if nothing can be exported."""
    command = ["export", "--to", "triton"]
    out = str(tmp_path / "out")
    assert main([*command, "--json", str(models_copy), out]) == 0
    rows = {}
    for row in json.loads(capsys.readouterr().out):
        rows[row["model"], row["version"]] = row
    assert rows["petals", "tflite"]["names"] == ["petals.tflite", "petals"]

    assert main([*command, str(models_copy), out]) == 1
    assert "exists already; name a new folder" in capsys.readouterr().err

    empty = tmp_path / "empty"
    empty.mkdir()
    assert (
        main(
            [
                *command,
                str(empty),
                str(tmp_path / "none"),
            ]
        )
        == 1
    )
    assert (
        main(
            [
                *command,
                str(tmp_path / "nowhere"),
                str(tmp_path / "none2"),
            ]
        )
        == 1
    )
    assert "cannot be read" in capsys.readouterr().err


@dataclass
class StandInTensor:
    """Triton's tensor: a name and an array."""

    label: str
    array: Any

    def name(self) -> str:
        return self.label

    def as_numpy(self) -> Any:
        return self.array


@dataclass
class StandInRequest:
    """Triton's request."""

    tensors: list[StandInTensor]
    outputs: list[str]

    def inputs(self) -> list[StandInTensor]:
        return self.tensors

    def requested_output_names(self) -> list[str]:
        return self.outputs


class StandInError:
    """Triton's error: not an exception, but a part of an answer."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)

    def __init__(self, message: str, code: int = 1) -> None:
        self.message = message
        self.code = code


class StandInException(Exception):
    """The exception of ``initialize``."""


@dataclass
class StandInResponse:
    """Triton's answer: tensors, or an error."""

    output_tensors: Any = ()
    error: StandInError | None = None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the names of ``triton_python_backend_utils`` that our code uses."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.Tensor = StandInTensor
    module.InferenceResponse = StandInResponse
    module.TritonError = StandInError
    module.TritonModelException = StandInException
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    monkeypatch.delitem(sys.modules, "pocketserve_scale.triton_model", raising=False)
    monkeypatch.setenv("POCKETSERVE_QUARANTINE", "0")
    yield module
    sys.modules.pop("pocketserve_scale.triton_model", None)


def open_exported(folder: Path) -> Any:
    """Run a model's code with a configuration, as Triton does."""
    spec = importlib.util.spec_from_file_location(
        "exported_model", folder / "1" / "model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = parse((folder / "config.pbtxt").read_text())
    values = {}
    for entry in config["parameters"]:
        values[entry["key"][0]] = {"string_value": entry["value"][0]["string_value"][0]}
    inputs = []
    for entry in config["input"]:
        inputs.append({"name": entry["name"][0], "data_type": entry["data_type"][0]})
    model = module.TritonPythonModel()
    model.initialize(
        {"model_config": json.dumps({"parameters": values, "input": inputs})}
    )
    return model


def our_scores(server: Any, image: Any) -> list[float]:
    """Return our own server's scores of a digit."""
    tensor = {
        "name": "image",
        "shape": list(image.shape),
        "datatype": "FP32",
        "data": image.ravel().tolist(),
    }
    path = "/v2/models/digits/infer"
    answer = server.call("POST", path, json={"inputs": [tensor]}).json()
    scores: list[float] = answer["outputs"][0]["data"]
    return scores


def test_the_code_answers_like_our_server(
    stand_in: Any, server: Any, models_copy: Path, tmp_path: Path
) -> None:
    """A fault affects its own request only, with our code and sentence."""
    export(models_copy, tmp_path / "out")
    model = open_exported(tmp_path / "out" / "digits")
    image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8, 1)
    good = StandInRequest([StandInTensor("image", image)], ["scores"])
    wrong = StandInRequest([StandInTensor("image", image[:, :4])], ["scores"])
    unknown = StandInRequest([StandInTensor("image", image)], ["nothing"])
    answers = model.execute([good, wrong, unknown])

    [scores] = answers[0].output_tensors
    assert scores.name() == "scores"
    expected = pytest.approx(our_scores(server, image), abs=1e-6)
    assert scores.as_numpy().ravel().tolist() == expected
    assert answers[1].error.code == StandInError.INVALID_ARG
    assert answers[1].error.message.startswith("INVALID_TENSOR: ")
    assert answers[2].error.message.startswith("INVALID_")
    model.finalize()


def test_a_missing_model_fails_at_the_start(
    stand_in: Any, models_copy: Path, tmp_path: Path
) -> None:
    """Triton gets our code and sentence before the first request."""
    export(models_copy, tmp_path / "out")
    for path in (models_copy / "petals").iterdir():
        if path.is_file():
            path.unlink()
    (models_copy / "petals" / "petals.tflite").write_bytes(b"no model")
    with pytest.raises(StandInException, match=r"^[A-Z_]+: failed to load 'petals'"):
        open_exported(tmp_path / "out" / "petals")
