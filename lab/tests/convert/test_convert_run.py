"""Run conversions with a small and a faulty converter: nothing is left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from places import MODELS, ROOT
from plain_user import as_plain_user
from pocketserve.child.process import running
from pocketserve.cli import main
from pocketserve.engine.device.processes import stat_fields
from pocketserve.engine.device.signals import tidy_end
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.scan import scan
from pocketserve.runtimes.registry import format_named, missing_framework
from pocketserve_lab.compare.samples import DataSample, hash_samples
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.environments import ENVIRONMENTS, Environment
from pocketserve_lab.convert.process import Job, ProcessLimits, run_job
from pocketserve_lab.convert.publish import publish
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter
from pocketserve_lab.convert.sample_run import load_arrays
from pocketserve_lab.convert.tools import tflite_weights

MODES = ("fp16", "dynamic", "int8")
FAULTY = Converter(
    "faulty", ("tflite",), "tflite", "convert.faulty_tool", quantize=MODES
)
WAIT_S = 120.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a models folder with a model folder and a bare file."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tests"))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    models = tmp_path / "models"
    (models / "petals").mkdir(parents=True)
    shutil.copyfile(MODELS / "petals/petals.tflite", models / "petals/petals.tflite")
    text = (MODELS / "petals/model.toml").read_text().partition("[versions.torch]")[0]
    (models / "petals/model.toml").write_text(f"# from the garden\n{text}")
    shutil.copyfile(MODELS / "petals/petals.tflite", models / "bare.tflite")
    return models


Convert = Callable[..., Conversion]


@pytest.fixture
def convert(folder: Path, tmp_path: Path) -> Iterator[Convert]:
    """Convert by the faulty converter; check that its work folder is removed."""

    def run(
        fault: str = "",
        model: str = "petals",
        limits: ProcessLimits | None = None,
        **changes: Any,
    ) -> Conversion:
        options = {"fault": fault, **changes.pop("options", {})}
        note = changes.pop("notes", []).append
        tools = changes.pop("tools", [FAULTY])
        kind = changes.pop("kind", "tflite")
        settings = ConversionSettings(
            folder,
            tmp_path / "state",
            limits=limits or ProcessLimits(WAIT_S),
            options=options,
            **changes,
        )
        converter = ModelConverter(
            scan(folder)[model], settings, lambda title, share: None, note, tools
        )
        try:
            return converter.convert(kind)
        finally:
            converter.close()

    yield run
    assert not list((tmp_path / "state").glob("convert-*"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return a folder's files by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_result_becomes_a_version(convert: Convert, folder: Path) -> None:
    """The manifest records its provenance and keeps its comments."""
    conversion = convert(quantize="fp16")
    assert conversion.version == "tflite-fp16"
    assert conversion.path == folder / "petals" / "petals.fp16.tflite"
    assert conversion.agreement is not None
    assert conversion.agreement.error == 0
    assert conversion.random
    assert conversion.notes == ("it is a copy",)
    text = (folder / "petals/model.toml").read_text()
    assert text.startswith("# from the garden\n")
    provenance = (
        read_manifest(folder / "petals/model.toml").versions["tflite-fp16"].provenance
    )
    assert provenance["source"] == "tflite"
    assert provenance["tools"] == ["faulty 1"]
    assert provenance["quantize"] == "fp16"
    assert provenance["samples"] == 0
    entry = scan(folder)["petals"]
    assert entry.default_version == "tflite"
    assert entry.versions["tflite-fp16"].problem is None


def test_a_second_conversion_replaces_the_first(convert: Convert, folder: Path) -> None:
    """Versions that weren't converted are never replaced."""
    first = convert(quantize="fp16")
    names = set(contents(folder))
    assert convert(quantize="fp16").path == first.path
    assert set(contents(folder)) == names
    with pytest.raises(ConversionError, match="no conversion made"):
        convert(quantize="fp16", name="tflite")


def test_a_bare_file_gets_a_folder(convert: Convert, folder: Path) -> None:
    """The original becomes its default version; the bare file stays."""
    conversion = convert(model="bare", quantize="dynamic")
    assert conversion.path == folder / "bare" / "bare.dynamic.tflite"
    entry = scan(folder)["bare"]
    assert set(entry.versions) == {"tflite", "tflite-dynamic"}
    assert entry.default_version == "tflite"
    assert (folder / "bare.tflite").exists()


