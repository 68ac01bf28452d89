"""Test the TFLite runtime with whichever package is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import StartServer
from pocketserve.formats.flatbuffers import FlatBuffer
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    ResettableSession,
    RuntimeMissingError,
)
from pocketserve.runtimes.tflite.errors import explain_tflite_error
from pocketserve.runtimes.tflite.interpreters import PACKAGES, TflitePackage
from pocketserve.runtimes.tflite.session import RUNTIME, TfliteRuntime, TfliteSession
from pocketserve.tensors import Quantization, TensorSpec, dequantize, quantize
from pocketserve_client import Client

DATA = Path(__file__).parent / "data"
# Packages round differently in the last bit; the danger is a silently wrong result.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def _installed(package: TflitePackage) -> bool:
    return importlib.util.find_spec(package.module.partition(".")[0]) is not None


if not any(_installed(package) for package in PACKAGES):
    pytest.skip("no TFLite runtime is installed", allow_module_level=True)


def opened(name: str, **options: object) -> TfliteSession:
    return RUNTIME.open(ModelSource(DATA / f"{name}.tflite", options=options))


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- State


def test_state_is_kept_until_reset():
    session = opened("counter")
    assert isinstance(session, ResettableSession)
    for rounds in (2, 1):
        session.reset()
        for _ in range(rounds):
            (total,) = session.run({"serving_default_x:0": floats(1, 2)}).values()
        assert total.tolist() == [rounds, 2 * rounds]


def test_models_without_state_are_not_reset():
    assert not isinstance(opened("two_signatures"), ResettableSession)


def test_state_is_detected_by_the_newer_operator_field(tmp_path: Path):
    content = bytearray((DATA / "counter.tflite").read_bytes())
    codes = (
        FlatBuffer(bytes(content), b"TFL3")
        .root()
        .tables(1, lambda code: code._field(0))
    )
    assert any(content[at] == 127 for at in codes if at is not None)
    for at in codes:
        if at is not None and content[at] == 127:
            content[at] = 0
    (tmp_path / "counter.tflite").write_bytes(content)
    session = RUNTIME.open(ModelSource(tmp_path / "counter.tflite"))
    assert isinstance(session, ResettableSession)
    assert session.run({"serving_default_x:0": floats(1, 2)})[
        "StatefulPartitionedCall:0"
    ].tolist() == [1, 2]


@pytest.mark.live
def test_requests_do_not_share_recurrent_state(new_server: StartServer, tmp_path: Path):
    (tmp_path / "models").mkdir()
    shutil.copy(DATA / "counter.tflite", tmp_path / "models")
    server = new_server(tmp_path / "models")
    with Client(server.url, server.token) as client:

        def total(**parameters: object) -> list[float]:
            return (
                client.infer("counter", {"x": floats(1, 2)}, parameters=parameters)
                .popitem()[1]
                .tolist()
            )

        assert [total(), total()] == [[1, 2], [1, 2]]
        assert total(sequence_id="a", sequence_start=True) == [1, 2]
        assert total(sequence_id="b", sequence_start=True) == [1, 2]
        assert total() == [1, 2]
        assert total(sequence_id="a") == [2, 4]
        assert total(sequence_id="b", sequence_end=True) == [2, 4]


# --- Sessions


def test_the_session_names_its_format_and_package():
    assert RUNTIME.platform == "tensorflow_lite"
    assert RUNTIME.option_keys == {
        "xnnpack",
        "delegate",
        "delegate_options",
        "required",
    }
    title, _, version = opened("dynamic_batch").runtime.partition(" ")
    assert title in {package.title for package in PACKAGES}
    assert version[0].isdigit()


def test_names_come_from_the_file_and_aliases_from_the_signature():
    session = opened("dynamic_batch")
    assert list(session.inputs) == [
        TensorSpec("serving_default_x:0", "FP32", (-1, 3), aliases=("x",))
    ]
    assert list(session.outputs) == [
        TensorSpec("PartitionedCall:0", "FP32", (-1, 2), aliases=("y",))
    ]


def test_an_alias_follows_its_tensor_not_its_position():
    names = {spec.name: spec.aliases for spec in opened("two_inputs").inputs}
    assert names == {"serving_default_a:0": ("a",), "serving_default_b:0": ("b",)}


def test_several_signatures_without_a_default_give_no_aliases():
    session = opened("two_signatures")
    assert [spec.aliases for spec in (*session.inputs, *session.outputs)] == [(), ()]


def test_datatypes_and_scalars():
    session = opened("several_outputs")
    found = {
        spec.aliases[0]: (spec.datatype, spec.shape)
        for spec in (*session.inputs, *session.outputs)
    }
    assert found == {
        "x": ("FP32", (4,)),
        "flag": ("BOOL", ()),
        "total": ("FP32", ()),
        "unset": ("BOOL", ()),
        "half": ("FP16", (4,)),
        "whole": ("INT64", (4,)),
        "where": ("INT64", (-1, 1)),
    }


def test_quantization_of_integers_only():
    session = opened("int8_io")
    assert [spec.datatype for spec in (*session.inputs, *session.outputs)] == [
        "INT8",
        "INT8",
    ]
    assert session.outputs[0].quantization == Quantization(
        pytest.approx(0.019985173), 3
    )
    assert opened("dynamic_batch").inputs[0].quantization is None


def test_repeated_names_are_told_apart():
    session = opened("same_names")
    assert [spec.name for spec in session.inputs] == ["tensor", "tensor:1"]
    assert session.signatures == {}
    result = session.run({"tensor": floats(1, 2), "tensor:1": floats(3, 5)})
    # Either may be subtracted: the converter chooses.
    assert abs(result["tensor"]).tolist() == [
        2,
        3,
    ]


def test_an_undeclared_rank_is_learned_from_a_run():
    session = opened("undeclared_rank")
    assert session.outputs[0].shape == (-1, 1)
    assert session.signatures["serving_default"].outputs[0].shape == (-1, 1)


def test_memory_includes_the_file_and_its_inputs_and_outputs():
    size = (DATA / "dynamic_batch.tflite").stat().st_size
    assert opened("dynamic_batch").memory_bytes == size + 4 * 3 + 4 * 2


# --- Runs


def test_runs_any_batch_and_results_own_their_memory():
    session = opened("dynamic_batch")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    weights = np.array(
        [
            [1, -1],
            [2, 0.5],
            [-0.5, 0.25],
        ],
        np.float32,
    )
    results = []
    for batch in (1, 5, 2, 2, 1):
        results.append(
            session.run({"serving_default_x:0": x[:batch]})["PartitionedCall:0"]
        )
        session.run({"serving_default_x:0": np.zeros((batch, 3), np.float32)})
    for result in results:
        np.testing.assert_allclose(result, x[: len(result)] @ weights, **TOLERANCE)


def test_arrays_need_not_be_contiguous_or_native():
    session = opened("dynamic_batch")
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    plain = session.run({"serving_default_x:0": np.ascontiguousarray(x)})[
        "PartitionedCall:0"
    ]
    for odd in (
        x,
        x.astype(">f4"),
        np.repeat(x, 2, axis=1)[:, ::2],
    ):
        np.testing.assert_array_equal(
            session.run({"serving_default_x:0": odd})["PartitionedCall:0"], plain
        )


def test_read_only_arrays_are_accepted():
    x = floats(1, 2, 3).reshape(1, 3)
    x.setflags(write=False)
    assert opened("dynamic_batch").run({"serving_default_x:0": x})[
        "PartitionedCall:0"
    ].shape == (1, 2)


def test_scalars_and_empty_outputs_are_arrays():
    session = opened("several_outputs")
    where, total, unset = (
        next(spec.name for spec in session.outputs if alias in spec.aliases)
        for alias in ("where", "total", "unset")
    )
    for x, expected in ((floats(0, 0, 0, 0), []), (floats(1, 0, 1, 0), [[0], [2]])):
        result = session.run(
            {"serving_default_x:0": x, "serving_default_flag:0": np.array(True)}
        )
        assert all(isinstance(array, np.ndarray) for array in result.values())
        assert result[where].tolist() == expected
        assert result[where].shape == (len(expected), 1)
        assert result[where].dtype == np.int64
        assert (result[total].shape, float(result[total])) == ((), x.sum())
        assert result[unset].dtype == np.bool_
        assert bool(result[unset]) is False


def test_int8_numbers_pass_unchanged():
    session = opened("int8_io")
    result = session.run({"serving_default_x:0": np.array([[10, -20, 30]], np.int8)})[
        "PartitionedCall:0"
    ]
    assert result.dtype == np.int8
    real = np.array([10, -20, 30]) * session.inputs[0].quantization.scale
    expected = real @ np.array(
        [
            [1, -1],
            [2, 0.5],
            [-0.5, 0.25],
        ]
    )
    quantization = session.outputs[0].quantization
    np.testing.assert_allclose(
        (result[0] - 3.0) * quantization.scale, expected, atol=2 * quantization.scale
    )


def test_strings_of_any_bytes_and_any_number():
    session = opened("strings")
    hard = [b"a\0b\0", b"", bytes(range(256)), "größe".encode()]
    for count in (4, 2, 3, 1):
        result = session.run({"serving_default_text:0": texts(*hard[:count])})
        assert result["PartitionedCall:0"].tolist() == [[text] for text in hard[:count]]
        assert result["PartitionedCall:1"].tolist() == [b"a\0b\0"]
        assert result["PartitionedCall:0"].dtype == object


def test_a_scalar_string_is_its_text_not_its_address():
    """The packages read the object's address from an object array of shape ()."""
    session = opened("scalar_string")
    ((text,), (one, twice)) = session.inputs, session.outputs
    assert text.shape == ()
    assert one.shape == ()
    assert twice.shape == (2,)
    for value in (b"hello", b"hello", b"", b"a\0b\0", bytes(range(256)) * 4, "größe"):
        raw = value
        if isinstance(value, str):
            raw = value.encode()
        for array in (
            np.array(value, dtype=object),
            np.array([value], dtype=object)[0:1].reshape(()),
        ):
            result = session.run({text.name: array})
            assert result[one.name].shape == ()
            assert result[one.name].item() == raw
            assert result[twice.name].tolist() == [raw, raw]


