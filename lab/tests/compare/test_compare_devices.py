"""Compare one version on several devices with ``pocketserve compare --device``."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, STATE
from pocketserve.repository.manifest import read_manifest
from pocketserve.runtimes.devices import devices_of
from pocketserve.runtimes.registry import format_named
from pocketserve.terminal.errors import CommandError
from pocketserve_lab.commands.compare import _apply
from pocketserve_lab.compare.devices import print_devices
from pocketserve_lab.compare.session import (
    Plan,
    VersionFailure,
    VersionProcess,
    compare_versions,
)

pytestmark = pytest.mark.live
DATA = ROOT / "tests" / "runtimes" / "data"
TIMEOUT_S = 300


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(STATE))
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(MODELS))


def compared(model: str, *devices: str, **wishes: Any) -> dict[str, Any]:
    """Return a short comparison of a model's versions."""
    return compare_versions(
        Plan(model, devices=devices, **{"seconds": 0.3, **wishes}), lambda *_: None
    )


def command(*words: object) -> str:
    """Return a failing command's message."""
    run = [sys.executable, "-m", "pocketserve", *map(str, words)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_each_version_runs_on_each_device_in_one_run() -> None:
    """The manifest's device is the default, wherever it is in the list."""
    result = compared(
        "digits",
        "cpu",
        "XNNPACK",
        versions=("tflite", "tflite-int8"),
        reference="tflite@xnnpack",
    )
    names = ["tflite@cpu", "tflite@xnnpack", "tflite-int8@cpu", "tflite-int8@xnnpack"]
    assert list(result["versions"]) == names
    assert result["skipped"] == {}
    assert result["default"] == result["reference"] == "tflite@xnnpack"
    assert [result["versions"][name]["options"] for name in names[:2]] == [
        {"xnnpack": False},
        {},
    ]
    assert [facts["version"] for facts in result["versions"].values()] == [
        "tflite"
    ] * 2 + ["tflite-int8"] * 2
    assert {facts["accuracy"]["value"] for facts in result["versions"].values()} == {
        1.0
    }
    assert result["recommendation"]["version"] in names


@pytest.mark.onnx
def test_a_device_that_a_version_lacks_is_reported() -> None:
    """Only that pair is omitted."""
    result = compared(
        "digits", "xnnpack", "cpu", versions=("tflite", "onnx"), reference="tflite"
    )
    assert set(result["versions"]) == {"tflite@xnnpack", "tflite@cpu", "onnx@cpu"}
    assert list(result["skipped"]) == ["onnx@xnnpack"]
    assert "runs here on cpu" in result["skipped"]["onnx@xnnpack"]
    assert result["reference"] == "tflite@xnnpack"


def test_device_options_reach_the_loaded_file() -> None:
    """Unknown keys and values are refused as in a manifest."""
    job = {
        "model": "petals",
        "models_dir": str(MODELS),
        "version": "tflite",
        "threads": 1,
    }
    for options, reason in (
        ({"wings": 2}, "unknown key versions.tflite.wings"),
        ({"xnnpack": 2}, "true or false"),
    ):
        process = VersionProcess({**job, "options": options})
        try:
            with pytest.raises(VersionFailure, match=reason):
                process.ask("open", seconds=TIMEOUT_S)
        finally:
            process.close()


@pytest.mark.compiler
def test_a_delegate_is_compared_with_the_cpu(tmp_path: Path) -> None:
    """The manifest's delegate runs in its own row only, which shows its error of 500."""
    folder = tmp_path / "adder"
    folder.mkdir()
    shutil.copy(DATA / "two_inputs.tflite", folder)
    build = ["cc", "-shared", "-fPIC", "-o", folder / "libours.so", DATA / "delegate.c"]
    subprocess.run(build, check=True, timeout=TIMEOUT_S)
    table = '[versions.npu]\nfile = "two_inputs.tflite"\ndelegate = "libours.so"\n'
    (folder / "model.toml").write_text(
        table + 'delegate_options = { take = "0", offset = "500" }\n'
    )
    trust = [sys.executable, "-m", "pocketserve", "trust", "--yes", folder]
    subprocess.run(trust, check=True, capture_output=True, timeout=TIMEOUT_S)
    result = compared("adder", "all", models_dir=str(tmp_path), reference="npu@cpu")
    runs_on = {name: facts["device"] for name, facts in result["versions"].items()}
    assert runs_on == {
        "npu@libours.so": "libours.so",
        "npu@xnnpack": "cpu",
        "npu@cpu": "cpu",
    }
    assert result["default"] == "npu@libours.so"
    wrong, right = (
        result["versions"][f"npu@{name}"]["agreement"]
        for name in ("libours.so", "xnnpack")
    )
    assert round(wrong["largest_difference"]) == 500
    assert right["largest_difference"] < 1e-3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("--device", "gpu"),
            "no version runs here on 'gpu', only on xnnpack or cpu\n",
        ),
        (
            ("--device", "cpu,xnpack"),
            "'xnpack', only on xnnpack or cpu; did you mean 'xnnpack'?",
        ),
        (
            ("--device", "NnapiExecutionProvider"),
            "'nnapi', only on xnnpack or cpu: NNAPI is a part of Android",
        ),
        (
            ("--device", "cpu", "--reference", "tflite@gpu"),
            "reference version 'tflite@gpu' is not compared",
        ),
        (
            ("--device", "cpu", "--apply"),
            "not compared with tflite@xnnpack, the default version; add it to --device",
        ),
        (
            ("--device", "cpu", "--layers", "tflite", "tflite-int8"),
            "--device, --html, --png, --report, --margin and --repeat belong to",
        ),
    ],
    ids=["unknown", "mistyped", "engine", "reference", "apply", "layers"],
)
def test_bad_input_is_explained_in_one_sentence(
    words: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    """It lists the available devices."""
    shutil.copytree(MODELS / "digits", tmp_path / "digits")
    printed = command(
        "compare",
        "digits",
        "--models-dir",
        tmp_path,
        "--versions",
        "tflite",
        "--seconds",
        "0.1",
        *words,
    )
    assert reason in printed


def test_devices_may_be_tables_of_manifest_options() -> None:
    """The manifest's own comes first; each complete table is one device."""
    tflite = format_named("tflite")
    torch = format_named("torch")
    assert tflite is not None
    assert torch is not None
    assert list(devices_of(tflite, {})) == ["xnnpack", "cpu"]
    assert list(devices_of(tflite, {"xnnpack": False})) == ["cpu", "xnnpack"]
    npu = {
        "delegate": "lib/libNpu.so",
        "delegate_options": {"a": "b"},
        "required": True,
    }
    assert devices_of(tflite, npu) == {
        "libNpu.so": npu,
        "xnnpack": {"xnnpack": True},
        "cpu": {"xnnpack": False},
    }
    assert devices_of(torch, {"weights": "w.pt"}) == {"cpu": {"weights": "w.pt"}}


@pytest.mark.onnx
def test_providers_are_devices() -> None:
    """They have short names; a missing one is tried if the manifest names it."""
    onnx = format_named("onnx")
    assert onnx is not None
    assert devices_of(onnx, {})["cpu"] == {}
    assert next(iter(devices_of(onnx, {}))) == "cpu"
    options = {
        "providers": ["NnapiExecutionProvider", "CPUExecutionProvider"],
        "required": True,
    }
    devices = devices_of(onnx, options)
    assert next(iter(devices.items())) == ("nnapi", options)
    assert devices["cpu"] == {}
    assert "azure" not in devices


def _chosen(folder: Path, name: str, options: dict[str, Any] | None) -> dict[str, Any]:
    """Return a result that recommends one of two devices."""
    facts = {
        name: {"version": "tflite", "options": options},
        "tflite@other": {"version": "tflite", "options": {}},
    }
    recommendation = {"version": name}
    names = {
        "model": folder.name,
        "folder": str(folder),
        "default": "tflite@other",
    }
    return {
        **names,
        "versions": facts,
        "skipped": {},
        "recommendation": recommendation,
    }


def test_apply_writes_the_device_into_the_versions_table(tmp_path: Path) -> None:
    """Comments and other versions are kept, and a second call changes nothing."""
    folder = tmp_path / "digits"
    shutil.copytree(MODELS / "digits", folder)
    manifest = folder / "model.toml"
    manifest.write_text("# mine\n" + manifest.read_text())
    before = read_manifest(manifest)
    assert "default_version is tflite, as tflite@cpu, now" in _apply(
        _chosen(folder, "tflite@cpu", {"xnnpack": False})
    )
    text = manifest.read_text()
    after = read_manifest(manifest)
    assert text.startswith("# mine\n")
    assert after.versions["tflite"].options == {"xnnpack": False}
    assert {**after.versions, "tflite": None} == {**before.versions, "tflite": None}
    _apply(_chosen(folder, "tflite@cpu", {"xnnpack": False}))
    assert manifest.read_text() == text
    _apply(_chosen(folder, "tflite@xnnpack", {"xnnpack": True}))
    assert read_manifest(manifest).versions["tflite"].options == {"xnnpack": True}


def test_apply_without_a_manifest_keeps_all_versions(tmp_path: Path) -> None:
    """A manifest with one version would hide the others."""
    folder = tmp_path / "petals"
    folder.mkdir()
    for suffix in ("tflite", "onnx"):
        shutil.copy(MODELS / "petals" / f"petals.{suffix}", folder)
    _apply(_chosen(folder, "tflite@cpu", {"xnnpack": False}))
    manifest = read_manifest(folder / "model.toml")
    assert set(manifest.versions) == {"tflite", "onnx"}
    assert manifest.default_version == "tflite"
    assert manifest.versions["tflite"].options == {"xnnpack": False}


def test_an_unknown_device_is_refused_before_measuring() -> None:
    """This also applies beside a known one."""
    with pytest.raises(CommandError, match="no version runs here on 'npu', only on "):
        compared("petals", "cpu", "npu")


def results_of_desk_and_phone() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a result, and that of a simulated phone with other files."""
    desk = compared("petals", versions=("tflite",))
    assert desk["device"]["simulated"] is False
    desk["device"]["load"] = 0.0
    desk["versions"]["tflite-int8"] = copy.deepcopy(desk["versions"]["tflite"])
    phone = copy.deepcopy(desk)
    phone["device"] |= {
        "simulated": True,
        "cores": 2,
        "load": 7.0,
    }
    facts = phone["versions"]["tflite"]
    facts["threads"] += 3
    facts["runtime"] = "tflite-runtime 2.14.0"
    facts["file_bytes"] += 1
    phone["skipped"]["tflite-int8"] = "in quarantine"
    del phone["versions"]["tflite-int8"]
    return desk, phone


def test_two_results_show_the_devices_differences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The simulated phone has fewer threads, other files, and lacks a version."""
    desk, phone = results_of_desk_and_phone()
    print_devices(desk, phone, ("desk.json", "phone.json"))
    text = " ".join(capsys.readouterr().out.split())
    first, _, second = text.partition("B: phone.json")
    assert first.startswith(f"A: desk.json: {desk['device']['machine']}, ")
    assert "load" not in first
    assert second.startswith(": simulated phone, ")
    assert "a load of 7.0 from other work" in second
    assert "tflite: its file has another size on each tflite: A has " in second
    threads = phone["versions"]["tflite"]["threads"]
    assert f"; B has tflite-runtime 2.14.0 on cpu, {threads} threads" in second
    assert "tflite-int8: not run on B: in quarantine" in second

    print_devices(desk, desk, ("a", "b"))
    assert "tflite: " not in capsys.readouterr().out
    del phone["versions"]["tflite"]
    remedy = "compare with the same --versions and --device"
    with pytest.raises(CommandError, match=f"no version in common; {remedy}"):
        print_devices(desk, phone, ("a", "b"))
