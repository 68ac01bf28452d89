"""Name the first differing layers and planted faults with ``compare --layers``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compare.faulty_networks import FAULTS, write_model
from conftest import MODELS
from pocketserve.cli import main
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import format_named, runtime_for
from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.layers import compare_layers
from pocketserve_lab.compare.session import Plan

pytestmark = pytest.mark.onnx


@pytest.fixture(autouse=True)
def _no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are our own, and trials would take most of the time."""
    monkeypatch.setenv("POCKETSERVE_QUARANTINE", "false")


def explained(folder: Path, fault: str, seed: int = 4) -> dict[str, Any]:
    """Compare a correct network with a faulty one."""
    write_model(folder / "net", fault, seed)
    return compare_layers(Plan("net", str(folder)), ("whole", "faulty"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, tmp_path: Path) -> None:
    """Preprocessing, channels, layout, calibration, activation, weights and operators
    are distinguished.
    """
    result = explained(tmp_path, fault)
    cause = result["cause"] or {"kind": "", "sentence": ""}
    assert cause["kind"] == FAULTS[fault], cause["sentence"]
    assert bool(result["first_differing"]) == bool(FAULTS[fault])


def test_faults_in_unseen_networks_and_pictures_are_named(tmp_path: Path) -> None:
    """At least eight of ten are found where nothing was tuned."""
    names = [name for name in FAULTS if FAULTS[name]][::2]
    assert len(names) >= 10
    right = [
        (explained(tmp_path / str(n), name, 31)["cause"] or {"kind": ""})["kind"]
        for n, name in enumerate(names)
    ]
    hits = sum(kind == FAULTS[name] for kind, name in zip(right, names, strict=True))
    assert hits >= 0.8 * len(names), list(zip(names, right, strict=True))


def test_versions_of_two_frameworks_match(tmp_path: Path) -> None:
    """Every layer of TensorFlow Lite's fused NHWC and ONNX's NCHW has a counterpart."""
    result = compare_layers(Plan("digits", str(MODELS)), ("tflite", "onnx"))
    assert result["first_differing"] == []
    assert result["cause"] is None
    assert len(result["pairs"]) == result["layers"][0] + 1
    # Not Conv, which has no activation in it.
    assert result["pairs"][1]["other"]["operator"] == "Relu"
    assert max(pair["difference"] for pair in result["pairs"]) < 1e-4


@pytest.mark.parametrize(
    ("version", "operators"),
    [
        pytest.param(
            "torch",
            {"conv2d", "relu", "max_pool2d", "linear", "softmax"},
            marks=pytest.mark.torch,
        ),
        pytest.param(
            "keras",
            {"Conv2D", "MaxPooling2D", "Flatten", "Dense"},
            marks=pytest.mark.tensorflow,
        ),
    ],
)
def test_unconverted_models_match_their_conversion(
    version: str, operators: set[str]
) -> None:
    """PyTorch's functions count like modules; Keras's layers contain activations."""
    result = compare_layers(Plan("digits", str(MODELS)), (version, "onnx"))
    assert result["first_differing"] == []
    assert max(pair["difference"] for pair in result["pairs"]) < 1e-4
    assert {pair["first"]["operator"] for pair in result["pairs"]} >= operators


@pytest.mark.torch
def test_a_format_without_intermediate_results_is_refused() -> None:
    """The message lists such formats."""
    with pytest.raises(
        CommandError,
        match=r"'torchscript' is torchscript, which does not expose .* reads tflite, onnx, torch, keras",
    ):
        compare_layers(Plan("digits", str(MODELS)), ("onnx", "torchscript"))


def test_the_embedded_int8_version_has_no_fault() -> None:
    """Its rounding stays far below the bound of quantised versions."""
    result = compare_layers(Plan("digits", str(MODELS)), ("tflite", "tflite-int8"))
    assert result["bound"] == 0.1
    assert result["cause"] is None
    assert 0.001 < max(pair["difference"] for pair in result["pairs"]) < 0.05


def plant_in_digits(path: Path, fault: str) -> None:
    """Plant a fault into the first layer of an ONNX file."""
    model = onnx.load(path)
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    weights = {entry.name: entry for entry in model.graph.initializer}
    kernel, bias = (weights[name] for name in first.input[1:3])
    if fault == "wants 0 to 255":
        values = numpy_helper.to_array(kernel) / np.float32(255)
        kernel.CopyFrom(numpy_helper.from_array(values, kernel.name))
    elif fault == "bias":
        values = numpy_helper.to_array(bias) + np.float32(0.7)
        bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    else:
        relu = next(node for node in model.graph.node if node.op_type == "Relu")
        relu.op_type = "Identity"
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("wants 0 to 255", "preprocessing"),
        ("bias", "weights"),
        ("no ReLU", "activation"),
    ],
)
def test_faults_between_two_frameworks_are_named(
    fault: str, kind: str, tmp_path: Path
) -> None:
    """The ONNX version of digits is changed, the TensorFlow Lite version is correct."""
    shutil.copytree(MODELS / "digits", tmp_path / "digits")
    plant_in_digits(tmp_path / "digits" / "digits.onnx", fault)
    result = compare_layers(Plan("digits", str(tmp_path)), ("tflite", "onnx"))
    assert result["first_differing"][0] == 1
    assert result["cause"]["kind"] == kind, result["cause"]["sentence"]