def test_a_version_that_cannot_run_here_is_the_last_source(tmp_path: Path) -> None:
    """Its answers are needed, so a SavedModel is avoided without TensorFlow."""
    shutil.copytree(MODELS / "petals", tmp_path / "petals")
    settings = ConversionSettings(tmp_path, tmp_path / "state")
    savedmodel = format_named("savedmodel")
    assert savedmodel is not None
    for environment, runs in (
        ("openvino", missing_framework(savedmodel) is None),
        ("tf2onnx", True),
    ):
        tool = Converter(
            "any", ("savedmodel", "tflite"), "openvino", "any", environment=environment
        )
        converter = ModelConverter(
            scan(tmp_path)["petals"], settings, lambda *_: None, lambda _: None, [tool]
        )
        try:
            assert converter._plans("openvino")[0].name == (
                "savedmodel" if runs else "tflite"
            )
        finally:
            converter.close()


def test_a_path_that_cannot_run_the_original_is_tried_last(tmp_path: Path) -> None:
    """OpenVINO's environment can't run a SavedModel, so ONNX is used without
    TensorFlow.
    """
    shutil.copytree(MODELS / "petals", tmp_path / "petals")
    savedmodel = format_named("savedmodel")
    assert savedmodel is not None
    tools = [
        Converter(
            "direct", ("savedmodel", "onnx"), "openvino", "any", environment="openvino"
        ),
        Converter("first", ("savedmodel",), "onnx", "any", environment="tf2onnx"),
    ]
    settings = ConversionSettings(tmp_path, tmp_path / "state", version="savedmodel")
    converter = ModelConverter(
        scan(tmp_path)["petals"], settings, lambda *_: None, lambda _: None, tools
    )
    try:
        lengths = [len(plan) for plan in converter._plans("openvino")[1]]
    finally:
        converter.close()
    assert lengths == ([1, 2] if missing_framework(savedmodel) is None else [2, 1])


