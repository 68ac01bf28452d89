"""Compare every version of an embedded model with its TFLite version.

The manifests list versions and tolerances. Each version carries the mark of its
framework, so that a run without that framework leaves it out.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import shutil
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS
from pocketserve.config import load_config
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import format_at
from pocketserve.service import Service
from pocketserve.tensors import Array, to_array, to_tensor
from pocketserve_wire import ApiError
from pocketserve_wire.oip import InferRequest
from queue_entries import infer

pytestmark = [
    # Frameworks warn of the end of features that are served here.
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.load` is deprecated:DeprecationWarning"
    ),
]

REFERENCE = "tflite"
SOURCE_PATH = re.compile(rb"/(?:site|dist)-packages/|/models/\w+/\w+\.py")
ROWS = 10
MAX_EXECUTORCH_ROWS = 512

# Kinds without a mark run if their framework is installed.
MARKS: dict[str, Any] = {
    "torch": pytest.mark.torch,
    "torchscript": pytest.mark.torch,
    "ptl": pytest.mark.torch,
    "pt2": pytest.mark.torch,
    # Its imports warn, and the first warning would count as a broken installation.
    "executorch": [pytest.mark.torch, pytest.mark.filterwarnings("ignore")],
    "keras": pytest.mark.tensorflow,
    "savedmodel": pytest.mark.tensorflow,
    "tfjs": pytest.mark.tfjs,
}
UNMARKED = {"tflite": True, "onnx": importlib.util.find_spec("onnxruntime") is not None}

NAMES = ("diabetes", "digits", "petals")
MANIFESTS: dict[str, dict[str, Any]] = {
    name: tomllib.loads((MODELS / name / "model.toml").read_text(encoding="utf-8"))
    for name in NAMES
}


def kind_of(name: str, version: str) -> ModelFormat:
    kind = format_at(MODELS / name / MANIFESTS[name]["versions"][version]["file"])
    assert kind is not None
    return kind


def every_version(*kinds: str) -> list[Any]:
    """Return a parameter for each version, optionally of some kinds."""
    return [
        pytest.param(name, version, id=f"{name}-{version}", marks=MARKS.get(kind, ()))
        for name in NAMES
        for version in MANIFESTS[name]["versions"]
        if (kind := kind_of(name, version).name) in (kinds or {*MARKS, *UNMARKED})
        and UNMARKED.get(kind, True)
    ]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run the server without a transport, on a private copy: a ``.pt2`` file is code."""
    folder = tmp_path_factory.mktemp("formats")
    for name in NAMES:
        shutil.copytree(MODELS / name, folder / "models" / name)
    for path in (folder / "models").rglob("*"):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~stat.S_IWOTH)
    # Without trials: other tests cover them, and they triple the time.
    settings = {
        "models_dir": folder / "models",
        "state_dir": folder / "state",
        "quarantine": False,
        "keep_alive": 0.0,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


@functools.cache
def rows_of(name: str) -> Array:
    """Return ten inputs that no recipe trained on.

    For the digits they are the pictures in ``samples`` as tensors.
    """
    path = MODELS / "recipes" / "datasets.py"
    spec = importlib.util.spec_from_file_location("recipe_datasets", path)
    assert spec is not None
    assert spec.loader is not None
    datasets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(datasets)
    _, _, x, y = getattr(datasets, f"{name}_split")()
    chosen = (
        [int(np.argmax(y == digit)) for digit in range(ROWS)]
        if name == "digits"
        else list(range(ROWS))
    )
    rows: Array = x[chosen]
    return rows


def ask(service: Service, name: str, version: str, values: Array) -> Array:
    """Send one request with the manifest's names."""
    (takes,), (gives,) = MANIFESTS[name]["inputs"], MANIFESTS[name]["outputs"]
    response = infer(
        service, name, version, InferRequest(inputs=[to_tensor(takes["name"], values)])
    )
    (output,) = response.outputs
    assert response.model_version == version
    assert output.name == gives["name"]
    assert output.datatype == "FP32"
    return to_array(output)


def test_every_model_comes_in_every_format() -> None:
    for name in NAMES:
        assert {
            kind_of(name, version).name for version in MANIFESTS[name]["versions"]
        } == {*MARKS, *UNMARKED}


def test_the_default_is_the_reference() -> None:
    assert {manifest["default_version"] for manifest in MANIFESTS.values()} == {
        REFERENCE
    }


@pytest.mark.parametrize(("name", "version"), every_version())
def test_answers_are_those_of_the_tflite_version(
    service: Service, name: str, version: str
) -> None:
    expected = ask(service, name, REFERENCE, rows_of(name))
    tolerance = MANIFESTS[name]["versions"][version]["evaluation"].get("tolerance", 0.0)
    assert (tolerance == 0.0) == (version == REFERENCE)
    answer = ask(service, name, version, rows_of(name))
    assert answer.shape == expected.shape
    np.testing.assert_allclose(answer, expected, rtol=0, atol=tolerance)
    if name == "digits":
        assert answer.argmax(axis=1).tolist() == list(range(ROWS))


@pytest.mark.parametrize(("name", "version"), every_version())
def test_any_number_of_rows_gives_the_same_answers(
    service: Service, name: str, version: str
) -> None:
    together = ask(service, name, version, rows_of(name))
    # For other numbers of rows kernels may add in another order: a few units in the
    # last place.
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(
        ask(service, name, version, rows_of(name)[:5]), together[:5], **close
    )
    for row in range(3):
        np.testing.assert_allclose(
            ask(service, name, version, rows_of(name)[row : row + 1]),
            together[row][None],
            **close,
        )


@pytest.mark.parametrize(("name", "version"), every_version())
def test_the_metadata_has_the_names_and_sizes_of_the_manifest(
    service: Service, name: str, version: str
) -> None:
    with service.running(name, version) as (_, running):
        model = running.model
    for bound, declared in (
        (model.inputs, MANIFESTS[name]["inputs"]),
        (model.outputs, MANIFESTS[name]["outputs"]),
    ):
        (spec,) = bound.specs
        (wanted,) = declared
        assert spec.name == wanted["name"]
        assert spec.datatype == wanted["datatype"]
        assert list(spec.shape) == wanted["shape"]


@pytest.mark.parametrize(("name", "version"), every_version("executorch"))
def test_an_executorch_program_reports_its_number_of_rows(
    service: Service, name: str, version: str
) -> None:
    many = np.repeat(rows_of(name)[:1], MAX_EXECUTORCH_ROWS + 1, axis=0)
    assert len(ask(service, name, version, many[1:])) == MAX_EXECUTORCH_ROWS
    with pytest.raises(
        ApiError, match=f"takes shapes up to \\[{MAX_EXECUTORCH_ROWS}, "
    ):
        ask(service, name, version, many)


def files_of(name: str) -> list[Path]:
    return [
        path
        for path in (MODELS / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


def test_no_file_reveals_where_it_was_made() -> None:
    """Exporters write the paths of source files into their output."""
    for path in (path for name in NAMES for path in files_of(name)):
        contents = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(io.BytesIO(contents[0])) as archive:
                contents += [archive.read(member) for member in archive.namelist()]
                assert {info.date_time[0] for info in archive.infolist()} == {1980}
        for content in contents:
            assert SOURCE_PATH.search(content) is None, path.name
