"""Test external TFLite delegates with libraries that are compiled here."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.tflite.delegates import DelegatedPart
from pocketserve.runtimes.tflite.interpreters import PACKAGES
from pocketserve.runtimes.tflite.session import RUNTIME, TfliteSession
from pocketserve.trust.verified_files import private_copy
from trusting import trusted

DATA = Path(__file__).parent / "data"
DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.tflite"
ADD = "0"
MUL = "18"
RESHAPE = "22"
SUB = "41"
"""Numbers of TFLite's operators."""

if not any(
    importlib.util.find_spec(package.module.partition(".")[0]) for package in PACKAGES
):
    pytest.skip("no TFLite runtime is installed", allow_module_level=True)


def compiled(source: Path, library: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "tests marked 'compiler' need a C compiler (cc, gcc or clang)"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source)],
        check=True,
        timeout=120,
    )
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled delegate of ``data/delegate.c``."""
    return compiled(
        DATA / "delegate.c", tmp_path_factory.mktemp("delegate") / "libours.so"
    )


@pytest.fixture(scope="module")
def other_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that is not a delegate."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "other.c").write_text("int other(void) { return 1; }\n")
    return compiled(folder / "other.c", folder / "libother.so")


Open = Callable[..., TfliteSession]


@pytest.fixture
def opened(library: Path) -> Open:
    """Return a function that opens a model with the delegate: ``opened("two_inputs",
    take=ADD)``.
    """

    def open_model(name: str, required: bool = False, **texts: str) -> TfliteSession:
        path = DIGITS if name == "digits" else DATA / f"{name}.tflite"
        options = {
            "delegate": str(library),
            "delegate_options": texts,
            "required": required,
        }
        return RUNTIME.open(
            ModelSource(path, options=options, trusted=trusted(library))
        )

    return open_model


def in_folder(folder: Path, **options: object) -> TfliteSession:
    """Open a copy of the model with two inputs."""
    shutil.copy(DATA / "two_inputs.tflite", folder)
    name = str(options.get("delegate", ""))
    library = folder / name
    allowed = trusted(library if library.is_file() else name)
    return RUNTIME.open(
        ModelSource(folder / "two_inputs.tflite", options=options, trusted=allowed)
    )


def added(session: TfliteSession, *values: float) -> list[float]:
    """Return the two-input model's result for the values and ones."""
    x = np.array(values, np.float32)
    result = session.run(
        {"serving_default_a:0": x, "serving_default_b:0": np.ones_like(x)}
    )
    found: list[float] = result["PartitionedCall:0"].tolist()
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


# --- Delegates that run


@pytest.mark.compiler
def test_the_delegate_computes_and_gets_its_options(
    opened: Open, caplog: pytest.LogCaptureFixture
):
    session = opened("two_inputs", take=ADD, offset="500")
    assert session.device == "libours.so"
    for values in (
        [1],
        [1, 2, 3],
        [4, 5],
    ):
        assert added(session, *values) == [value + 1 + 500 for value in values]
        assert session.device == "libours.so"
    assert warnings(caplog) == []


@pytest.mark.compiler
@pytest.mark.parametrize("xnnpack", [True, False])
def test_the_cpu_runs_the_remaining_operators(library: Path, xnnpack: bool):
    options = {
        "delegate": str(library),
        "delegate_options": {"take": RESHAPE, "offset": "0"},
        "xnnpack": xnnpack,
    }
    session = RUNTIME.open(
        ModelSource(DIGITS, options=options, trusted=trusted(library))
    )
    plain = RUNTIME.open(ModelSource(DIGITS))
    assert session.device == "libours.so, cpu"
    assert plain.device == "cpu"
    for batch in (1, 3):
        images = np.random.default_rng(0).random((batch, 8, 8, 1), np.float32)
        (expected,) = plain.run({plain.inputs[0].name: images}).values()
        (found,) = session.run({session.inputs[0].name: images}).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["two_inputs", "digits"])
def test_xnnpack_does_not_hide_an_unused_delegate(
    opened: Open, caplog: pytest.LogCaptureFixture, name: str
):
    assert opened(name).device == "cpu"
    (text,) = warnings(caplog)
    assert text.endswith(
        f"{name}.tflite runs without the delegate libours.so, which runs no part of "
        "this model's main graph"
    )
    with pytest.raises(
        ModelLoadError,
        match=r"the delegate libours\.so runs no part of .+ remove required",
    ):
        opened(name, required=True)


@pytest.mark.compiler
def test_xnnpack_does_not_remove_a_delegate(opened: Open):
    """Where XNNPACK fails on the rest, ai-edge-litert silently removes all delegates."""
    session = opened("digits", take=RESHAPE, fail="size")
    assert session.device == "libours.so, cpu"
    (found,) = session.run(
        {session.inputs[0].name: np.zeros((1, 8, 8, 1), np.float32)}
    ).values()
    # So the delegate returned the wrong size.
    assert found.shape != (
        1,
        10,
    )