def test_threads_may_take_turns():
    session = opened("dynamic_batch")
    results: dict[int, float] = {}

    def run(number: int) -> None:
        x = np.full((number, 3), number, np.float32)
        results[number] = float(
            session.run({"serving_default_x:0": x})["PartitionedCall:0"][0, 0]
        )

    for number in (1, 2, 3, 4):
        thread = threading.Thread(target=run, args=(number,))
        thread.start()
        thread.join(timeout=120)
    assert results == {number: pytest.approx(2.5 * number) for number in (1, 2, 3, 4)}


@pytest.mark.parametrize("xnnpack", [True, False])
def test_xnnpack_can_be_turned_off(xnnpack: bool):
    result = opened("dynamic_batch", xnnpack=xnnpack).run(
        {"serving_default_x:0": floats(1, 1, 1).reshape(1, 3)}
    )
    np.testing.assert_allclose(result["PartitionedCall:0"], [[2.5, -0.25]], **TOLERANCE)


def test_threads_of_a_run():
    session = RUNTIME.open(ModelSource(DATA / "dynamic_batch.tflite", threads=2))
    assert session.run({"serving_default_x:0": np.zeros((1, 3), np.float32)})[
        "PartitionedCall:0"
    ].shape == (1, 2)


# --- Signatures