def test_a_path_that_does_not_fit_on_the_disk_is_tried_last(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two environments that only fit alone are refused before the first download."""
    monkeypatch.setenv("POCKETSERVE_CONVERTERS", str(tmp_path / "none" / "yet"))
    free = shutil.disk_usage(tmp_path).free
    half = {
        name: Environment(name, "a test", ("a==1",), free * 2 // 3, 4)
        for name in ("half", "other")
    }
    for name, environment in half.items():
        monkeypatch.setitem(ENVIRONMENTS, name, environment)
    first, second = (
        replace(tool, environment=name) for tool, name in zip(CHAIN, half, strict=True)
    )
    with pytest.raises(
        ConversionError,
        match=r"^the environment half .* and the environment other .* GB are free in",
    ):
        convert(quantize="fp16", kind="onnx", tools=[first, second])
    here = Converter(
        "here", ("tflite",), "tflite", "convert.faulty_tool", quantize=("fp16",)
    )
    far = Converter(
        "far",
        ("tflite",),
        "tflite",
        "convert.faulty_tool",
        ("fp16",),
        environment="huge",
    )
    monkeypatch.setitem(
        ENVIRONMENTS, "huge", Environment("huge", "a test", ("a==1",), 10**18, 4)
    )
    assert convert(quantize="fp16", tools=[far, here]).tools == ("faulty 1",)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "name", ["petals.int8.tflite", "petals_fp16.tflite", "petals-quantized.tflite"]
)
def test_a_quantized_version_is_the_last_source(
    name: str, convert: Convert, folder: Path
) -> None:
    """Even a default version is avoided if it has no float32 weights left."""
    path = folder / "petals" / "model.toml"
    shutil.copyfile(folder / "petals" / "petals.tflite", folder / "petals" / name)
    text = path.read_text().replace(
        "[versions.tflite]",
        f'[versions.small]\nfile = "{name}"\n\n[versions.tflite]',
        1,
    )
    path.write_text(
        text.replace('default_version = "tflite"', 'default_version = "small"')
    )
    assert scan(folder)["petals"].default_version == "small"
    assert convert(quantize="fp16").source == "tflite"
    assert convert(quantize="dynamic").source == "tflite"
    assert convert(quantize="dynamic", version="small").source == "small"


FAULTS = {
    "crash": r"^faulty crashed on this model \(SIGSEGV\)$",
    "killed": r"^the system ended faulty, probably because of too little memory",
    "exit": r"^faulty ended without a result \(exit code 3\): the tool's own words on exit$",
    "system exit": r"^SystemExit: wrong usage$",
    "refusal": r"^the operator odd::op of layer conv1 is unknown$",
    "exception": r"^RuntimeError: it is broken$",
    "full disk": r"^the disk became full while faulty wrote; make room",
    "too much at once": r"^the model is too large for the memory that is free; convert it on a machine that has more$",
    "nothing": r"^faulty succeeded, but wrote nothing$",
    "empty": r"^faulty succeeded, but wrote nothing$",
    "not a model": r"^the result cannot be served: ",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_converter_changes_nothing(
    fault: str, convert: Convert, folder: Path
) -> None:
    """Each fault is reported in one sentence."""
    before = contents(folder)
    with pytest.raises(ConversionError, match=FAULTS[fault]) as caught:
        convert(fault, quantize="fp16")
    assert contents(folder) == before
    if fault == "refusal":
        assert caught.value.nearest == "--to onnx"
        assert "a trace" in caught.value.detail


CHAIN = (
    Converter("first", ("tflite",), "onnx", "convert.faulty_tool"),
    Converter("second", ("onnx",), "onnx", "convert.faulty_tool", quantize=("fp16",)),
)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "refusal of the second step",
            "the ONNX file made of petals.tflite has an operator odd::op",
        ),
        (
            "as large",
            "the ONNX file made of petals.tflite would not become smaller; use it without --quantize fp16",
        ),
    ],
)
def test_a_refusal_of_the_second_step_names_the_users_file(
    fault: str, sentence: str, convert: Convert, folder: Path
) -> None:
    """The intermediate file is invisible to the user."""
    before = contents(folder)
    with pytest.raises(ConversionError) as caught:
        convert(fault, quantize="fp16", kind="onnx", tools=CHAIN)
    assert caught.value.message == sentence
    assert contents(folder) == before


def test_an_intermediate_file_is_made_once(folder: Path, tmp_path: Path) -> None:
    """Later kinds and modes reuse it, because making it may take minutes."""
    second = replace(CHAIN[1], kind="openvino", quantize=("fp16", "dynamic"))
    options = {"fault": "count", "runs": str(tmp_path / "runs")}
    settings = ConversionSettings(folder, tmp_path / "state", options=options)
    converter = ModelConverter(
        scan(folder)["petals"],
        settings,
        lambda *_: None,
        lambda _: None,
        [CHAIN[0], second],
    )
    try:
        results = [
            converter.convert("openvino", quantize) for quantize in ("fp16", "dynamic")
        ]
    finally:
        converter.close()
    assert [len(result.tools) for result in results] == [2, 2]
    assert results[0].path != results[1].path
    assert (tmp_path / "runs").read_text().split() == ["tflite", "onnx", "onnx"]


@pytest.mark.parametrize("quantize", ["fp16", "dynamic"])
@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("petals", "tflite"),
        ("diabetes", "tflite"),
        ("digits", "tflite-int8"),
    ],
)
def test_a_result_that_is_not_smaller_is_refused(
    model: str, version: str, quantize: str, convert: Convert, folder: Path
) -> None:
    """Such models have few or small weights, whichever tool is used."""
    shutil.copytree(MODELS / model, folder / model, dirs_exist_ok=True)
    before = contents(folder)
    words = r"^(petals|diabetes|digits\.int8)\.tflite would not become smaller; use it as it is$"
    with pytest.raises(ConversionError, match=words):
        convert(
            model=model,
            version=version,
            quantize=quantize,
            tools=[tflite_weights.CONVERTER],
        )
    with pytest.raises(ConversionError, match=words):
        convert("as large", model=model, version=version, quantize=quantize)
    assert contents(folder) == before


def test_a_result_with_wrong_answers_is_refused(convert: Convert, folder: Path) -> None:
    """Its weights are zeros."""
    weights = petals_weights()
    before = contents(folder)
    with pytest.raises(
        ConversionError,
        match=r"answers differently from the original: its outputs differ by 1\.\d+ of",
    ):
        convert(
            "other weights",
            quantize="fp16",
            options={"weights": weights.tobytes().hex()},
        )
    assert contents(folder) == before


def petals_weights() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the regression's three weights from its safetensors file."""
    raw = (MODELS / "petals/weights.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    name = next(
        name
        for name, entry in header.items()
        if name != "__metadata__" and np.prod(entry["shape"]) == 3
    )
    start, end = header[name]["data_offsets"]
    return np.frombuffer(raw[8 + length + start : 8 + length + end], np.float32)


def job_of(fault: str, folder: Path) -> Job:
    """Return a run of the faulty tool, which writes beside its request."""
    request = ConversionRequest(
        MODELS / "petals/petals.tflite",
        "tflite",
        folder / "out",
        options={"fault": fault},
    )
    document = {"module": "convert.faulty_tool", "request": request.to_json()}
    return Job(
        "faulty",
        Path(sys.executable),
        "pocketserve_lab.convert.tool_process",
        document,
        folder,
    )


@pytest.mark.usefixtures("folder")
def test_a_hung_converter_is_killed(tmp_path: Path) -> None:
    """The message names the option for a longer timeout."""
    with pytest.raises(
        ConversionError,
        match=r"^faulty did not finish within 1 s; --timeout gives it more$",
    ):
        run_job(job_of("hang", tmp_path), ProcessLimits(1.0))


def test_a_signal_while_a_process_starts_is_delayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once started, the process ends with the command."""
    begun: list[subprocess.Popen[bytes]] = []

    class Signalled(subprocess.Popen):  # type: ignore[type-arg]  # at run time it has no arguments
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            begun.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    with (
        pytest.raises(KeyboardInterrupt),
        tidy_end(),
        running(["sleep", "600"]),
    ):
        raise AssertionError("the signal was not heard")
    assert [process.returncode for process in begun] == [-signal.SIGKILL]


class Enough(Exception):
    """The test has seen the expected event."""


@pytest.mark.usefixtures("folder")
def test_a_log_stays_small(tmp_path: Path) -> None:
    """Its end is kept, with the tool's last output."""
    log = tmp_path / "log.txt"

    def look() -> None:
        if log.stat().st_size <= 1 << 20 and log.read_bytes().endswith(
            b"the last words\n"
        ):
            raise Enough

    with pytest.raises(Enough):
        run_job(job_of("noise", tmp_path), ProcessLimits(WAIT_S), look)


@pytest.mark.usefixtures("folder")
def test_descendants_of_a_tool_are_killed(tmp_path: Path) -> None:
    """This includes orphans in sessions of their own."""
    output = tmp_path / "out"

    def look() -> None:
        if output.exists() and output.read_bytes().endswith(b"\n"):
            raise Enough

    with pytest.raises(Enough):
        run_job(job_of("left behind", tmp_path), ProcessLimits(WAIT_S), look)
    process = Path("/proc", output.read_text().strip())
    deadline = time.monotonic() + WAIT_S
    while process.exists() and "(zombie)" not in (process / "status").read_text():
        assert time.monotonic() < deadline


def test_a_tool_that_uses_too_much_memory_is_killed(convert: Convert) -> None:
    """This happens before the system runs out of memory."""
    with pytest.raises(
        ConversionError,
        match=r"^the model is too large for faulty here: it took more than 315 MB",
    ):
        convert("memory", quantize="fp16", limits=ProcessLimits(WAIT_S, 300 << 20))


@pytest.mark.usefixtures("folder")
def test_the_memory_of_descendants_counts(tmp_path: Path) -> None:
    """This includes orphans in sessions of their own."""
    with pytest.raises(
        ConversionError,
        match=r"^the model is too large for faulty here: it took more than 315 MB",
    ):
        run_job(job_of("memory of a child", tmp_path), ProcessLimits(WAIT_S, 300 << 20))


def test_int8_needs_samples(convert: Convert) -> None:
    """It is refused before a tool runs, with the mode that needs none."""
    with pytest.raises(
        ConversionError,
        match="measures the ranges of numbers on samples, and there are none",
    ) as caught:
        convert(quantize="int8")
    assert caught.value.nearest == "--quantize dynamic"
    assert "petals/samples" in caught.value.message
    with pytest.raises(
        ConversionError, match=r"there are none; give --samples FOLDER$"
    ):
        # A folder beside it would be shared by all models.
        convert(model="bare", quantize="int8")


def test_a_version_without_a_path_is_refused(convert: Convert, folder: Path) -> None:
    """The message names a version that has one."""
    shutil.copytree(MODELS / "digits/tfjs", folder / "petals/tfjs")
    path = folder / "petals" / "model.toml"
    path.write_text(path.read_text() + '\n[versions.tfjs]\nfile = "tfjs"\n')
    with pytest.raises(
        ConversionError, match="no converter makes TFLite from TensorFlow"
    ) as caught:
        convert(quantize="fp16", version="tfjs")
    assert caught.value.nearest == "--version tflite"


def test_samples_of_the_wrong_shape_are_refused(
    convert: Convert, tmp_path: Path
) -> None:
    """The message names the model's shape."""
    np.save(tmp_path / "wrong.npy", np.zeros((4, 5), np.float32))
    with pytest.raises(
        ConversionError, match=r"no sample can be used: wrong\.npy: .*\b3\b"
    ):
        convert(quantize="int8", samples=tmp_path / "wrong.npy")
    np.savez(tmp_path / "wrong.npz", features=np.zeros((4, 5), np.float32))
    with pytest.raises(
        ConversionError,
        match=r"'features' has shape \[4, 5\], and the model takes \[-1, 3\]",
    ):
        convert(quantize="int8", samples=tmp_path / "wrong.npz")
    with pytest.raises(ConversionError, match="are neither a file nor a folder"):
        convert(quantize="int8", samples=tmp_path / "gone")


def test_unusable_samples_are_skipped(
    convert: Convert, folder: Path, tmp_path: Path
) -> None:
    """Large files and archives that claim gigabytes aren't in the hash either."""
    samples = tmp_path / "samples"
    samples.mkdir()
    rows = np.array([[5.1, 3.5, 1.4], [6.0, 2.9, 4.5]], np.float32)
    np.savez(samples / "rows.npz", features=rows)
    with (samples / "large.npy").open("wb") as file:
        file.truncate((256 << 20) + 1)
    np.savez_compressed(samples / "bomb.npz", features=rows)
    bomb = bytearray((samples / "bomb.npz").read_bytes())
    # Its claimed unpacked size.
    struct.pack_into("<I", bomb, bomb.index(b"PK\1\2") + 24, 2_000_000_000)
    (samples / "bomb.npz").write_bytes(bomb)
    header = {
        "descr": "<f4",
        "fortran_order": False,
        "shape": (10**12, 3),
    }
    with (
        zipfile.ZipFile(samples / "claims.npz", "w") as archive,
        archive.open("features.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)  # no number follows it
    notes: list[str] = []
    convert(quantize="int8", samples=samples, notes=notes)
    assert notes == [
        "left out of the samples: bomb.npz: its arrays take 2.0 GB, and 1.1 GB are the "
        "limit",
        "left out of the samples: claims.npz: the .npy file cannot be read: its header announces 12000000000000 bytes, "
        "but 0 follow",
        "left out of the samples: large.npy: it is larger than 268435456 bytes",
    ]
    provenance = (
        read_manifest(folder / "petals/model.toml").versions["tflite-int8"].provenance
    )
    assert provenance["samples"] == 2
    assert provenance["samples_sha256"] == hash_samples(
        [DataSample("rows", samples / "rows.npz")]
    )


def test_samples_calibrate_and_are_recorded(
    convert: Convert, folder: Path, tmp_path: Path
) -> None:
    """Rows go through the model's task; the manifest has their number and hash."""
    table = tmp_path / "rows.csv"
    table.write_text(
        "sepal_length,sepal_width,petal_length\n5.1,3.5,1.4\n6.0,2.9,4.5\n7.1,3.0,5.9\n"
    )
    conversion = convert(quantize="int8", samples=table)
    assert conversion.agreement is not None
    assert conversion.agreement.samples == 3
    assert not conversion.random
    provenance = (
        read_manifest(folder / "petals/model.toml").versions["tflite-int8"].provenance
    )
    assert provenance["samples"] == 3
    assert len(provenance["samples_sha256"]) == 64


def test_labelled_data_of_a_comparison_are_samples(
    convert: Convert, folder: Path, tmp_path: Path
) -> None:
    """The truth's column and lists of labels are excluded."""
    (tmp_path / "rows.csv").write_text(
        "sepal_length,sepal_width,petal_length,value\n5.1,3.5,1.4,0.2\n6,2.9,4.5,1.5\n"
    )
    convert(quantize="int8", samples=tmp_path / "rows.csv")
    assert (
        read_manifest(folder / "petals/model.toml")
        .versions["tflite-int8"]
        .provenance["samples"]
        == 2
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConversionError, match="has no samples"):
        convert(quantize="int8", samples=empty)


def test_a_read_only_folder_is_refused_first(tmp_path: Path, folder: Path) -> None:
    """Root, which may write anywhere, becomes another user for it."""
    titles: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        models = Path(made) / "models"
        shutil.copytree(folder, models)
        for path in (
            Path(made),
            models,
            models / "petals",
        ):
            path.chmod(0o555)
        entries = scan(models)
        for model in ("petals", "bare"):
            settings = ConversionSettings(models, tmp_path / "state", quantize="fp16")
            show = lambda title, share: titles.append(title)  # noqa: E731
            converter = ModelConverter(
                entries[model], settings, show, titles.append, [FAULTY]
            )
            words = rf"{model} cannot be written: Permission denied; copy the model to a folder"
            with as_plain_user(), pytest.raises(ConversionError, match=words):
                converter.convert("tflite")
            converter.close()
        for path in (
            models / "petals",
            models,
            Path(made),
        ):
            path.chmod(0o755)
    assert titles == []


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """Limit file sizes of this process and its children, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("model", ["petals", "bare"])
def test_a_full_models_folder_is_unchanged(
    model: str, convert: Convert, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result was good."""
    before = contents(folder)

    def publish_on_a_full_disk(*arguments: Any, **options: Any) -> Path:
        with full_disk(1 << 10):
            return publish(*arguments, **options)

    monkeypatch.setattr("pocketserve_lab.convert.run.publish", publish_on_a_full_disk)
    with pytest.raises(
        ConversionError,
        match=rf"{model} cannot be written: File too large; make room and try again$",
    ):
        convert(model=model, quantize="fp16")
    assert contents(folder) == before
    assert sorted(os.listdir(folder)) == [
        "bare.tflite",
        "petals",
    ]


@pytest.mark.parametrize(
    "free",
    [
        0,
        100,
        1 << 10,
    ],
)
def test_a_full_state_folder_is_reported(
    free: int, convert: Convert, folder: Path
) -> None:
    """There is no room for the request, the samples or the result."""
    before = contents(folder)
    with (
        full_disk(free),
        pytest.raises(
            (ConversionError, OSError), match=r"disk became full|File too large"
        ),
    ):
        convert(quantize="fp16")
    assert contents(folder) == before


COMMAND = """
import sys
from pocketserve.cli import main
from pocketserve_lab.convert import run
from pocketserve_lab.convert.converter import Converter
run.converters = lambda: [Converter("faulty", ("tflite",), "tflite", "convert.faulty_tool", quantize=("fp16",))]
words = ["convert", "petals", "--to", "tflite", "--quantize", "fp16", "--models-dir"]
sys.exit(main([*words, *sys.argv[1:]]))
"""


@contextmanager
def command(
    folder: Path, fault: str, *options: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Run ``pocketserve convert`` with the faulty converter only."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "FAULT": fault,
        **variables,
    }
    words = [sys.executable, "-c", COMMAND, str(folder), *options]
    with subprocess.Popen(
        words, stdout=-1, stderr=-1, text=True, env=environment
    ) as process:
        yield process


def is_alive(pid: int) -> bool:
    try:
        return stat_fields(pid)[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL],
    ids=lambda n: n.name,
)
def test_an_interrupted_run_leaves_nothing(
    number: signal.Signals, folder: Path, tmp_path: Path, convert: Convert
) -> None:
    """Tool and children end with the command; after SIGKILL, when the next one begins."""
    before = contents(folder)
    state = tmp_path / "state"
    pids = tmp_path / "pids"
    with command(folder, "children hang", PIDS=str(pids)) as process:
        wait_until(lambda: pids.exists() and pids.read_text().endswith("."))
        tool, *children = map(int, pids.read_text().rstrip(".").split())
        process.send_signal(number)
        _, words = process.communicate(timeout=WAIT_S)
    assert process.returncode == (-number if number == signal.SIGKILL else 1)
    assert "Traceback" not in words
    assert contents(folder) == before
    wait_until(lambda: not is_alive(tool))
    if number != signal.SIGKILL:
        # They were killed: the system may take a moment.
        wait_until(lambda: not any(map(is_alive, children)))
        assert not list(state.glob("convert-*"))
    convert(quantize="fp16")
    wait_until(lambda: not any(map(is_alive, children)))


def test_the_tools_own_output_needs_debug(folder: Path) -> None:
    """The message names the layer, and a remedy."""
    assert failure_message(folder, "refusal") == (
        "pocketserve: the operator odd::op of layer conv1 is unknown; try --to onnx\n"
    )
    assert "a trace" in failure_message(folder, "refusal", "--debug")


def failure_message(folder: Path, fault: str, *options: str) -> str:
    """Return a failing command's output without its progress."""
    before = contents(folder)
    with command(folder, fault, *options) as process:
        _, words = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert contents(folder) == before
    return "".join(
        line for line in words.splitlines(keepends=True) if not line.endswith("…\n")
    )


def test_the_command_converts_and_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digits become half floats, with JSON output; the refusal names a remedy."""
    shutil.copytree(MODELS / "digits", folder / "digits")
    words = [
        "convert",
        "digits",
        "--models-dir",
        str(folder),
        "--to",
        "tflite",
        "--version",
        "tflite",
    ]
    assert main([*words, "--quantize", "fp16", "--json"]) == 0
    (version,) = json.loads(capsys.readouterr().out)["versions"]
    assert version["version"] == "tflite-fp16"
    assert version["agreement"]["same_class"] == 1.0
    assert version["result_bytes"] < 0.6 * version["source_bytes"]
    assert main(["predict", "--local", "digits", "--models-dir", str(folder), "--version", "tflite-fp16", "--json",
                 str(MODELS / "digits/samples/7.png")]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["predictions"][0]["label"] == "7"
    assert main(words) == 1
    assert "it is TFLite already; try --quantize fp16" in capsys.readouterr().err
    assert (
        main(["convert", "digits", "--models-dir", str(folder), "--to", "tflight"]) == 1
    )
    assert (
        "'tflight' is not a kind of file; did you mean 'tflite'?"
        in capsys.readouterr().err
    )
    assert main(["convert", "--on-device", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["on_device"]
    assert {"converter": "tflite-weights", "from": "tflite", "to": "tflite", "quantize": "fp16, dynamic",
            "state": "ready",} in rows  # fmt: skip


def test_arrays_of_texts_need_no_pickle(tmp_path: Path) -> None:
    """Texts among samples are stored with a fixed length."""
    from pocketserve_lab.convert.sample_run import save_arrays

    words = np.array([[b"a"], [b"word"]], dtype=object)
    save_arrays(tmp_path / "a.npz", {"text": words, "ids": np.arange(3)})
    arrays = load_arrays(tmp_path / "a.npz")
    assert arrays["text"].tolist() == words.tolist()
    assert arrays["ids"].tolist() == [
        0,
        1,
        2,
    ]


def test_a_kind_that_cannot_run_here_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment has Node's packages: the message precedes gigabytes of downloads."""
    monkeypatch.setenv("POCKETSERVE_TFJS_MODULES", str(tmp_path / "none"))
    monkeypatch.setenv("POCKETSERVE_CONVERTERS", str(tmp_path / "converters"))
    shutil.copytree(MODELS / "digits", folder / "digits")
    settings = ConversionSettings(folder, tmp_path / "state", version="keras")
    converter = ModelConverter(
        scan(folder)["digits"], settings, lambda title, share: None, print
    )
    try:
        with pytest.raises(
            ConversionError,
            match=r"could not be run.* TensorFlow\.js is not installed.*npm install",
        ):
            converter.convert("tfjs")
    finally:
        converter.close()
    assert not (tmp_path / "converters").exists()
