"""Test the parts of a conversion that need no tool.

These are paths, environments, names, samples and the comparison.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from convert.own_paths import fault
from places import MODELS, ROOT
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import format_named
from pocketserve_lab.convert.converter import (
    GGUF_MODES,
    KINDS,
    QUANTIZE_MODES,
    ConversionError,
    ConversionRequest,
    Converter,
    SourceTensor,
)
from pocketserve_lab.convert.environments import (
    ENVIRONMENTS,
    MARKER,
    Environment,
    ensure,
    find_python,
    python_of,
)
from pocketserve_lab.convert.plan import (
    check_kinds,
    environment_of,
    plans_for,
    reachable_kinds,
)
from pocketserve_lab.convert.publish import NewVersion, choose_name, publish
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.tools.tensorflow_model import missing_operators
from pocketserve_lab.convert.verify import (
    BOUNDS,
    check_agreement,
    compare_outputs,
    doubts,
)

TOOLS = (
    Converter("torch-onnx", ("torch",), "onnx", "x"),
    Converter("onnx-tflite", ("onnx",), "tflite", "x", environment="onnx2tf"),
    Converter("shrink", ("tflite",), "tflite", "x", quantize=("fp16", "int8")),
)


def path_names(format: str, kind: str, quantize: str) -> list[list[str]]:
    """Return the paths from a format to a kind, by converter names."""
    return [
        [step.converter.name for step in plan]
        for plan in plans_for(format, kind, quantize, TOOLS)
    ]


def test_paths_have_one_or_two_steps() -> None:
    """A mode of the last step applies to that step only."""
    assert path_names("torch", "onnx", "none") == [["torch-onnx"]]
    assert path_names("torch", "tflite", "none") == [["torch-onnx", "onnx-tflite"]]
    assert path_names("onnx", "tflite", "int8") == [["onnx-tflite", "shrink"]]
    (plan,) = plans_for("onnx", "tflite", "int8", TOOLS)
    assert [(step.format, step.quantize) for step in plan] == [
        ("onnx", "none"),
        ("tflite", "int8"),
    ]
    assert reachable_kinds(["torch"], "none", TOOLS) == ["tflite", "onnx"]


@pytest.mark.parametrize(
    ("format", "kind", "quantize", "message", "nearest"),
    [
        ("tflite", "tflite", "none", "it is TFLite already", "--quantize fp16 or int8"),
        ("onnx", "tflite", "dynamic", "no converter makes TFLite from ONNX with --quantize dynamic",
         "--quantize none or fp16 or int8"),
        ("torch", "keras", "none", "no converter makes Keras from unconverted PyTorch", "--to tflite or onnx"),
        ("tfjs", "onnx", "none", "no converter makes ONNX from TensorFlow.js", ""),
    ],
)  # fmt: skip
def test_a_missing_path_is_explained_in_one_sentence(
    format: str, kind: str, quantize: str, message: str, nearest: str
) -> None:
    """The message names the nearest path that works."""
    with pytest.raises(ConversionError) as caught:
        plans_for(format, kind, quantize, TOOLS)
    assert caught.value.message == message
    assert caught.value.nearest == nearest


def test_a_tool_is_quoted_without_addresses() -> None:
    """A refusal is reproducible; its detail has the tool's whole text."""
    text = "rewriter <function rewrite_gemm at 0x7f91e72da2a0>:\n exception list index out of range"
    error = ConversionRequest(Path("a.tflite"), "tflite", Path("a.onnx")).refusal(
        "tf2onnx", text
    )
    assert error.message == (
        "tf2onnx cannot convert a.tflite: rewriter <function rewrite_gemm>: exception list index out of range"
    )
    assert error.detail == text


