"""Run ``pocketserve compress``: a new version with its accuracy, or an error and no
change.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import MODELS
from pocketserve.cli import main
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.scan import scan

pytestmark = pytest.mark.torch
PRUNE = ("--recipe", "magnitude-pruning")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of petals, and rows labelled with its own answers."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    shutil.copytree(MODELS / "petals", tmp_path / "models" / "petals")
    from sklearn.datasets import load_iris

    table = load_iris().data.astype(np.float32)
    np.savez(tmp_path / "rows.npz", features=table[:, :3], labels=table[:, 3:])
    return tmp_path / "models"


def compress(models: Path, *words: object) -> int:
    """Run the command on petals with its data."""
    data = ("--data", models.parent / "rows.npz", "--models-dir", models)
    return main(["compress", "petals", *map(str, (*data, *words))])


def save_digits(path: Path) -> None:
    """Save scikit-learn's digits as the model's input, with their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    np.savez(path, image=images, labels=digits.target)


def test_a_compressed_version_is_served_with_its_accuracy(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its provenance contains the measurements."""
    folder = ["--models-dir", str(models)]
    shutil.copytree(MODELS / "digits", models / "digits")
    data = models.parent / "digits.npz"
    save_digits(data)
    options = ["--amount", "0.3", "--epochs", "1", "--json", "--data", str(data)]
    assert main(["compress", "digits", *PRUNE, *options, *folder]) == 0

    printed = json.loads(capsys.readouterr().out)
    name = printed["version"]
    assert name == "torchscript-magnitude-pruning"
    assert printed["source"] == "torch"
    assert printed["training_samples"] == 1348
    assert printed["test_samples"] == 449
    assert printed["metric"] == "accuracy"
    assert min(printed["before"], printed["after"]) > 0.98
    assert printed["notes"] == ["7,723 of the 25,744 weights are zero"]

    version = scan(models)["digits"].versions[name]
    assert version.problem is None
    assert version.path.stat().st_size == printed["bytes"][1]
    check_provenance(models, name, printed["after"])

    picture = str(MODELS / "digits" / "samples" / "7.png")
    local = ["predict", "--local", "digits", *folder, "--version", name]
    assert main([*local, picture]) == 0


def check_provenance(models: Path, version: str, accuracy: float) -> None:
    manifest = read_manifest(models / "digits" / "model.toml")
    provenance = manifest.versions[version].provenance
    assert provenance["after"] == pytest.approx(accuracy, rel=1e-5)
    recipe = {
        "recipe": "magnitude-pruning",
        "amount": 0.3,
        "epochs": 1,
    }
    assert provenance["options"] == recipe


REFUSALS = {
    "loss": (
        (*PRUNE, "--amount", "0.6"),
        "mean absolute error on 38 test samples went from .* try less --amo",
    ),
    "format": (
        (*PRUNE, "--version", "tflite"),
        "takes an unconverted PyTorch model, and tflite is none",
    ),
    "recipe": (("--recipe", "shrinking"), "'shrinking' is not a recipe"),
    "student": (
        (*PRUNE, "--student", "model.py"),
        "magnitude-pruning takes no --student",
    ),
    "data": ((*PRUNE, "--data", "/nowhere"), "'/nowhere' does not exist"),
    "loss option": ((*PRUNE, "--max-loss", "2"), "--max-loss must be between 0 and 1"),
    "epochs": ((*PRUNE, "--epochs", "-1"), "--epochs must be between 0 and"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_change_nothing(
    case: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    words, sentence = REFUSALS[case]
    assert compress(models, *words) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(sentence, error), error
    assert {
        path: path.read_bytes() for path in models.rglob("*") if path.is_file()
    } == before
    assert not list((models.parent / "state").glob("convert-*"))