@pytest.mark.parametrize(
    ("version", "file"),
    [
        ("tflite", "digits.tflite"),
        ("onnx", "digits.onnx"),
    ],
)
def test_the_last_layer_is_the_output(version: str, file: str) -> None:
    """Reading intermediate results changes no answer."""
    format = format_named(version)
    assert format is not None
    assert format.layers is not None
    source = ModelSource(MODELS / "digits" / file)
    session = runtime_for(format).open(source)
    inputs = {
        session.inputs[0].name: np.random.default_rng(0).random(
            (1, 8, 8, 1), np.float32
        )
    }
    (expected,) = session.run(inputs).values()
    np.testing.assert_allclose(
        format.layers(source)(inputs)[-1].array, expected, atol=1e-5
    )
    session.close()


def test_nodes_at_the_end_of_an_onnx_file_count(tmp_path: Path) -> None:
    """Tools append inserted nodes there, even those that run first."""
    write_model(tmp_path / "net", "none")
    path = tmp_path / "net" / "faulty.onnx"
    model = onnx.load(path)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[1:], nodes[0]])
    onnx.save(model, path)
    result = compare_layers(Plan("net", str(tmp_path)), ("whole", "faulty"))
    assert len(result["pairs"]) > len(nodes) / 2
    assert result["layers"][0] == result["layers"][1]
    assert max(pair["difference"] for pair in result["pairs"]) == 0


def test_the_command_prints_the_layers_and_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the rows around the first difference, then one sentence."""
    write_model(tmp_path / "net", "range too narrow")
    words = [
        "compare",
        "net",
        "--models-dir",
        str(tmp_path),
        "--layers",
        "whole",
        "faulty",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^\d+ > +Relu relu\S+ +Relu relu\S+ ", printed, re.MULTILINE)
    assert "The first layer that differs is A's Relu" in printed
    assert "\ncalibration: B cuts 'relu" in printed
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"]["kind"] == "calibration"


def test_random_numbers_replace_missing_samples(tmp_path: Path) -> None:
    without_samples = shutil.ignore_patterns("samples")
    shutil.copytree(MODELS / "petals", tmp_path / "petals", ignore=without_samples)
    result = compare_layers(Plan("petals", str(tmp_path)), ("tflite", "onnx"))
    assert result["samples"] == 4
    assert result["cause"] is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("tflite", "nothing"), "nothing"),
        (("tflite", "onnx", "--apply"), "belong to a comparison of whole versions"),
    ],
    ids=["version", "apply"],
)
def test_bad_options_are_explained_in_one_sentence(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["compare", "digits", "--models-dir", str(MODELS), "--layers", *words])
        == 1
    )
    assert reason in capsys.readouterr().err