def test_signatures_have_their_own_names():
    signatures = opened("two_signatures").signatures
    assert sorted(signatures) == ["double", "subtract"]
    assert list(signatures["double"].inputs) == [TensorSpec("x", "FP32", (-1, 2))]
    assert [spec.name for spec in signatures["subtract"].inputs] == ["a", "b"]
    assert [spec.name for spec in signatures["subtract"].outputs] == ["difference"]


def test_signatures_and_the_main_graph_in_any_order():
    session = opened("two_signatures")
    for batch in (1, 3, 1):
        x = np.ones((batch, 2), np.float32)
        difference = session.run({"a": floats(5, 7), "b": floats(1, 2)}, "subtract")
        assert difference["difference"].tolist() == [4, 5]
        assert session.run({"x": x}, "double")["twice"].tolist() == (2 * x).tolist()
        assert (
            session.run({"double_x:0": x})["PartitionedCall:0"].tolist()
            == (2 * x).tolist()
        )


def test_a_failed_signature_leaves_the_session_usable():
    session = opened("two_signatures")
    with pytest.raises(ValueError, match=r"input 'a' has shape \[3\], expected \[2\]"):
        session.run({"a": floats(1, 2, 3), "b": floats(1, 2)}, "subtract")
    assert session.run({"a": floats(5, 7), "b": floats(1, 2)}, "subtract")[
        "difference"
    ].tolist() == [4, 5]


