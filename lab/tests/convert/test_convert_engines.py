"""Convert for OpenVINO and Core ML, which don't serve here.

OpenVINO must answer like the original, and Core ML's package is read back. The
converters themselves run in ``make test-convert``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from places import MODELS, ROOT
from pocketserve.repository.scan import scan
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.environments import (
    ENVIRONMENTS,
    FOLDER_VARIABLE,
    Environment,
    ensure,
    python_of,
)
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

OPENVINO_PROVIDER = Environment(
    "onnxruntime-openvino",
    "the test of OpenVINO as a provider",
    ("onnxruntime-openvino==1.24.1", "platformdirs==4.14.5"),
    disk=490 * 10**6,
    minutes=2,
)
READ_BACK = """
import json, sys
import coremltools as ct
spec = ct.models.MLModel(sys.argv[1], skip_model_load=True).get_spec()
block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
sides = [[tensor.name for tensor in side] for side in (spec.description.input, spec.description.output)]
print(json.dumps({"kind": spec.WhichOneof("Type"), "sides": sides, "operators": [o.type for o in block.operations]}))
"""


@pytest.fixture
def converters_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the environments' folder: the project's, or the variable's."""
    folder = os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters")
    monkeypatch.setenv(FOLDER_VARIABLE, folder)
    return Path(folder)


def converted(
    models: Path, model: str, kind: str, *tools: Converter, **settings: object
) -> Conversion:
    """Return the result of a conversion."""
    chosen = ConversionSettings(
        models, models.parent / "state", limits=ProcessLimits(1800.0), **settings
    )
    converter = ModelConverter(
        scan(models)[model], chosen, lambda title, share: None, print, tools or None
    )
    try:
        return converter.convert(kind)
    finally:
        converter.close()


def digits(folder: Path) -> Path:
    """Return a models folder with the digits."""
    shutil.copytree(MODELS / "digits", folder / "models" / "digits")
    return folder / "models"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Imitate a tool that ran its result; an option has each sample's answers."""
    request.output.mkdir()
    (request.output / "model.xml").write_text("content")
    answers = request.output.with_name("answers.npz")
    np.savez(answers, scores=np.array(request.options["answers"], np.float32))
    return ConversionOutcome("other", "1", answers=str(answers))


@pytest.mark.parametrize("turn", [0, 1])
def test_answers_from_the_tool_are_compared(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of samples counts; shifted scores are refused without leftovers."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tests"))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    models = digits(tmp_path)
    tool = Converter(
        "other", ("tflite",), "openvino", "convert.test_convert_engines", ("int8",)
    )
    before = sorted(models.rglob("*"))
    scores = np.roll(np.eye(10), turn, axis=1)[:, None, :].tolist()
    settings = {
        "quantize": "int8",
        "version": "tflite",
        "options": {"answers": scores},
    }
    if turn:
        with pytest.raises(
            ConversionError, match="0% of 10 samples have the same best class"
        ):
            converted(models, "digits", "openvino", tool, **settings)
        assert sorted(models.rglob("*")) == before
        return
    conversion = converted(models, "digits", "openvino", tool, **settings)
    assert conversion.agreement is not None
    assert conversion.agreement.same_class == 1.0
    assert conversion.agreement.samples == 10
    assert 0 < conversion.agreement.error < 0.75
    assert conversion.version == ""


@pytest.mark.convert
@pytest.mark.parametrize(
    ("quantize", "bound"),
    [
        ("none", 1e-5),
        ("fp16", 1e-2),
        ("int8", 0.1),
        ("dynamic", 0.1),
    ],
)
def test_openvino_answers_like_the_original(
    quantize: str, bound: float, tmp_path: Path, converters_folder: Path
) -> None:
    """It runs the files that it wrote."""
    conversion = converted(digits(tmp_path), "digits", "openvino", quantize=quantize)
    assert conversion.agreement is not None
    assert conversion.agreement.same_class == 1.0
    assert conversion.agreement.error < bound
    assert {path.name for path in conversion.path.iterdir()} == {
        "model.xml",
        "model.bin",
    }


@pytest.mark.convert
@pytest.mark.parametrize("quantize", ["none", "fp16"])
def test_core_ml_reads_its_package_back(
    quantize: str, tmp_path: Path, converters_folder: Path
) -> None:
    """It has the model's inputs and outputs by name, and its layers."""
    conversion = converted(digits(tmp_path), "digits", "coreml", quantize=quantize)
    assert conversion.agreement is None
    assert "macOS" in conversion.notes[0]
    python = python_of(ENVIRONMENTS["coremltools"], converters_folder)
    assert python is not None
    command = [str(python), "-c", READ_BACK, str(conversion.path)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=600
    )
    package = json.loads(done.stdout)
    assert package["kind"] == "mlProgram"
    assert package["sides"] == [
        ["image"],
        ["scores"],
    ]
    assert package["operators"].count("conv") == 3
    assert package["operators"].count("softmax") == 1


@pytest.mark.convert
@pytest.mark.assets
def test_a_public_model_for_openvino(
    assets: Path, tmp_path: Path, converters_folder: Path
) -> None:
    """A photograph gives the same class."""
    models = tmp_path / "models"
    models.mkdir()
    shutil.copyfile(
        assets / "models" / "tflite" / "mobilenet_v1_0.25_224_float_metadata.tflite",
        models / "m.tflite",
    )
    samples = assets / "inputs" / "images" / "astronaut.png"
    conversion = converted(models, "m", "openvino", samples=samples)
    assert conversion.agreement is not None
    assert conversion.agreement.same_class == 1.0
    assert conversion.agreement.error < 1e-3
    assert not conversion.random


@pytest.mark.convert
def test_openvino_runs_as_a_provider_beside_the_cpu(
    tmp_path: Path, converters_folder: Path
) -> None:
    """Its build of ONNX Runtime passes the trial and is compared on both devices."""
    python = ensure(
        OPENVINO_PROVIDER, converters_folder, lambda title, share: None, print
    )
    words = (
        "compare",
        "digits",
        "--versions",
        "onnx",
        "--device",
        "cpu,openvino",
        "--seconds",
        "0.5",
        "--json",
    )
    paths = os.pathsep.join(str(ROOT / part) for part in ("server", "client"))
    surroundings = {
        **os.environ,
        "PYTHONPATH": paths,
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
    }
    command = [str(python), "-m", "pocketserve", *words, "--models-dir", str(MODELS)]
    done = subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    versions = json.loads(done.stdout)["versions"]
    assert {name: facts["device"] for name, facts in versions.items()} == {
        "onnx@cpu": "cpu",
        "onnx@openvino": "OpenVINOExecutionProvider",
    }
    agreement = versions["onnx@openvino"]["agreement"]
    assert agreement["share"]["value"] == 1.0
    assert agreement["largest_difference"] < 1e-5
