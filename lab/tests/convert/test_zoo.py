"""Test the zoo's tool: conversions, resumption and its page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from places import MODELS, ROOT
from pocketserve_lab.convert.converter import ConversionError

TOOL = ROOT / "tools" / "zoo.py"


@pytest.fixture(scope="module")
def zoo() -> Iterator[ModuleType]:
    """Import the tool with the modules beside it."""
    sys.path.insert(0, str(TOOL.parent))
    try:
        import zoo

        yield zoo
    finally:
        sys.path.remove(str(TOOL.parent))


class Builder:
    """Builds the digits as an architecture, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, architecture: Any, folder: Path) -> None:
        self.count += 1
        if architecture.name == "broken":
            raise ConversionError("broken has no layers")
        shutil.copytree(MODELS / "digits" / "samples", folder / "samples")
        shutil.copyfile(MODELS / "digits" / "digits.tflite", folder / "digits.tflite")
        text = (
            (MODELS / "digits" / "model.toml")
            .read_text(encoding="utf-8")
            .partition("[versions.tflite-int8]")[0]
        )
        (folder / "model.toml").write_text(text, encoding="utf-8")
        shutil.copyfile(MODELS / "digits" / "labels.txt", folder / "labels.txt")


def small_zoo(zoo: ModuleType, folder: Path) -> tuple[Any, list[Any]]:
    """Return two architectures, one of them broken, two paths, one of them futile, and
    their results.
    """
    results = zoo.Results(folder / "results.jsonl")
    if not results.architectures:
        names = {"digits": 26_000, "broken": 1}
        results.add_architectures(
            zoo.Architecture("embedded", name, "classification", count, [8, 8, 1])
            for name, count in names.items()
        )
    return results, [
        zoo.ConversionPath("embedded", "tflite", "tflite", 0, "fp16"),
        zoo.ConversionPath("embedded", "tflite", "keras", 1),
    ]


def test_a_finished_run_is_not_repeated(
    zoo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pair has one line with figures or a reason, and nothing else is left."""
    results, paths = small_zoo(zoo, tmp_path)
    builder = Builder()
    zoo.Zoo(results, tmp_path / "work", builder).run(paths, results.architectures)
    assert builder.count == 4
    assert not list((tmp_path / "work" / "models").iterdir())
    kept = zoo.Results(tmp_path / "results.jsonl")
    assert kept.conversions == results.conversions
    assert kept.architectures == results.architectures
    good = kept.conversions["digits", "tflite>tflite-fp16"]
    assert good["state"] == "ok"
    assert good["samples"] == 10
    assert good["same_class"] == 1.0
    assert 0 < good["error"] < 0.02
    assert good["bytes"] < 0.6 * good["source_bytes"]
    assert good["tools"].startswith("tflite-weights ")
    assert good["peak_mb"] > 0
    nowhere = kept.conversions["digits", "tflite>keras"]
    assert nowhere["state"] == "refused"
    assert nowhere["reason"] == "no converter makes Keras from TFLite"
    broken = kept.conversions["broken", "tflite>keras"]
    assert broken["state"] == "refused"
    assert broken["reason"] == "there is nothing to begin with: MODEL has no layers"
    assert len(capsys.readouterr().out.splitlines()) == 4

    zoo.Zoo(kept, tmp_path / "again", builder).run(paths, kept.architectures)
    assert builder.count == 4


def test_a_killed_run_is_resumed(zoo: ModuleType, tmp_path: Path) -> None:
    """An incomplete line is dropped and its pair repeated; after the stop nothing
    begins.
    """
    results, paths = small_zoo(zoo, tmp_path)
    path = tmp_path / "results.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"name":"digits","path":"tflite>ker')
    results = zoo.Results(path)
    assert path.read_text() == whole
    builder = Builder()
    zoo.Zoo(results, tmp_path / "late", builder, stop=0.0).run(
        paths, results.architectures
    )
    assert not builder.count
    assert not results.conversions
    zoo.Zoo(results, tmp_path / "work", builder).run(paths[1:], results.architectures)
    assert set(results.conversions) == {
        ("digits", "tflite>keras"),
        ("broken", "tflite>keras"),
    }


def test_speeds_are_compared_afterwards(
    zoo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs without a speed are converted again, and their lines replaced."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "fast" / "state"))
    results, (path, _) = small_zoo(zoo, tmp_path)
    digits = results.architectures[:1]
    zoo.Zoo(results, tmp_path / "work", Builder()).run([path], digits)
    zoo.Zoo(results, tmp_path / "fast", Builder(), seconds=0.2).run([path], digits)
    kept = zoo.Results(tmp_path / "results.jsonl")
    original, result = kept.conversions["digits", path.name]["p50_ms"]
    assert original > 0
    assert result > 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3
    builder = Builder()
    zoo.Zoo(kept, tmp_path / "again", builder, seconds=0.2).run([path], digits)
    assert not builder.count


def test_a_wrong_result_is_a_failure(zoo: ModuleType) -> None:
    """Failures are told from documented refusals."""
    for message in (
        "the result answers differently from the original: its outputs differ by 1.2 "
        "of their size",
        "litert-torch crashed on this model (SIGSEGV)",
        "RuntimeError: shape mismatch",
        "torch._dynamo.exc.Unsupported: generators",
    ):
        assert zoo.UNFORESEEN.search(message), message
    for message in (
        "no converter makes Keras from TFLite",
        "torch.onnx did not finish within 300 s; --timeout gives",
    ):
        assert not zoo.UNFORESEEN.search(message), message


def test_the_page_is_up_to_date() -> None:
    """``tools/zoo.py write`` makes its tables."""
    done = subprocess.run(
        [sys.executable, TOOL, "write", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.convert
def test_an_architecture_of_keras_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes from the library's list to a line of the results."""
    import json

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'server'}:{ROOT / 'client'}")
    results = tmp_path / "results.jsonl"
    options = [
        "--results",
        str(results),
        "--only",
        "MobileNet",
        "--paths",
        "keras>tflite",
        "--timeout",
        "1800",
    ]
    done = subprocess.run(
        [sys.executable, TOOL, "run", *options],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *architectures, line = map(json.loads, results.read_text().splitlines())
    assert len(architectures) >= 38
    assert {item["library"] for item in architectures} == {"keras"}
    assert line["name"] == "MobileNet"
    assert line["path"] == "keras>tflite"
    assert line["state"] == "ok"
    assert line["same_class"] == 1.0
    assert line["error"] < 1e-3
    assert line["bytes"] > 10**7