def test_the_default_signature_may_be_another_graph():
    session = opened("default_in_another_graph")
    assert [spec.name for spec in (*session.inputs, *session.outputs)] == [
        "a",
        "b",
        "difference",
    ]
    for _ in range(2):
        assert session.run({"a": floats(5, 7), "b": floats(1, 2)})[
            "difference"
        ].tolist() == [4, 5]
        assert session.run({"x": floats(1, 2).reshape(1, 2)}, "double")[
            "twice"
        ].tolist() == [[2, 4]]


def test_strings_by_signature():
    session = opened("strings")
    for count in (3, 1, 2):
        result = session.run({"text": texts(*[b"x"] * count)}, "serving_default")
        assert sorted(result) == ["column", "first"]
        assert len(result["column"]) == count


# --- Failed runs


def test_a_model_that_rejects_size_1_is_served():
    session = opened("free_image")
    assert session.inputs[0].shape == (-1, -1, -1, 1)
    result = session.run({"serving_default_image:0": np.ones((1, 4, 4, 1), np.float32)})
    assert result["PartitionedCall:0"].tolist() == [[1, 1, 1, 1]]


def test_mismatched_sizes_leave_the_session_usable():
    session = opened("free_image")
    good = {"serving_default_image:0": np.ones((2, 4, 4, 1), np.float32)}
    for bad in (
        (1, 2, 2, 1),
        (1, 5, 2, 1),
        (1, 2, 2, 1),
    ):
        with pytest.raises(
            ValueError,
            match=r"cannot take inputs of these shapes: 'serving_default_image:0'",
        ):
            session.run({"serving_default_image:0": np.ones(bad, np.float32)})
        assert session.run(good)["PartitionedCall:0"].shape == (2, 4)
        assert session.run(good)["PartitionedCall:0"].shape == (2, 4)


def test_inputs_that_contradict_each_other_are_refused():
    session = opened("two_inputs")
    with pytest.raises(ValueError, match="cannot take"):
        session.run(
            {
                "serving_default_a:0": floats(1, 2),
                "serving_default_b:0": floats(1, 2, 3),
            }
        )
    result = session.run(
        {"serving_default_a:0": floats(1, 2), "serving_default_b:0": floats(1, 2)}
    )
    assert result["PartitionedCall:0"].tolist() == [2, 4]


def test_a_fixed_dimension_cannot_change():
    with pytest.raises(ValueError, match=r"has shape \[1, 4\], expected \[-1, 3\]"):
        opened("dynamic_batch").run(
            {"serving_default_x:0": np.zeros((1, 4), np.float32)}
        )


def test_a_failed_run_leaves_the_session_usable():
    session = opened("strings")
    for _ in range(2):
        # The model reads element 0 of an empty tensor.
        with pytest.raises((RuntimeError, ValueError)):
            session.run({"serving_default_text:0": texts()})
        assert session.run({"serving_default_text:0": texts(b"x")})[
            "PartitionedCall:1"
        ].tolist() == [b"x"]