def test_missing_operators_are_recognised_in_each_tools_message() -> None:
    """TensorFlow.js has two forms."""
    missing = "Unsupported Ops in the model before optimization\nErfc, Betainc"
    assert missing_operators(ValueError(missing)) == ["Erfc, Betainc"]
    assert missing_operators(ValueError("Unsupported Ops: Erfc")) == ["Erfc"]
    assert missing_operators(ValueError("tf.Erfc, FlexErfc")) == ["Erfc"]


def test_names_of_kinds() -> None:
    """``all`` names no kind in particular; a mistyped one gets a suggestion."""
    assert check_kinds("all") == []
    assert check_kinds("onnx, tflite,onnx") == [
        "onnx",
        "tflite",
    ]
    with pytest.raises(
        ConversionError, match="'onx' is not a kind of file; did you mean 'onnx'"
    ):
        check_kinds("onx")
    with pytest.raises(ConversionError, match="names no kind"):
        check_kinds(",")


def test_the_registry_is_consistent() -> None:
    """Each converter's formats, kinds, modes and environment exist."""
    for converter in converters():
        assert all(format_named(source) is not None for source in converter.sources), (
            converter.name
        )
        modes = {*QUANTIZE_MODES, *GGUF_MODES}
        assert converter.kind in KINDS, converter.name
        assert set(converter.quantize) <= modes, converter.name
        assert set(converter.needs_samples) <= set(QUANTIZE_MODES)
        for name in (
            converter.environment,
            converter.fallback,
            environment_of(converter),
        ):
            assert name is None or name in ENVIRONMENTS, converter.name
    served = [name for name, kind in KINDS.items() if kind.served]
    assert all(format_named(name) is not None for name in served)


def test_every_package_of_an_environment_is_pinned() -> None:
    """Tested versions are installed together."""
    for environment in ENVIRONMENTS.values():
        assert all("==" in requirement for requirement in environment.requirements), (
            environment.name
        )
        assert environment.disk > 0
        assert environment.minutes > 0


def test_a_request_survives_json() -> None:
    request = ConversionRequest(
        Path("/m/model.py"),
        "torch",
        Path("/o.onnx"),
        "onnx",
        weights=Path("/m/w.pt"),
        arguments={"width": 3},
        inputs=(SourceTensor("x", "FP32", (-1, 3)),),
        samples=Path("/s.npz"),
        quantize="fp16",
        trusted=("aa",),
    )
    assert ConversionRequest.from_json(request.to_json()) == request


# --- Environments


def no_progress(title: str, share: float) -> None:
    """Show nothing."""


def test_an_environment_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The message names the needed and the free space, before any download."""
    huge = Environment("huge", "everything", ("nothing==1.0",), 10**18, 4)
    with pytest.raises(
        ConversionError,
        match=r"takes 1000000000\.0 GB and about 4 min, but .* GB are free in",
    ):
        ensure(huge, tmp_path, no_progress, no_progress_note)
    assert os.listdir(tmp_path) == ["huge.lock"]


def no_progress_note(text: str) -> None:
    """Say nothing."""


def test_a_missing_network_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message follows the one on size and time, and all leftovers are removed."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    # Discard: nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    (tmp_path / "small" / "lib").mkdir(parents=True)
    (tmp_path / "small" / "lib" / "half").write_text("made")
    notes: list[str] = []
    small = Environment(
        "small", "a test", ("pocketserve-no-such-package==1.0",), 10**6, 4
    )
    with pytest.raises(
        ConversionError,
        match="because no package index can be reached; connect to a network",
    ) as caught:
        ensure(small, tmp_path, no_progress, notes.append)
    assert notes == [
        f"the environment small (a test) takes 0.0 GB and about 4 min; it is created once, in {tmp_path}"
    ]
    assert os.listdir(tmp_path) == ["small.lock"]
    assert "Connection refused" in caught.value.detail


def test_a_broken_python_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyenv leaves a program per version, which only runs for enabled ones."""
    programs = {
        "python3.13": "exit 127",
        "python3.12": f'exec "{sys.executable}" "$@"',
        "python3.11": "exit 127",
    }
    for name, command in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python((3, 13)) == str(tmp_path / "python3.12")
    assert find_python((3, 11)) is None


