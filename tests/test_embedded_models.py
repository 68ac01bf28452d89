"""Measure every version of the embedded models against its manifest."""

from __future__ import annotations

import importlib
import importlib.util
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.runtimes.registry import missing_framework
from pocketserve.service import Service
from pocketserve.tensors import to_array, to_tensor
from pocketserve_wire.oip import InferRequest
from queue_entries import infer

pytestmark = [
    # Frameworks warn of the end of features that are tested here.
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.load` is deprecated:DeprecationWarning"
    ),
]

Array = npt.NDArray[Any]

NAMES = ("diabetes", "digits", "petals")
MANIFESTS = {
    name: tomllib.loads((MODELS / name / "model.toml").read_text(encoding="utf-8"))
    for name in NAMES
}
MARKS = {
    **dict.fromkeys(
        ("torch", "torchscript", "ptl", "pt2", "executorch"), pytest.mark.torch
    ),
    **dict.fromkeys(("keras", "savedmodel"), pytest.mark.tensorflow),
    "tfjs": pytest.mark.tfjs,
    "onnx": pytest.mark.onnx,
}

ACCURACY_TOLERANCE = 0.006  # about three of the 450 held-out digits
ERROR_TOLERANCE = 0.01  # relative
MAX_BYTES = 3_000_000


def versions(*names: str) -> list[Any]:
    """Return a parameter for every version of the models, with its framework's mark."""
    return [
        pytest.param(name, version, marks=MARKS.get(version.partition("-")[0], ()))
        for name in names
        for version in MANIFESTS[name]["versions"]
    ]


def need_framework(service: Service, name: str, version: str) -> None:
    kind = service.entry(name).versions[version].format
    missing = missing_framework(kind)
    if missing:
        pytest.skip(missing)
    if kind.name == "executorch":
        # Its import warns; later imports find it without warnings.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("executorch.runtime")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run the server without a transport or trials, which would take a minute."""
    settings = {
        "models_dir": MODELS,
        "state_dir": tmp_path_factory.mktemp("state"),
        "quarantine": False,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


@pytest.fixture(scope="module")
def held_out() -> dict[str, tuple[Array, Array]]:
    """Return inputs and truths that no recipe trained on, by model."""
    path = MODELS / "recipes" / "datasets.py"
    spec = importlib.util.spec_from_file_location("recipe_datasets", path)
    assert spec is not None
    assert spec.loader is not None
    datasets: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(datasets)
    return {name: getattr(datasets, f"{name}_split")()[2:] for name in NAMES}


def query(service: Service, name: str, version: str, values: Array) -> Array:
    (declared,) = MANIFESTS[name]["inputs"]
    request = InferRequest(inputs=[to_tensor(declared["name"], values)])
    (output,) = infer(service, name, version, request, row_by_row=True).outputs
    assert output.name == MANIFESTS[name]["outputs"][0]["name"]
    assert output.datatype == "FP32"
    return to_array(output)


def test_int8_digits_keep_their_accuracy(
    service: Service, held_out: dict[str, tuple[Array, Array]]
) -> None:
    """They lose at most half a point against the float model."""
    values, truth = held_out["digits"]
    need_framework(service, "digits", "tflite-int8")
    accuracies = {}
    for version in ("tflite", "tflite-int8"):
        accuracies[version] = np.mean(
            query(service, "digits", version, values).argmax(axis=1) == truth
        )
    assert accuracies["tflite-int8"] >= accuracies["tflite"] - 0.005


@pytest.mark.parametrize(("name", "version"), versions(*NAMES))
def test_the_manifests_score_is_reproduced(
    service: Service, held_out: dict[str, tuple[Array, Array]], name: str, version: str
) -> None:
    """The held-out data confirms it, and the version agrees with the default one."""
    need_framework(service, name, version)
    claimed = MANIFESTS[name]["versions"][version]["evaluation"]
    values, truth = held_out[name]
    found = query(service, name, version, values)
    if claimed["metric"] == "accuracy":
        assert np.mean(found.argmax(axis=1) == truth) == pytest.approx(
            claimed["value"], abs=ACCURACY_TOLERANCE
        )
    else:
        assert claimed["metric"] == "mean_absolute_error"
        error = np.abs(found.astype(np.float64) - truth).mean()
        assert error == pytest.approx(claimed["value"], rel=ERROR_TOLERANCE)
    need_framework(service, name, "tflite")
    expected = query(service, name, "tflite", values)
    tolerance = claimed.get("tolerance", 0)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "version"), versions("digits"))
def test_every_sample_is_read(service: Service, name: str, version: str) -> None:
    """A PNG is processed like a client's: decoded, scaled, perhaps inverted, labelled."""
    need_framework(service, name, version)
    pictures = sorted((MODELS / name / "samples").glob("*.png"))
    assert [path.stem for path in pictures] == [str(digit) for digit in range(10)]
    for path in pictures:
        body = memoryview(path.read_bytes())
        answer = predictions.document(
            predictions.ask(
                service,
                ApiRequest({"model": name}, {"version": version, "top_k": "2"}, body),
            )
        )
        best, second = answer["predictions"]
        assert best["label"] == path.stem, path.name
        assert best["score"] > 0.5 > second["score"]


def test_features_by_position_and_by_name_are_the_same(service: Service) -> None:
    values = {
        "sepal_length": 5.1,
        "sepal_width": 3.5,
        "petal_length": 1.4,
    }
    bodies = (b"[5.1, 3.5, 1.4]", str(values).replace("'", '"').encode())
    first, second = (
        predictions.document(
            predictions.ask(
                service, ApiRequest({"model": "petals"}, {}, memoryview(body))
            )
        )["predictions"]
        for body in bodies
    )
    assert first == second
    assert first[0]["value"] == pytest.approx(0.2, abs=0.2)


def test_all_together_are_small() -> None:
    files = [
        path for name in NAMES for path in (MODELS / name).rglob("*") if path.is_file()
    ]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_every_version_is_documented(name: str) -> None:
    """Manifest and card have the same versions, data and license."""
    manifest = MANIFESTS[name]
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    assert manifest["license"] in card
    for version, table in manifest["versions"].items():
        assert (MODELS / name / table["file"]).exists()
        assert f"`{version}`" in card
        assert {"dataset", "metric", "value"} <= set(table["evaluation"])
        assert (
            version == manifest["default_version"]
            or 0 < table["evaluation"]["tolerance"] <= 0.05
        )


def test_the_folders_contain_only_files_of_the_manifests() -> None:
    """The wheel must not contain stray files."""
    for name in NAMES:
        manifest = MANIFESTS[name]
        named = {"README.md", "model.toml", manifest.get("labels"), "samples"}
        for table in manifest["versions"].values():
            named |= {table["file"], table.get("weights")}
        assert {
            path.name
            for path in Path(MODELS / name).iterdir()
            if path.name != "__pycache__"
        } <= named