@pytest.mark.compiler
def test_every_graph_gets_the_delegate(opened: Open):
    session = opened("two_signatures", take=MUL)
    assert session.device == "libours.so"
    assert session.run({"x": np.ones((1, 2), np.float32)}, "double")[
        "twice"
    ].tolist() == [[1003, 1003]]
    session = opened("two_signatures", take=SUB)
    assert session.device == "cpu"  # which reports on the main graph
    vectors = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    assert session.run(vectors, "subtract")["difference"].tolist() == [1002, 1002]


@pytest.mark.compiler
def test_a_failed_run_leaves_the_delegate_in_use(opened: Open, library: Path):
    counts = ctypes.CDLL(str(private_copy(library, trusted(library))))
    ctypes.c_int.in_dll(counts, "most").value = 0
    session = opened("two_inputs", take=ADD)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            added(session, 13)
        assert added(session, 1, 2) == [1002, 1003]
        assert session.device == "libours.so"
    session.close()
    assert [
        ctypes.c_int.in_dll(counts, name).value for name in ("alive", "most", "orphans")
    ] == [0, 1, 0]


@pytest.mark.compiler
def test_a_delegate_outlives_its_interpreter_while_an_error_is_kept(
    opened: Open, library: Path
):
    """An error references frames, these a signature's runner, and that the native
    interpreter.
    """
    counts = ctypes.CDLL(str(private_copy(library, trusted(library))))
    session = opened("two_signatures", take=SUB)
    vectors = {"a": np.full(2, 13, np.float32), "b": np.ones(2, np.float32)}
    with pytest.raises(RuntimeError) as caught:
        session.run(vectors, "subtract")
    session.close()
    assert ctypes.c_int.in_dll(counts, "alive").value == 0
    del caught
    assert ctypes.c_int.in_dll(counts, "orphans").value == 0


@pytest.mark.compiler
def test_shapes_that_the_delegate_rejects_run_on_the_cpu(
    opened: Open, caplog: pytest.LogCaptureFixture
):
    session = opened("two_inputs", take=ADD, fail="large")
    devices = []
    for values in (
        [1],
        [1, 2, 3],
        [1, 2],
        [1, 2, 3, 4],
        [2, 3, 4, 5],
        [1],
    ):
        expected = [value + 1 + (1000 if len(values) <= 2 else 0) for value in values]
        assert added(session, *values) == expected
        devices.append(session.device)
    assert devices == ["libours.so", "cpu", "libours.so", "cpu", "cpu", "libours.so"]
    (text,) = warnings(caplog)
    assert text.startswith(
        "two_inputs.tflite runs without the delegate libours.so, which does not take this model ("
    )
    assert text.endswith(") with inputs of some shapes, now [3], [3]")


@pytest.mark.compiler
def test_shapes_that_a_required_delegate_rejects_are_refused(opened: Open):
    session = opened("two_inputs", required=True, take=ADD, fail="large")
    with pytest.raises(
        ValueError,
        match=r"cannot take inputs of these shapes with the delegate libours\.so: .+ \[3\]",
    ):
        added(session, 1, 2, 3)
    assert added(session, 1) == [1002]


@pytest.mark.compiler
def test_shapes_that_the_model_rejects_are_not_the_delegates_fault(
    opened: Open, caplog: pytest.LogCaptureFixture
):
    session = opened("two_inputs", take=ADD)
    with pytest.raises(
        ValueError, match=r"the model cannot take inputs of these shapes: "
    ):
        session.run(
            {
                "serving_default_a:0": np.ones(2, np.float32),
                "serving_default_b:0": np.ones(3, np.float32),
            }
        )
    assert added(session, 1) == [1002]
    assert session.device == "libours.so"
    assert warnings(caplog) == []


# --- Delegates that fail


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("fail", "fault"),
    [
        ("create", r"did not start \(no such device\)"),
        ("prepare", r"does not take this model \(.+\)"),
    ],
)
def test_a_delegate_that_fails(
    opened: Open, caplog: pytest.LogCaptureFixture, fail: str, fault: str
):
    session = opened("two_inputs", take=ADD, fail=fail)
    assert session.device == "cpu"
    assert added(session, 1, 2) == [2, 3]
    (text,) = warnings(caplog)
    assert re.fullmatch(
        rf"two_inputs\.tflite runs without the delegate libours\.so, which {fault}",
        text,
    )
    refusal = rf"the delegate libours\.so {fault}; change delegate in model\.toml, or remove required to run on the"
    with pytest.raises(ModelLoadError, match=refusal) as caught:
        opened("two_inputs", required=True, take=ADD, fail=fail)
    assert "\n" not in str(caught.value)


@pytest.mark.compiler
def test_a_graph_that_only_the_cpu_can_run(
    opened: Open, caplog: pytest.LogCaptureFixture
):
    """Its tensors are resized during a run, which this delegate does not support."""
    session = opened("several_outputs", take=ADD)
    assert session.device == "cpu"
    (text,) = warnings(caplog)
    assert (
        "several_outputs.tflite runs without the delegate libours.so, which does not take this model ("
        in text
    )