def test_a_full_disk_during_the_installation_is_reported(tmp_path: Path) -> None:
    """The message names the needed space, and all leftovers are removed."""
    small = Environment(
        "small", "a test", ("pocketserve-no-such-package==1.0",), 10**6, 4
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Larger files cannot be written, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(
            ConversionError,
            match=r"takes 0\.0 GB and about 4 min, and the disk became full; make room",
        ):
            ensure(small, tmp_path, no_progress, no_progress_note)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["small.lock"]


MAKING = """
import sys
from pathlib import Path
from pocketserve_lab.convert import environments
environments._interpreter = lambda environment: sys.argv[2]
environments.ensure(environments.Environment("e", "a test", (), 1, 4), Path(sys.argv[1]), lambda *_: None, print)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name
)
def test_an_interrupted_installation_is_cleaned_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    """It ends with the command; after SIGKILL, when the next one begins."""
    python = tmp_path / "python"
    folder = tmp_path / "environments"
    pid = tmp_path / "pid"
    python.write_text(
        f'#!/bin/sh\nmkdir -p "$3/lib"\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 600\n'
    )
    python.chmod(0o755)
    command = [sys.executable, "-c", MAKING, folder, python]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=-1, stderr=-1, env=environment) as process:
        deadline = time.monotonic() + 60
        while not pid.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(number)
        process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert not (folder / "e").exists()
    huge = Environment("e", "a test", (), 10**18, 4)
    with pytest.raises(ConversionError, match="are free in"):
        ensure(huge, folder, no_progress, no_progress_note)
    assert not (folder / "e").exists()
    while Path("/proc", pid.read_text().strip()).exists():
        assert time.monotonic() < deadline + 60


def test_an_environment_with_other_versions_is_replaced(tmp_path: Path) -> None:
    """Its marker contains the requirements."""
    environment = Environment("e", "a test", ("a==1",), 10**6, 4)
    python = tmp_path / "e" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert python_of(environment, tmp_path) is None
    (tmp_path / "e" / MARKER).write_text('["a==1", "numpy==2.4.6", "pillow==13.0.0"]')
    assert python_of(environment, tmp_path) == python
    assert python_of(Environment("e", "a test", ("a==2",), 10**6, 4), tmp_path) is None


def test_an_environment_that_another_command_installs_is_awaited(
    tmp_path: Path,
) -> None:
    """The user reads the reason."""

    def show(title: str, share: float) -> None:
        raise KeyboardInterrupt(title)

    with (tmp_path / "e.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(
            KeyboardInterrupt,
            match=r"^waiting for another command, which is creating e$",
        ):
            ensure(
                Environment("e", "a test", ("a==1",), 10**6, 4),
                tmp_path,
                show,
                no_progress_note,
            )
    assert os.listdir(tmp_path) == ["e.lock"]


def test_a_phone_gets_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message suggests another machine."""
    monkeypatch.setenv("POCKETSERVE_SIMULATION", str(tmp_path))
    with pytest.raises(
        ConversionError, match="cannot be installed on a phone: convert on a desktop"
    ):
        ensure(ENVIRONMENTS["onnx"], tmp_path, no_progress, no_progress_note)


# --- Names and manifests


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return a models folder with only the digits' TFLite and ONNX versions."""
    shutil.copytree(MODELS / "digits", tmp_path / "models" / "digits")
    return tmp_path / "models"


def test_versions_are_named_after_kind_and_quantisation(models: Path) -> None:
    """If the name is taken, the source is added."""
    entry = scan(models)["digits"]
    assert choose_name(entry, "torch", "tflite", "fp16") == NewVersion(
        "tflite-fp16", "digits.fp16.tflite"
    )
    assert choose_name(entry, "torch", "tflite", "none") == NewVersion(
        "tflite-from-torch", "digits.from-torch.tflite"
    )
    assert (
        choose_name(entry, "torch", "savedmodel", "none").file
        == "savedmodel.from-torch"
    )
    assert choose_name(entry, "torch", "onnx", "none", "best") == NewVersion(
        "best", "digits.best.onnx"
    )
    (models / "digits" / "digits.fp16.tflite").touch()
    assert (
        choose_name(entry, "torch", "tflite", "fp16").file
        == "digits.tflite-fp16.tflite"
    )
    (models / "digits" / "digits.tflite-fp16.tflite").touch()
    with pytest.raises(ConversionError, match="belongs to no version; remove it"):
        choose_name(entry, "torch", "tflite", "fp16")


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "a b",
        "",
        ".hidden",
        "x" * 300,
        "\N{HIRAGANA LETTER A}" * 100,
    ],
)
def test_an_impossible_name_is_refused(name: str, models: Path) -> None:
    """It is refused before any tool runs."""
    with pytest.raises(
        ConversionError,
        match=r"^--name '.*' cannot name a version: it becomes a part of URLs",
    ):
        choose_name(scan(models)["digits"], "torch", "onnx", "none", name)