def test_a_replaced_file_is_not_mixed_in(tmp_path: Path):
    path = tmp_path / "model.tflite"
    shutil.copy(DATA / "strings.tflite", path)
    session = RUNTIME.open(ModelSource(path))
    path.unlink()
    shutil.copy(DATA / "dynamic_batch.tflite", path)
    with pytest.raises((RuntimeError, ValueError)):
        session.run({"serving_default_text:0": texts()})
    with pytest.raises(
        ModelLoadError, match=r"model\.tflite changed while it was loaded"
    ):
        session.run({"serving_default_text:0": texts(b"x")})


def test_a_closed_session_refuses_runs():
    session = opened("dynamic_batch")
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"serving_default_x:0": np.zeros((1, 3), np.float32)})
    session.close()


# --- Files that can't be served


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "select_tf_op",
            r"uses TensorFlow operators \(FlexMatrixDeterminant\), which .+ built-in operators only",
        ),
        (
            "custom_op",
            r"uses a custom operator \(MatrixDeterminant\), which .+ convert the model without it",
        ),
        (
            "future_op",
            r"needs the operator FULLY_CONNECTED \(version 99\), which .+ install a newer",
        ),
        (
            "complex",
            r"tensor 'PartitionedCall:0' has type complex64, which cannot be served",
        ),
        ("bfloat16", r"cannot (exchange|be served); convert the model with"),
        ("resource", r"has a tensor of a type \(RESOURCE\) that .+ cannot exchange"),
    ],
)
def test_models_with_missing_operators_are_explained(name: str, text: str):
    with pytest.raises(ModelLoadError, match=text) as caught:
        opened(name)
    assert "\n" not in str(caught.value)


def test_each_message_of_tflite_is_reported_once():
    once = "tflite/kernels/pad.cc:165 columns != 2 (4 != 2)Node number 5 (PAD) failed to prepare."
    text = f"{once}Failed to apply the default TensorFlow Lite delegate indexed at 0.{once}"
    told = explain_tflite_error("m.tflite", "tflite 2", text)
    assert (
        "(tflite/kernels/pad.cc:165 columns != 2 (4 != 2); Node number 5 (PAD) failed to prepare)"
        in told
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"TFL3",
        b"PK\x03\x04" + bytes(100),
        b"\x1c\0\0\0TFL2" + bytes(100),
    ],
)
def test_other_files_are_refused_before_a_framework_reads_them(
    tmp_path: Path, content: bytes
):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"model\.tflite is not a TFLite model"):
        TfliteRuntime(packages=()).open(ModelSource(path))


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(
        ModelLoadError, match=r"none\.tflite cannot be read: No such file"
    ):
        RUNTIME.open(ModelSource(tmp_path / "none.tflite"))


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.97])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float):
    """Without our own check, this crashes the process with tflite_runtime 2.14."""
    whole = (DATA / "dynamic_batch.tflite").read_bytes()
    path = tmp_path / "model.tflite"
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(
        ModelLoadError,
        match=r"model\.tflite is damaged or truncated \(.+\); copy the file again",
    ):
        RUNTIME.open(ModelSource(path))


@pytest.mark.parametrize("value", ["no", 1, None])
def test_the_option_is_a_boolean(value: object):
    with pytest.raises(ModelLoadError, match="xnnpack is true or false"):
        opened("dynamic_batch", xnnpack=value)


# --- Packages


def test_a_missing_package_names_the_commands():
    nothing = TfliteRuntime(
        packages=[TflitePackage("none", "no_such_package_of_ours.interpreter")]
    )
    with pytest.raises(RuntimeMissingError) as caught:
        nothing.open(ModelSource(DATA / "dynamic_batch.tflite"))
    assert "pip install 'pocketserve[tflite]'" in str(caught.value)
    assert "pkg install python-tflite-runtime" in str(caught.value)
    assert "does not load" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "raise OSError('libz.so: cannot open shared object file')",
            "libz.so: cannot open shared object file",
        ),
        ("import no_such_part_of_it", "No module named 'no_such_part_of_it'"),
        ("raise RuntimeError()", "RuntimeError"),
    ],
)
def test_a_broken_package_is_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
):
    module = f"broken_lite_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    broken = TflitePackage("broken", module)
    with pytest.raises(RuntimeMissingError) as caught:
        TfliteRuntime([broken]).open(ModelSource(DATA / "dynamic_batch.tflite"))
    assert f"broken is installed but does not load ({reason})" in str(caught.value)
    session = TfliteRuntime([broken, *PACKAGES]).open(
        ModelSource(DATA / "dynamic_batch.tflite")
    )
    assert not session.runtime.startswith("broken")