@pytest.mark.compiler
def test_a_model_fault_is_reported_as_without_a_delegate(
    opened: Open, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(
        ModelLoadError, match=r"uses a custom operator \(MatrixDeterminant\)"
    ):
        opened("custom_op", take=ADD)
    assert warnings(caplog) == []


@pytest.mark.compiler
def test_a_library_without_a_delegate_is_refused(
    other_library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    fault = "is not a TFLite delegate (it has no tflite_plugin_create_delegate)"
    assert added(in_folder(tmp_path, delegate=str(other_library)), 1) == [2]
    assert warnings(caplog) == [
        f"two_inputs.tflite runs without the delegate libother.so, which {fault}"
    ]
    with pytest.raises(ModelLoadError) as caught:
        in_folder(tmp_path, delegate=str(other_library), required=True)
    assert f"the delegate libother.so {fault}; change delegate" in str(caught.value)


@pytest.mark.parametrize(
    "delegate", ["libnothing_of_the_sort.so", "./none.so", "/no/such/folder/libnone.so"]
)
def test_a_missing_library_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delegate: str
):
    session = in_folder(tmp_path, delegate=delegate)
    assert session.device == "cpu"
    assert added(session, 1) == [2]
    (text,) = warnings(caplog)
    assert text.startswith(
        f"two_inputs.tflite runs without the delegate {Path(delegate).name}, which cannot be loaded ("
    )
    assert "\n" not in text
    with pytest.raises(
        ModelLoadError,
        match=r"cannot be loaded \(.+\); change delegate in model\.toml, or remove req",
    ):
        in_folder(tmp_path, delegate=delegate, required=True)


def test_a_file_that_is_not_a_library_is_refused(tmp_path: Path):
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(
        ModelLoadError, match=r"the delegate text\.so cannot be loaded \("
    ):
        in_folder(tmp_path, delegate="text.so", required=True)


# --- Paths of delegates


@pytest.mark.compiler
@pytest.mark.parametrize("place", ["libours.so", "lib/libours.so"])
def test_a_library_in_the_models_folder(library: Path, tmp_path: Path, place: str):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    shutil.copy(library, tmp_path / place)
    session = in_folder(tmp_path, delegate=place, delegate_options={"take": ADD})
    assert session.device == "libours.so"
    assert added(session, 1) == [1002]


@pytest.mark.parametrize("delegate", ["../lib.so", "lib/../../lib.so", "..", "link.so"])
def test_a_library_outside_of_the_folder_needs_an_absolute_path(
    tmp_path: Path, delegate: str
):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "lib.so").touch()
    (folder / "link.so").symlink_to(tmp_path / "lib.so")
    with pytest.raises(
        ModelLoadError,
        match=r"leaves the model's folder; copy the file into it or give an absolute",
    ):
        in_folder(folder, delegate=delegate)


@pytest.mark.compiler
def test_an_untrusted_library_is_not_run(library: Path, tmp_path: Path):
    """This includes names that the system's loader would find, and files that changed
    since they were hashed.
    """
    copy = Path(shutil.copy(library, tmp_path))
    shutil.copy(DATA / "two_inputs.tflite", tmp_path)
    for delegate in ("libours.so", str(copy), "libelsewhere.so"):
        source = ModelSource(
            tmp_path / "two_inputs.tflite",
            options={"delegate": delegate},
            trusted=trusted(DIGITS),
        )
        with pytest.raises(
            ModelLoadError,
            match=r"\.so is code that is not trusted; `pocketserve trust /",
        ):
            RUNTIME.open(source)


# --- Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"delegate": 1},
            'the option delegate is a library such as "libQnnTFLiteDelegate.so", not 1',
        ),
        ({"delegate": ""}, "the option delegate is a library"),
        ({"delegate": "a\0b"}, "the option delegate is a library"),
        (
            {"delegate": "x.so", "delegate_options": ["a"]},
            "the option delegate_options is a table of texts such as {",
        ),
        (
            {"delegate": "x.so", "delegate_options": {"a": 1}},
            "the option delegate_options is a table of texts",
        ),
        (
            {"delegate": "x.so", "delegate_options": {"a": "b\0"}},
            "the option delegate_options is a table of texts",
        ),
        (
            {"delegate": "x.so", "required": "yes"},
            "the option required is true or false, not 'yes'",
        ),
        (
            {"delegate_options": {}},
            "the option delegate_options does nothing without delegate; add delegate, or",
        ),
        (
            {"required": True},
            "the option required does nothing without delegate; add delegate, or remove it",
        ),
    ],
)
def test_wrong_options_are_one_sentence(
    tmp_path: Path, options: dict[str, object], text: str
):
    with pytest.raises(ModelLoadError) as caught:
        in_folder(tmp_path, **options)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_the_delegates_option_keys_are_known():
    assert RUNTIME.option_keys == {
        "xnnpack",
        "delegate",
        "delegate_options",
        "required",
    }


# --- Packages without that information


class Silent:
    """An interpreter without the private method."""


def test_an_unknown_delegate_state_is_reported():
    share = DelegatedPart.of("libours.so", Silent())
    assert share.device(Silent()) == "libours.so (not confirmed), cpu"
    assert not share.is_lost(Silent())
