"""Devices reported for models, and delegates named by manifests."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import ROOT, Server
from pocketserve.runtimes.base import ModelLoadError
from trusting import trust_all

DATA = ROOT / "tests" / "runtimes" / "data"
NAME = "added"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a delegate that takes ADD nodes and adds 1000."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "tests marked 'compiler' need a C compiler (cc, gcc or clang)"
    built = tmp_path_factory.mktemp("delegate") / "libours.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(built), str(DATA / "delegate.c")]
    subprocess.run(command, check=True, timeout=120)
    return built


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Create a models folder with one model, which adds two vectors."""
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    shutil.copy(DATA / "two_inputs.tflite", folder / "added.tflite")
    return folder.parent


def describe(models: Path, *lines: str) -> None:
    """Write the model's manifest with these lines of options."""
    text = "\n".join(["[versions.one]", 'file = "added.tflite"', *lines])
    (models / NAME / "model.toml").write_text(text)
    # Some must be rejected because of their text.
    with contextlib.suppress(ModelLoadError):
        trust_all(models)


def added(server: Server, *values: float) -> list[float]:
    """Return the model's answer to the values and ones."""
    tensors = [
        ("serving_default_a:0", list(values)),
        ("serving_default_b:0", [1] * len(values)),
    ]
    inputs = []
    for name, data in tensors:
        inputs.append(
            {
                "name": name,
                "datatype": "FP32",
                "shape": [len(data)],
                "data": data,
            }
        )
    answer = server.call(
        "POST", f"/v2/models/{NAME}/infer", data=json.dumps({"inputs": inputs})
    )
    assert answer.status_code == 200, answer.text
    found: list[float] = answer.json()["outputs"][0]["data"]
    return found


def device_in_metadata(server: Server, name: str = NAME) -> str:
    """Return the device of the metadata."""
    device: str = server.call("GET", f"/v2/models/{name}").json()["parameters"][
        "device"
    ]
    return device


def measured(server: Server) -> dict[tuple[str, str], tuple[str, str, float]]:
    """Return device, runtime and value of the gauge by model and version."""
    families = text_string_to_metric_families(server.call("GET", "/metrics").text)
    samples = [
        one
        for family in families
        for one in family.samples
        if one.name == "pocketserve_model_device"
    ]
    found = {}
    for one in samples:
        found[(one.labels["model"], one.labels["version"])] = (
            one.labels["device"],
            one.labels["runtime"],
            one.value,
        )
    assert len(found) == len(samples)
    return found


def test_loaded_versions_name_their_device(new_server, models_copy):
    server = new_server(models_copy)
    assert measured(server) == {}
    document = server.call("GET", "/v2/models/digits").json()
    assert document["parameters"]["device"] == "cpu"
    runtime = document["parameters"]["runtime"]
    assert measured(server) == {("digits", "tflite"): ("cpu", runtime, 1.0)}
    assert server.call("POST", "/v2/repository/models/digits/unload").status_code == 200
    assert measured(server) == {}


@pytest.mark.compiler
def test_a_manifest_selects_a_delegate(new_server, models, library):
    shutil.copy(library, models / NAME)
    describe(
        models,
        'delegate = "libours.so"',
        'delegate_options = { take = "0", offset = "2000" }',
        "required = true",
    )
    server = new_server(models)
    assert added(server, 1, 2) == [2002, 2003]
    assert device_in_metadata(server) == "libours.so"
    (device, _, value) = measured(server)[NAME, "one"]
    assert (device, value) == ("libours.so", 1)
    assert "runs without the delegate" not in server.log.read_text()


@pytest.mark.compiler
def test_the_device_follows_the_active_version(new_server, models, library):
    describe(
        models,
        f'delegate = "{library}"',
        'delegate_options = { take = "0", fail = "large" }',
    )
    server = new_server(models)
    for values, offset, device in (
        ([1], 1000, "libours.so"),
        ([1, 2, 3], 0, "cpu"),
        ([2], 1000, "libours.so"),
    ):
        assert added(server, *values) == [value + 1 + offset for value in values]
        assert device_in_metadata(server) == device
        assert measured(server)[NAME, "one"][0] == device
    assert server.log.read_text().count("runs without the delegate libours.so") == 1


def test_a_missing_delegate_falls_back_with_one_warning(new_server, models):
    describe(models, 'delegate = "libnothing_of_the_sort.so"')
    server = new_server(models)
    assert added(server, 1, 2) == [2, 3]
    assert device_in_metadata(server) == "cpu"
    assert measured(server)[NAME, "one"][0] == "cpu"
    text = "added.tflite runs without the delegate libnothing_of_the_sort.so, which cannot be loaded ("
    assert server.log.read_text().count(text) == 1


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ['delegate = "libnothing.so"', "required = true"],
            "the delegate libnothing.so cannot be loaded (",
        ),
        (
            ['delegate = "../libours.so"'],
            "the delegate ../libours.so leaves the model's folder; copy the file into it",
        ),
        (
            ['delegate = "x.so"', "delegate_options = { a = 1 }"],
            "the option delegate_options is a table of texts such",
        ),
        (
            ["required = true"],
            "the option required does nothing without delegate; add delegate, or remove it",
        ),
    ],
)
def test_a_manifest_with_an_unusable_delegate(
    new_server, models, refused, lines: list[str], reason: str
):
    describe(models, *lines)
    server = new_server(models)
    assert reason in refused(
        server.call("GET", f"/v2/models/{NAME}"), 503, "MODEL_FAILED"
    )
    assert measured(server) == {}