def test_an_unknown_version_is_omitted(monkeypatch):
    for package in PACKAGES:
        top = sys.modules.get(package.module.partition(".")[0])
        monkeypatch.delattr(
            top, "__version__", raising=False
        ) if top is not None else None
    unversioned = [
        TflitePackage(f"no-{package.title}", package.module) for package in PACKAGES
    ]
    session = TfliteRuntime(unversioned).open(
        ModelSource(DATA / "dynamic_batch.tflite")
    )
    assert session.runtime in {package.title for package in unversioned}


# --- Public models


@pytest.mark.assets
def test_public_models_give_the_answers_of_the_plain_interpreter(assets: Path):
    sessions: dict[str, TfliteSession] = {}
    checked = 0
    for path in sorted((assets / "expected").glob("*.json")):
        case = json.loads(path.read_text())
        model = str(case.get("model", ""))
        if not model.endswith(".tflite"):
            continue
        if model not in sessions:
            sessions[model] = RUNTIME.open(ModelSource(assets / model))
        check = _check_case
        if case["inputs"][0]["name"] == "x" and "sine" in case["task"]:
            check = _check_sine
        check(assets, sessions[model], case)
        checked += 1
    assert checked >= 30


def _check_sine(assets: Path, session: TfliteSession, case: dict[str, Any]) -> None:
    """Check these cases as one batch.

    They list real numbers for five calls.
    """
    (source,), (target,) = session.inputs, session.outputs
    x = np.load(assets / case["inputs"][0]["npy"])
    result = session.run(
        {source.name: quantize(x, source) if source.quantization else x}
    )[target.name]
    real = result
    if target.quantization:
        real = dequantize(result, target)
    np.testing.assert_allclose(
        real.reshape(-1), np.load(assets / case["outputs"][0]["npy"]), atol=0.01
    )


def _check_case(assets: Path, session: TfliteSession, case: dict[str, Any]) -> None:
    inputs = {entry["name"]: np.load(assets / entry["npy"]) for entry in case["inputs"]}
    results = session.run(inputs)
    for name, array in _plainly(assets / case["model"], inputs).items():
        np.testing.assert_array_equal(results[name], array, strict=True)
    declared = {spec.name: spec for spec in session.outputs}
    for entry in case["outputs"]:
        if entry["name"] in declared:
            assert declared[entry["name"]].accepts(results[entry["name"]].shape)
        if (
            entry["name"] in declared
            and "npy" in entry
            and entry["name"] not in _REORDERED
        ):
            _check_close(results[entry["name"]], np.load(assets / entry["npy"]))


def _plainly(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the same package's interpreter in the simplest way."""
    package = next(package for package in PACKAGES if _installed(package))
    interpreter = importlib.import_module(package.module).Interpreter(
        str(path), num_threads=1
    )
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], inputs[details["name"]])
    interpreter.invoke()
    return {
        d["name"]: np.asarray(interpreter.get_tensor(d["index"]))
        for d in interpreter.get_output_details()
    }


# Boxes are sorted by score; other kernels may swap near ties.
_REORDERED = {"TFLite_Detection_PostProcess", "TFLite_Detection_PostProcess:1"}


def _check_close(result: np.ndarray, expected: np.ndarray) -> None:
    """Compare within the tolerances measured between packages.

    Each package rounds a quantised layer in its own way.
    """
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    steps = 0.05
    if expected.dtype.kind in "iu":
        steps = 20
    np.testing.assert_allclose(
        result.astype(float), expected.astype(float), atol=steps, rtol=0
    )