def test_a_folder_without_a_manifest_gets_one(models: Path, tmp_path: Path) -> None:
    """It lists all versions, and the default stays, although the new kind would win."""
    folder = models / "numbers"
    folder.mkdir()
    shutil.copyfile(MODELS / "digits" / "digits.onnx", folder / "numbers.onnx")
    shutil.copyfile(
        MODELS / "digits" / "digits.int8.tflite", tmp_path / "result.tflite"
    )
    entry = scan(models)["numbers"]
    publish(
        entry,
        "onnx",
        tmp_path / "result.tflite",
        choose_name(entry, "onnx", "tflite", "none"),
        {"tools": ["t 1"]},
    )
    after = scan(models)["numbers"]
    assert set(after.versions) == {"onnx", "tflite"}
    assert after.default_version == "onnx"
    assert read_manifest(folder / "model.toml").versions["tflite"].provenance == {
        "tools": ["t 1"]
    }


def test_a_broken_manifest_is_unchanged(models: Path, tmp_path: Path) -> None:
    """The new file is removed."""
    entry = scan(models)["digits"]
    (models / "digits" / "model.toml").write_text("[")
    (tmp_path / "result").write_bytes(b"content")
    with pytest.raises(ConversionError, match="not valid TOML"):
        publish(
            entry, "tflite", tmp_path / "result", NewVersion("new", "new.tflite"), {}
        )
    assert not (models / "digits" / "new.tflite").exists()
    assert not list((models / "digits").glob(".pocketserve*"))


LAYOUTS = {
    "dotted": 'versions.tflite.file = "digits.tflite"  # small\nversions.onnx.file = "digits.onnx"\n',
    "inline": 'versions = { tflite = {file = "digits.tflite"}, onnx = {file = "digits.onnx"} }  # small\n',
    "inline each": '[versions]\ntflite = {file = "digits.tflite"}  # small\nonnx = {file = "digits.onnx"}\n',
    "dotted each": '[versions]\ntflite.file = "digits.tflite"  # small\nonnx.file = "digits.onnx"\n',
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_manifests_of_other_layouts_are_extended(
    layout: str, models: Path, tmp_path: Path
) -> None:
    """Inline versions and their comments are kept."""
    path = models / "digits" / "model.toml"
    path.write_text(LAYOUTS[layout] + "[image]\nmean = [0.0]\n")
    (tmp_path / "result").write_bytes(b"content")
    entry = scan(models)["digits"]
    provenance = {"tools": ["t 1"], "options": {"weights": 3}}
    publish(
        entry,
        "tflite",
        tmp_path / "result",
        NewVersion("new", "new.tflite"),
        provenance,
    )
    versions = read_manifest(path).versions
    assert {name: version.file for name, version in versions.items()} == {
        "tflite": "digits.tflite", "onnx": "digits.onnx", "new": "new.tflite"
    }  # fmt: skip
    assert versions["new"].provenance == provenance
    assert "# small" in path.read_text()


def test_the_owners_keys_of_a_version_are_kept(models: Path, tmp_path: Path) -> None:
    """Converting again only changes the provenance; an old hash would refuse the new
    file.
    """
    path = models / "digits" / "model.toml"
    (tmp_path / "result").write_bytes(b"content")
    publish(
        scan(models)["digits"],
        "tflite",
        tmp_path / "result",
        NewVersion("new", "new.tflite"),
        {"a": 1, "b": 2},
    )
    own = f'# mine\ndelegate = "xnnpack"\nsha256 = "{"0" * 64}"\n'
    path.write_text(
        path.read_text().replace('file = "new.tflite"\n', f'file = "new.tflite"\n{own}')
    )
    new = NewVersion("new", "new.tflite", replaces=True)
    publish(
        scan(models)["digits"], "tflite", tmp_path / "result", new, {"a": 3, "c": 4}
    )
    version = read_manifest(path).versions["new"]
    assert version.provenance == {"a": 3, "c": 4}
    assert version.sha256 is None
    assert '# mine\ndelegate = "xnnpack"\n' in path.read_text()


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        ModelLoadError("damaged"),
        OSError(28, "full"),
    ],
    ids=repr,
)
def test_a_bare_file_is_not_hidden_by_an_incomplete_folder(
    error: BaseException, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted publication removes the new folder."""
    shutil.copyfile(MODELS / "digits" / "digits.onnx", models / "bare.onnx")
    (tmp_path / "result").write_bytes(b"content")

    def fail(*paths: object) -> None:
        raise error

    monkeypatch.setattr("pocketserve_lab.convert.publish.copy_result", fail)
    with pytest.raises(
        KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ConversionError
    ):
        publish(
            scan(models)["bare"],
            "onnx",
            tmp_path / "result",
            NewVersion("new", "new.onnx"),
            {},
        )
    assert sorted(os.listdir(models)) == ["bare.onnx", "digits"]


@pytest.mark.parametrize("model", ["digits", "bare"])
def test_two_concurrent_conversions_publish_both_versions(
    model: str, models: Path, tmp_path: Path
) -> None:
    shutil.copyfile(MODELS / "digits" / "digits.onnx", models / "bare.onnx")
    (tmp_path / "result").write_bytes(bytes(1 << 20))
    code = """
import sys
from pathlib import Path
from pocketserve_lab.convert.publish import NewVersion, publish
from pocketserve.repository.scan import scan
models, model, name, result = sys.argv[1:]
entry = scan(Path(models))[model]
print(flush=True)
sys.stdin.readline()
for _ in range(8):
    publish(entry, "onnx", Path(result), NewVersion(name, name + ".onnx"), {"tools": ["t 1"]})
"""
    path_names = ("a", "b", "c")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, models, model, name, tmp_path / "result"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in path_names
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    with ThreadPoolExecutor() as threads:
        list(
            threads.map(
                lambda process: process.communicate(b"\n", timeout=120), processes
            )
        )
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert set(path_names) <= set(read_manifest(models / model / "model.toml").versions)
    assert not list((models / model).glob(".*"))


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from pocketserve_lab.convert.publish import NewVersion, publish, recover
from pocketserve.repository.scan import scan

good, model, result, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])

def publish_once(entry):
    new = NewVersion("new", "new.onnx", replaces="new" in entry.versions)
    publish(entry, "onnx", result, new, {"tools": ["t 2"]}, listed="unlisted" not in sys.argv)

def contents(models):
    return {str(path.relative_to(models)): path.is_file() and path.read_bytes() for path in models.rglob("*")}

def kill_at(entry, step):
    left = [step]
    def count(event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.")):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        sys.addaudithook(count)
        publish_once(entry)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL

whole = folder / "whole"
shutil.copytree(good, whole)
before = contents(whole)
publish_once(scan(whole)[model])
after, step, models = contents(whole), 0, folder / "models"
while True:
    step += 1
    shutil.copytree(good, models)
    if not kill_at(scan(models)[model], step):
        break
    recover(scan(models)[model])
    left = contents(models)
    if model == "bare" and left.get("bare") is False and len(left) == len(before) + 1:
        del left["bare"]  # an empty folder hides nothing
    assert left in (before, after), (step, left.keys())
    publish_once(scan(models)[model])
    assert contents(models) == after, (step, contents(models).keys())
    shutil.rmtree(models)
print(step)
"""


@pytest.mark.parametrize(
    "case", ["new", "replaces", "a folder replaces", "bare", "unlisted"]
)
def test_a_publication_may_be_killed_at_any_step(case: str, tmp_path: Path) -> None:
    """The next one finds the version complete or absent, without leftovers."""
    model = "bare" if case == "bare" else "digits"
    result = tmp_path / "result"
    models = tmp_path / "models"
    (models / "digits").mkdir(parents=True)
    shutil.copyfile(
        MODELS / "digits" / "digits.onnx", models / "digits" / "digits.onnx"
    )
    (models / "digits" / "model.toml").write_text(
        '[versions.onnx]\nfile = "digits.onnx"\n'
    )
    shutil.copyfile(MODELS / "digits" / "digits.onnx", models / "bare.onnx")
    file = result
    if case == "a folder replaces":
        result.mkdir()
        file = result / "saved_model.pb"
    if "replaces" in case:
        file.write_bytes(b"old content")
        publish(
            scan(models)["digits"],
            "onnx",
            result,
            NewVersion("new", "new.onnx"),
            {"tools": ["t 1"]},
        )
    file.write_bytes(b"new content")
    words = [
        sys.executable,
        "-c",
        KILLED,
        models,
        model,
        result,
        tmp_path / "trial",
        case,
    ]
    (tmp_path / "trial").mkdir()
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10  # the publication had steps to be killed at


def test_a_folder_is_published_and_replaced_as_a_whole(
    models: Path, tmp_path: Path
) -> None:
    entry = scan(models)["digits"]
    for content in ("one", "two"):
        result = tmp_path / content
        result.mkdir()
        (result / content).write_text(content)
        new = NewVersion("folder", "folder", replaces=content == "two")
        path = publish(
            entry,
            "tflite",
            result,
            new,
            {"tools": [content]},
            listed=False,
        )
        assert os.listdir(path) == [content]
    assert not list((models / "digits").glob(".pocketserve*"))


# --- Samples and agreement


def scores(*best: int) -> dict[str, np.ndarray]:
    """Return each sample's scores of four classes, one of which is best."""
    return {"scores": np.eye(4, dtype=np.float32)[list(best)][:, None] + 0.1}


def test_classifiers_are_compared_by_class_and_numbers() -> None:
    """Quantised ones are compared by the best class only."""
    same = compare_outputs(
        scores(0, 1, 2, 3), scores(0, 1, 2, 3), "image-classification", 4, random=False
    )
    assert same.error == 0
    assert same.largest == 0
    assert same.same_class == 1.0
    half = {"scores": scores(0, 1, 2, 3)["scores"] * 0.5}
    halved = compare_outputs(
        scores(0, 1, 2, 3), half, "image-classification", 4, random=False
    )
    check_agreement(halved, "int8")
    with pytest.raises(
        ConversionError,
        match=r"differ by 0\.5 of their size, and at most 0\.001 is accepted",
    ):
        check_agreement(halved, "none")
    few = compare_outputs(
        scores(0, 1, 2, 3), scores(0, 1, 3, 2), "image-classification", 4, random=False
    )
    with pytest.raises(
        ConversionError,
        match=r"50% of 4 samples have the same best class, which is too few for 90%",
    ):
        check_agreement(few, "int8")
    chance = compare_outputs(
        scores(0, 1, 2, 3), scores(0, 1, 2, 2), "image-classification", 4, random=False
    )
    # where nine of ten must agree, one of four may differ
    check_agreement(chance, "int8")
    [doubt] = doubts(chance, "int8")
    assert doubt.startswith(
        "only 75% of 4 samples have the same best class, which may be chance or a loss"
    )
    assert doubts(same, "int8") == []
    assert (
        compare_outputs(scores(0), scores(1), "tensors", 1, random=False).same_class
        is None
    )
    flat = {"scores": scores(0, 1, 2, 3)["scores"] * 0.1}
    with pytest.raises(
        ConversionError,
        match=r"differ by 0\.9 of their size, and at most 0\.75 is accepted",
    ):
        check_agreement(
            compare_outputs(
                scores(0, 1, 2, 3), flat, "image-classification", 4, random=False
            ),
            "int8",
        )


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_each_output_of_a_detector_is_compared(quantize: str) -> None:
    """Scores of 0 don't hide behind large box coordinates in the same tensor."""
    random = np.random.default_rng(0)
    boxes = random.uniform(0, 640, (2, 100, 4))
    score = random.uniform(0, 1, (2, 100, 1))
    original = {"y": np.concatenate([boxes, score, 0 * score], axis=2)}
    lost = {"y": np.concatenate([boxes, 0 * score, 0 * score + 1e-7], axis=2)}
    check_agreement(
        compare_outputs(original, original, "object-detection", 2, random=False),
        quantize,
    )
    with pytest.raises(ConversionError, match="differ by 1 of their size"):
        check_agreement(
            compare_outputs(original, lost, "object-detection", 2, random=False),
            quantize,
        )


def test_nan_and_other_shapes_are_differences() -> None:
    """NaN is allowed only where the original has it; shapes and counts must match."""
    good = {"a": np.array([1.0, np.nan])}
    bad = {"b": np.array([np.nan, 1.0])}
    assert (
        compare_outputs(
            good, {"b": np.array([1.0, 7.0])}, "tensors", 1, random=False
        ).error
        == 0
    )
    with pytest.raises(
        ConversionError, match="'a' is not a number where the original's is"
    ):
        compare_outputs(good, bad, "tensors", 1, random=False)
    with pytest.raises(
        ConversionError, match=r"has shape \[3\], and the original's \[2\]"
    ):
        compare_outputs(
            {"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}, "tensors", 1, random=False
        )
    with pytest.raises(
        ConversionError, match="the result has 2 outputs, and the original 1"
    ):
        compare_outputs(
            {"a": np.ones(1)},
            {"a": np.ones(1), "b": np.ones(1)},
            "tensors",
            1,
            random=False,
        )


def test_every_mode_has_a_bound() -> None:
    """A lossier mode has a wider bound."""
    assert set(BOUNDS) == set(QUANTIZE_MODES)
    assert (
        BOUNDS["none"].error
        < BOUNDS["fp16"].error
        < BOUNDS["dynamic"].error
        < BOUNDS["int8"].error
    )


def test_the_tables_of_the_document_are_up_to_date() -> None:
    """``python tools/convert_tables.py`` writes them."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "convert_tables.py", "--check"],
        check=False,
        timeout=60,
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("path", "works"),
    [
        ("onnx", True),
        ("tflite", False),
        ("tflite --quantize fp16", True),
        ("tflite --quantize nonsense", False),
        ("nonsense", False),
    ],
)
def test_a_refusal_must_name_a_path_that_exists(path: str, works: bool) -> None:
    """One that was not run yet may work."""
    refusal = f"refused: no; try --to {path}"
    outcomes = {"onnx": "right", "tflite": "refused: no", "pt2": refusal}
    assert (fault(refusal, outcomes, "onnx") == "") == works
