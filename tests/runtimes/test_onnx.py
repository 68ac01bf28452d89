"""Test the ONNX runtime on small generated models, and its file check."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import sys
import wave
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import find_assets
from pocketserve.formats import DamagedFileError
from pocketserve.formats.protobuf import ProtobufReader
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.onnx import check as onnx_check
from pocketserve.runtimes.onnx.check import GraphFacts, check_model
from pocketserve.runtimes.onnx.errors import is_about_sizes
from pocketserve.runtimes.onnx.native import sums_overflow
from pocketserve.runtimes.onnx.session import RUNTIME, OnnxRuntime, OnnxSession
from pocketserve.tensors import TensorSpec

ort = pytest.importorskip("onnxruntime", reason="onnx")
onnx = pytest.importorskip("onnx")
helper = onnx.helper
T = onnx.TensorProto

value = helper.make_tensor_value_info
node = helper.make_node


def built(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    opset: int = 17,
    ir: int = 9,
    **domains: int,
) -> Any:
    """Return a model; ``domains`` are further operator sets, with _ for dots."""
    graph = helper.make_graph(
        list(nodes), "g", list(inputs), list(outputs), list(initializers)
    )
    sets = []
    for name, version in domains.items():
        sets.append(helper.make_opsetid(name.replace("_", "."), version))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), *sets]
    )
    model.ir_version = ir
    return model


def identity(kind: int, shape: Any = ("n", 2), **options: int) -> Any:
    return built(
        [node("Identity", ["x"], ["y"])],
        [value("x", kind, shape)],
        [value("y", kind, shape)],
        **options,
    )


Opener = Callable[..., OnnxSession]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """Return a function that saves a model as ``m.onnx`` and opens it.

    Keywords are options of the version.
    """

    def open_model(model: Any, threads: int = 1, **options: object) -> OnnxSession:
        path = tmp_path / "m.onnx"
        path.write_bytes(
            model if isinstance(model, bytes) else model.SerializeToString()
        )
        return RUNTIME.open(ModelSource(path, threads=threads, options=options))

    return open_model


def texts(*items: object) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bfloats(array: np.ndarray) -> np.ndarray:
    """Return the upper halves of floats, exact for the few digits used here."""
    return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


# --- Sessions


def test_the_session_names_its_format_and_package(opened: Opener):
    assert RUNTIME.platform == "onnxruntime_onnx"
    assert RUNTIME.option_keys == {"providers", "required"}
    session = opened(identity(T.FLOAT))
    assert session.runtime == f"onnxruntime {ort.__version__}"
    assert session.device == "cpu"
    assert session.signatures == {}


@pytest.mark.parametrize(
    ("name", "datatype"),
    [
        ("BOOL", "BOOL"),
        ("UINT8", "UINT8"),
        ("UINT16", "UINT16"),
        ("UINT32", "UINT32"),
        ("UINT64", "UINT64"),
        ("INT8", "INT8"),
        ("INT16", "INT16"),
        ("INT32", "INT32"),
        ("INT64", "INT64"),
        ("FLOAT16", "FP16"),
        ("FLOAT", "FP32"),
        ("DOUBLE", "FP64"),
    ],
)
def test_numbers_pass_unchanged(opened: Opener, name: str, datatype: str):
    session = opened(identity(getattr(T, name)))
    assert list(session.inputs) == [TensorSpec("x", datatype, (-1, 2), batch="n")]
    assert list(session.outputs) == [TensorSpec("y", datatype, (-1, 2))]
    x = np.array(
        [
            [0, 1],
            [1, 0],
            [1, 1],
        ],
        helper.tensor_dtype_to_np_dtype(getattr(T, name)),
    )
    x.setflags(write=False)
    result = session.run({"x": x})["y"]
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x)
    assert not np.shares_memory(result, x)
    result[:] = 0  # the runtime owns it


def test_bfloat16_is_passed_as_bits(opened: Opener):
    session = opened(identity(T.BFLOAT16))
    assert [spec.datatype for spec in (*session.inputs, *session.outputs)] == [
        "BF16",
        "BF16",
    ]
    bits = bfloats([[1, -2], [0.5, 3]])
    bits.setflags(write=False)
    result = session.run({"x": bits})["y"]
    assert result.dtype == np.uint16
    np.testing.assert_array_equal(result, bits)
    assert session.run({"x": bits[:0]})["y"].shape == (0, 2)


def test_bfloat16_inputs_beside_other_types(opened: Opener):
    shape = ["n"]
    nodes = [
        node("Cast", ["x"], ["wide"], to=T.FLOAT),
        node("Add", ["wide", "more"], ["sum"]),
        node("Cast", ["sum"], ["y"], to=T.BFLOAT16),
        node("Identity", ["text"], ["out"]),
    ]
    inputs = [
        value("x", T.BFLOAT16, shape),
        value("more", T.FLOAT, shape),
        value("text", T.STRING, shape),
    ]
    outputs = [value("sum", T.FLOAT, shape), value("out", T.STRING, shape)]
    session = opened(built(nodes, inputs, outputs, opset=19))
    result = session.run(
        {
            "x": bfloats([1, 2]),
            "more": floats(0.5, 0),
            "text": texts(b"a", b"b"),
        }
    )
    assert result["sum"].tolist() == [1.5, 2]
    assert result["out"].tolist() == [b"a", b"b"]


def test_bfloat16_outputs_beside_other_types(opened: Opener):
    shape = ["n"]
    nodes = [
        node("Cast", ["x"], ["y"], to=T.BFLOAT16),
        node("Cast", ["x"], ["z"], to=T.STRING),
    ]
    inputs = [value("x", T.FLOAT, shape)]
    outputs = [
        value("y", T.BFLOAT16, shape),
        value("z", T.STRING, shape),
        value("x", T.FLOAT, shape),
    ]
    session = opened(built(nodes, inputs, outputs, opset=19))
    x = floats(1, 2)
    result = session.run({"x": x})
    np.testing.assert_array_equal(result["y"], bfloats([1, 2]))
    assert result["z"].tolist() == [b"1", b"2"]
    assert result["x"].tolist() == [1, 2]
    assert not np.shares_memory(result["x"], x)


def test_bfloat16_outputs_cannot_be_combined_with_strings(opened: Opener):
    mixed = built(
        [node("Cast", ["x"], ["y"], to=T.BFLOAT16), node("Identity", ["s"], ["z"])],
        [value("x", T.FLOAT, [1]), value("s", T.STRING, [1])],
        [value("y", T.BFLOAT16, [1]), value("z", T.STRING, [1])],
        opset=19,
    )
    with pytest.raises(ModelLoadError, match="bfloat16 outputs beside strings"):
        opened(mixed)


def test_dimensions(opened: Opener):
    for given_shape, expected, batch in (
        (["batch", 3, None], (-1, 3, -1), "batch"),
        ([], (), ""),
        ([1, 2], (1, 2), ""),
    ):
        session = opened(identity(T.FLOAT, given_shape))
        assert session.inputs[0] == TensorSpec("x", "FP32", expected, batch=batch)
        assert session.outputs[0].shape == expected


def test_a_dimension_of_minus_one_is_free(opened: Opener):
    model = identity(T.FLOAT, ["n", 2])
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.shape.dim[0].dim_value = -1
    assert opened(model).inputs[0].shape == (-1, 2)


def test_scalars(opened: Opener):
    session = opened(identity(T.FLOAT, []))
    result = session.run({"x": np.array(3, np.float32)})["y"]
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert float(result) == 3
    with pytest.raises(ValueError, match=r"input 'x' has shape \[2\], expected \[\]"):
        session.run({"x": floats(1, 2)})
    text = opened(identity(T.STRING, []))
    assert text.run({"x": np.array(b"a", object)})["y"].tolist() == b"a"


def test_an_unknown_rank_is_open_and_a_declared_scalar_is_not(opened: Opener):
    model = built(
        [
            node("Identity", ["x"], ["y"]),
            node("ReduceSum", ["x"], ["total"], keepdims=0),
        ],
        [value("x", T.FLOAT, None)],
        [value("y", T.FLOAT, None), value("total", T.FLOAT, None)],
    )
    session = opened(model)
    assert list(session.inputs) == [TensorSpec("x", "FP32", (-1,), open=True)]
    assert [(spec.name, spec.shape) for spec in session.outputs] == [
        ("y", (-1,)),
        ("total", ()),
    ]
    for shape in (
        (),
        (2,),
        (2, 1, 2),
    ):
        assert session.run({"x": np.ones(shape, np.float32)})["y"].shape == shape
    with pytest.raises(ValueError, match="Unexpected input data type"):
        session.run({"x": np.ones(2)})


def test_an_undeclared_output_shape_is_learned(opened: Opener):
    # The shape is computed, so that ONNX Runtime cannot infer it either.
    nodes = [
        node("Shape", ["x"], ["size"]),
        node("Mul", ["size", "two"], ["double"]),
        node("Loop", ["one", "", "double"], ["late"], body=_same()),
        node("Expand", ["x", "late"], ["y"]),
    ]
    initializers = []
    for name, number in (("two", [2, 1]), ("one", 1)):
        initializers.append(onnx.numpy_helper.from_array(np.array(number), name))
    x = value("x", T.FLOAT, [1, "n"])
    y = value("y", T.FLOAT, None)
    session = opened(built(nodes, [x], [y], initializers))
    assert session.outputs[0].shape == (2, -1)
    assert session.run({"x": np.ones((1, 5), np.float32)})["y"].shape == (2, 5)


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (1, (-1, 10)),
        (3, (-1, -1)),
    ],
)
def test_only_reliable_dimensions_of_an_output_are_learned(
    opened: Opener, rows: int, shape: tuple
):
    nodes = [
        node("Reshape", ["x", "rows"], ["only"]),  # accepts this number of rows only
        node("Loop", ["one", "", "size"], ["late"], body=_same()),
        node("Expand", ["only", "late"], ["y"]),
    ]
    numbers = {
        "rows": [rows, 1],
        "size": [rows, 10],
        "one": 1,
    }
    initializers = []
    for name, number in numbers.items():
        initializers.append(onnx.numpy_helper.from_array(np.array(number), name))
    session = opened(
        built(
            nodes,
            [value("x", T.FLOAT, ["n", 1])],
            [value("y", T.FLOAT, None)],
            initializers,
        )
    )
    assert session.outputs[0].shape == shape
    assert session.run({"x": np.ones((rows, 1), np.float32)})["y"].shape == (rows, 10)


def _same() -> Any:
    """Return a loop's body that returns its value."""
    nodes = [node("Identity", ["c"], ["c2"]), node("Identity", ["v"], ["v2"])]
    inputs = [
        value("i", T.INT64, []),
        value("c", T.BOOL, []),
        value("v", T.INT64, None),
    ]
    return helper.make_graph(
        nodes, "body", inputs, [value("c2", T.BOOL, []), value("v2", T.INT64, None)]
    )


def test_a_shape_that_varies_is_not_learned(opened: Opener):
    model = built(
        [
            node(
                "If",
                ["flag"],
                ["y"],
                then_branch=_constant([1.0]),
                else_branch=_constant([[1.0, 2.0]]),
            )
        ],
        [value("flag", T.BOOL, [])],
        [value("y", T.FLOAT, None)],
    )
    session = opened(model)
    assert session.run({"flag": np.array(True)})["y"].tolist() == [1]
    assert session.run({"flag": np.array(False)})["y"].tolist() == [[1, 2]]


def _constant(content: Any) -> Any:
    tensor = onnx.numpy_helper.from_array(np.array(content, np.float32))
    out = value("out", T.FLOAT, tensor.dims)
    return helper.make_graph(
        [node("Constant", [], ["out"], value=tensor)], "branch", [], [out]
    )


def test_memory_includes_the_file_and_its_inputs_and_outputs(
    opened: Opener, tmp_path: Path
):
    session = opened(identity(T.FLOAT))
    assert session.memory_bytes == (tmp_path / "m.onnx").stat().st_size + 2 * 4 * 2
    assert (
        external(tmp_path).memory_bytes
        == (tmp_path / "m.onnx").stat().st_size + 64 + 2 * 4 * 4
    )


# --- Runs


def test_two_inputs_and_any_batch(opened: Opener):
    weights = np.array([[1, -1], [2, 0.5]], np.float32)
    session = opened(
        built(
            [node("MatMul", ["a", "w"], ["h"]), node("Add", ["h", "b"], ["y"])],
            [value("a", T.FLOAT, ["n", 2]), value("b", T.FLOAT, ["n", 2])],
            [value("y", T.FLOAT, ["n", 2]), value("w", T.FLOAT, [2, 2])],
            [onnx.numpy_helper.from_array(weights, "w")],
        ),
        threads=2,
    )
    kept = []
    for rows in (1, 4, 0, 2):
        a = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        result = session.run({"b": np.ones_like(a), "a": a})
        kept.append((a @ weights + 1, result["y"]))
        np.testing.assert_array_equal(result["w"], weights)
        result["w"][:] = 99  # a weight that is an output is a copy
    for expected, got in kept:
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def write_shared_weights(path: Path, weights: Any) -> None:
    """Write two products with the same int8 weights: a to c, and b to d."""
    arrays = [
        onnx.numpy_helper.from_array(weights, "w"),
        onnx.numpy_helper.from_array(np.zeros((), np.uint8), "z"),
        onnx.numpy_helper.from_array(np.zeros((), np.int8), "v"),
    ]
    nodes = [
        node("MatMulInteger", ["a", "w", "z", "v"], ["c"]),
        node("MatMulInteger", ["b", "w", "z", "v"], ["d"]),
    ]
    inputs = [value(name, T.UINT8, [1, 2]) for name in "ab"]
    outputs = [value(name, T.INT32, [1, 2]) for name in "cd"]
    onnx.save(built(nodes, inputs, outputs, arrays), path)


@pytest.mark.parametrize("exact_sums", [True, False])
def test_operators_may_share_int8_weights(
    exact_sums: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """With the option for exact sums, ONNX Runtime refuses such models of tf2onnx."""
    weights = np.array([[100, -3], [50, 7]], np.int8)
    path = tmp_path / "m.onnx"
    write_shared_weights(path, weights)
    session = OnnxRuntime(exact_sums=exact_sums).open(ModelSource(path))
    a = np.array([[4, 3]], np.uint8)
    b = np.array([[1, 0]], np.uint8)
    result = session.run({"a": a, "b": b})
    np.testing.assert_array_equal(result["c"], a.astype(np.int32) @ weights)
    np.testing.assert_array_equal(result["d"], b.astype(np.int32) @ weights)
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    assert ("share int8 weights" in caplog.text) == (exact_sums and on_x86)


@pytest.mark.parametrize(
    ("machine", "flags", "overflow"),
    [
        ("x86_64", "fpu avx2 avx512f", True),
        ("x86_64", "avx2 avx512_vnni", False),
        ("AMD64", "avx2 avx_vnni", False),
        ("AMD64", None, True),
        ("aarch64", "asimd", False),
    ],
)
def test_sums_overflow_on_x86_without_vnni(
    machine: str, flags: str | None, overflow: bool, tmp_path: Path
):
    """The option for exact sums takes three to four times as long, also without
    overflows.
    """
    processor = tmp_path / "cpuinfo"
    if flags is not None:
        processor.write_text(f"processor\t: 0\nflags\t\t: {flags}\n", encoding="ascii")
    assert sums_overflow(machine, processor) == overflow


def test_arrays_need_not_be_contiguous_or_native(opened: Opener):
    session = opened(identity(T.FLOAT))
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for odd in (
        np.asfortranarray(x),
        x.astype(">f4"),
        np.repeat(x, 2, axis=1)[:, ::2],
    ):
        np.testing.assert_array_equal(session.run({"x": odd})["y"], x)


def test_strings(opened: Opener):
    session = opened(identity(T.STRING, ["n"]))
    assert session.inputs[0].datatype == "BYTES"
    hard = ["größe".encode(), b"", b"a\0b\0", b"b'x'"]
    for array in (
        texts(*hard),
        texts(),
        np.array([b"ab", b"c"]),
        np.array(["ä", "b"]),
    ):
        result = session.run({"x": array})["y"]
        assert result.dtype == object
        assert result.tolist() == [
            item if isinstance(item, bytes) else item.encode()
            for item in array.tolist()
        ]
    with pytest.raises(ValueError, match="input 'x' has a string that is not UTF-8"):
        session.run({"x": texts(b"\xff")})
    with pytest.raises(ValueError, match="Unexpected input data type"):
        session.run({"x": floats(1)})


def test_an_output_that_is_not_utf8_is_a_model_fault(opened: Opener):
    tensor = T(
        name="c",
        data_type=T.STRING,
        dims=[1],
        string_data=[b"\xff"],
    )
    session = opened(
        built(
            [node("Identity", ["c"], ["y"])], [], [value("y", T.STRING, [1])], [tensor]
        )
    )
    with pytest.raises(RuntimeError, match="output string of the model is not UTF-8"):
        session.run({})


def test_mismatches_that_only_the_framework_detects_are_client_errors(opened: Opener):
    session = opened(identity(T.FLOAT))
    for wrong, reason in (
        (np.ones(2, np.float32), "Invalid rank for input: x Got: 1 Expected: 2"),
        (
            np.ones((1, 3), np.float32),
            "Got invalid dimensions for input: x .* Expected: 2",
        ),
        (np.ones((1, 2)), r"Unexpected input data type. Actual: \(tensor\(double\)\)"),
    ):
        with pytest.raises(ValueError, match=f"^{reason}") as caught:
            session.run({"x": wrong})
        assert "Please" not in str(caught.value)
    assert session.run({"x": np.ones((1, 2), np.float32)})["y"].shape == (1, 2)


def test_values_out_of_bounds_and_other_failures(opened: Opener):
    gather = built(
        [node("Gather", ["table", "i"], ["y"])],
        [value("table", T.FLOAT, ["m"]), value("i", T.INT64, ["n"])],
        [value("y", T.FLOAT, ["n"])],
    )
    with pytest.raises(ValueError, match="out of data bounds, idx=9"):
        opened(gather).run({"table": floats(1), "i": np.array([9])})
    product = built(
        [node("MatMul", ["a", "b"], ["y"])],
        [value("a", T.FLOAT, ["i", "j"]), value("b", T.FLOAT, ["k", "l"])],
        [value("y", T.FLOAT, ["i", "l"])],
    )
    session = opened(product)
    with pytest.raises(ValueError, match=r"^MatMul: MatMul dimension mismatch$"):
        session.run(
            {"a": np.ones((1, 2), np.float32), "b": np.ones((3, 1), np.float32)}
        )
    assert session.run(
        {"a": np.ones((1, 2), np.float32), "b": np.ones((2, 1), np.float32)}
    )["y"].tolist() == [[2]]


def test_a_free_size_that_the_model_rejects_is_a_client_error(opened: Opener):
    """Exporters leave such sizes.

    The message omits ONNX Runtime's source locations.
    """
    fixed = onnx.numpy_helper.from_array(np.array([-1, 4]), "fixed")
    reshaped = built(
        [node("Reshape", ["x", "fixed"], ["y"])],
        [value("x", T.FLOAT, ["n"])],
        [value("y", T.FLOAT, None)],
    )
    reshaped.graph.initializer.append(fixed)
    added = built(
        [node("Add", ["x", "fixed"], ["y"])],
        [value("x", T.INT64, ["n"])],
        [value("y", T.INT64, ["n"])],
    )
    added.graph.initializer.append(fixed)
    for model, array, reason in (
        (
            reshaped,
            np.ones(6, np.float32),
            r"Reshape: The input tensor cannot be reshaped to the requested shape\. Input",
        ),
        (
            added,
            np.ones(3, np.int64),
            r"Add: Attempting to broadcast an axis by a dimension other than 1\. [23] by [23]$",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{reason}"):
            opened(model).run({"x": array})


def test_a_size_that_the_model_computed_is_a_model_fault(opened: Opener):
    """A detector that finds nothing in a valid picture is an example."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Squeeze", ["places", "axis"], ["flat"]),
        node("Reshape", ["flat", "shape"], ["y"]),
    ]
    model = built(nodes, [value("x", T.FLOAT, [4])], [value("y", T.INT64, [2])])
    for name, numbers in (("axis", [0]), ("shape", [2])):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(numbers), name)
        )
    session = opened(model)
    assert session.run({"x": floats(0, 1, 1, 0)})["y"].tolist() == [1, 2]
    with pytest.raises(
        RuntimeError, match=r"^Reshape: The input tensor cannot be reshaped"
    ):
        session.run({"x": floats(0, 0, 0, 0)})


def test_node_names_are_not_read_as_sizes():
    step = "Non-zero status code returned while running {0} node. Name:'{1}' Status Message: "
    full = "/src/bfc_arena.cc:376 void* AllocateRawInternal(size_t, bool) Failed to allocate memory for a buffer"
    assert not is_about_sizes(
        step.format("Loop", "loop") + step.format("Conv", "/shape/split_3") + full
    )
    broadcast = "axis == 1 was false. Attempting to broadcast an axis by a dimension other than 1. 2 by 3"
    assert is_about_sizes(
        step.format("Loop", "loop") + step.format("Add", "add") + broadcast
    )


def test_other_failures_of_a_run_are_model_faults(opened: Opener):
    cast = built(
        [node("Cast", ["x"], ["y"], to=T.FLOAT)],
        [value("x", T.STRING, ["n"])],
        [value("y", T.FLOAT, ["n"])],
    )
    with pytest.raises(RuntimeError) as caught:
        opened(cast).run({"x": np.array([b"three"], object)})
    assert type(caught.value) is RuntimeError
    assert str(caught.value).startswith("Cast: ")
    assert "ONNXRuntimeError" not in str(caught.value)
    assert "/" not in str(caught.value)


def test_close_frees_the_native_session(opened: Opener):
    session = opened(identity(T.FLOAT))
    native = weakref.ref(session._native)
    kept = session.run({"x": np.ones((1000, 2), np.float32)})["y"]
    session.close()
    assert native() is None
    assert kept.sum() == 2000  # results outlive the session
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"x": np.ones((1, 2), np.float32)})
    session.close()


@pytest.mark.skipif(
    sys.platform not in ("linux", "android"), reason="reads /proc/self/maps"
)
def test_external_weights_are_mapped_until_close(tmp_path: Path):
    session = external(tmp_path, op="Add")
    assert str(tmp_path / "w.bin") in Path("/proc/self/maps").read_text()
    session.close()
    assert str(tmp_path / "w.bin") not in Path("/proc/self/maps").read_text()


# --- Sequences and maps

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def zip_map(shape: Sequence[Any] = ("n", 3), **labels: Any) -> Any:
    key = T.STRING if "classlabels_strings" in labels else T.INT64
    rows = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(T.FLOAT, None))
    )
    nodes = [
        node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", **labels),
        node("ArgMax", ["x"], ["label"], axis=1),
    ]
    outputs = [value("label", T.INT64, None), helper.make_value_info("p", rows)]
    return built(nodes, [value("x", T.FLOAT, list(shape))], outputs, ai_onnx_ml=3)


def test_a_classifiers_probabilities_become_a_tensor(opened: Opener):
    session = opened(zip_map(classlabels_int64s=[7, 5, 9]))
    assert list(session.outputs) == [
        TensorSpec("label", "INT64", (-1, 1)),
        TensorSpec("p.keys", "INT64", (3,)),
        TensorSpec("p.values", "FP32", (-1, 3)),
    ]
    result = session.run({"x": ROWS})
    assert list(result) == ["label", "p.keys", "p.values"]
    assert result["p.keys"].tolist() == [5, 7, 9]
    assert result["p.keys"].dtype == np.int64
    assert result["p.values"].tolist() == [[1, 0, 2], [4, 3, 5]]
    assert result["p.values"].dtype == np.float32
    empty = session.run({"x": ROWS[:0]})
    assert empty["p.keys"].tolist() == [5, 7, 9]
    assert empty["p.values"].shape == (0, 3)


def test_text_labels_with_a_fixed_batch(opened: Opener):
    session = opened(zip_map((2, 3), classlabels_strings=["b", "ä", "c"]))
    assert [(spec.datatype, spec.shape) for spec in session.outputs[1:]] == [
        ("BYTES", (3,)),
        ("FP32", (2, 3)),
    ]
    result = session.run({"x": ROWS})
    assert result["p.keys"].tolist() == [b"b", b"c", "ä".encode()]
    assert result["p.values"].tolist() == [[0, 2, 1], [3, 5, 4]]


def sequence(
    nodes: Sequence[Any],
    kind: int = T.FLOAT,
    inputs: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    inputs = inputs or [value("x", kind, ["n", 3])]
    return built(
        nodes,
        inputs,
        [helper.make_tensor_sequence_value_info("s", kind, None)],
        **options,
    )


def test_a_sequence_of_equal_shapes_is_stacked(opened: Opener):
    session = opened(
        sequence([node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0)])
    )
    assert list(session.outputs) == [
        TensorSpec("s", "FP32", (-1, 3)),
        TensorSpec("s.shapes", "INT64", (-1, 1)),
    ]
    result = session.run({"x": ROWS})
    assert result["s"].tolist() == ROWS.tolist()
    assert result["s.shapes"].tolist() == [[3], [3]]
    empty = session.run({"x": ROWS[:0]})
    assert empty["s"].shape == (0, 3)
    assert empty["s"].dtype == np.float32
    assert empty["s.shapes"].shape == (0, 1)


def test_a_sequence_of_different_shapes_is_concatenated(opened: Opener):
    inputs = [value("x", T.FLOAT, ["n", 3]), value("z", T.FLOAT, ["m"])]
    session = opened(
        sequence([node("SequenceConstruct", ["x", "z"], ["s"])], inputs=inputs)
    )
    assert [spec.shape for spec in session.outputs] == [(-1,), (-1, 2)]
    result = session.run({"x": ROWS, "z": floats(8, 9)})
    assert result["s"].tolist() == [0, 1, 2, 3, 4, 5, 8, 9]
    assert result["s.shapes"].tolist() == [[2, 3], [2, -1]]


def test_a_sequence_of_texts_is_one_tensor(opened: Opener):
    session = opened(
        sequence([node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0)], T.STRING)
    )
    rows = np.array([[b"a", b"b", b"c"]], object)
    assert session.run({"x": rows})["s"].tolist() == rows.tolist()
    assert session.run({"x": rows[:0]})["s"].dtype == object


def test_clashing_output_names_are_told_apart(opened: Opener):
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("Identity", ["x"], ["s.shapes"]),
    ]
    model = sequence(nodes)
    model.graph.output.append(value("s.shapes", T.FLOAT, ["n", 3]))
    with pytest.raises(ModelLoadError, match="two outputs would have the same name"):
        opened(model)


TENSOR_TYPE = helper.make_tensor_type_proto(T.FLOAT, [2])


UNSUPPORTED_TYPES = [
    (
        built(
            [node("OptionalHasElement", ["x"], ["y"])],
            [helper.make_value_info("x", helper.make_optional_type_proto(TENSOR_TYPE))],
            [value("y", T.BOOL, [])],
            opset=18,
        ),
        r"input 'x' is of type optional\(tensor\(float\)\), and only tensors can be sent",
    ),
    (
        built(
            [node("SequenceLength", ["x"], ["y"])],
            [helper.make_tensor_sequence_value_info("x", T.FLOAT, None)],
            [value("y", T.INT64, [])],
        ),
        r"input 'x' is of type seq\(tensor\(float\)\), and only",
    ),
    (
        built(
            [
                node(
                    "DictVectorizer",
                    ["x"],
                    ["y"],
                    domain="ai.onnx.ml",
                    int64_vocabulary=[1],
                )
            ],
            [
                helper.make_value_info(
                    "x", helper.make_map_type_proto(T.INT64, TENSOR_TYPE)
                )
            ],
            [value("y", T.FLOAT, None)],
            ai_onnx_ml=3,
        ),
        r"input 'x' is of type map\(int64,tensor\(float\)\), and only",
    ),
    (
        built(
            [node("Optional", ["x"], ["y"])],
            [value("x", T.FLOAT, [2])],
            [helper.make_value_info("y", helper.make_optional_type_proto(TENSOR_TYPE))],
            opset=18,
        ),
        r"output 'y' is of type optional\(tensor\(float\)\), which cannot be served",
    ),
    (
        identity(T.FLOAT8E4M3FN, opset=19),
        "tensor 'x' is of type float8e4m3fn, which cannot be served",
    ),
    (
        identity(T.COMPLEX64),
        "has a tensor of type complex64, which onnxruntime .* does not have",
    ),
]


@pytest.mark.parametrize(
    ("model", "reason"),
    UNSUPPORTED_TYPES,
)
def test_unsupported_types_are_refused(opened: Opener, model: Any, reason: str):
    with pytest.raises(ModelLoadError, match=reason):
        opened(model)


# --- Files that fail to load


LOAD_FAILURES = [
    (
        identity(T.FLOAT, opset=99),
        r"m\.onnx has opset 99 of ai\.onnx, .* knows those up to \d+; install a newer",
    ),
    (
        identity(T.FLOAT, ai_onnx_ml=99),
        r"m\.onnx has opset 99 of ai\.onnx\.ml, .*; install a newer",
    ),
    (
        identity(T.FLOAT, ir=99),
        r"m\.onnx has IR version 99, .* knows those up to \d+; install a newer",
    ),
    (
        built(
            [node("Foo", ["x"], ["y"], domain="my.ops")],
            [value("x", 1, [1])],
            [value("y", 1, [1])],
            my_ops=1,
        ),
        r"m\.onnx uses the operator my\.ops:Foo, which onnxruntime .* does not have, .*; export the model without",
    ),
    (
        built([node("Foo", ["x"], ["y"])], [value("x", 1, [1])], [value("y", 1, [1])]),
        r"m\.onnx uses the operator Foo of opset 17, which onnxruntime .* does not have",
    ),
    (
        built(
            [node("Relu", ["x"], ["y"])],
            [value("x", T.BFLOAT16, [1])],
            [value("y", T.BFLOAT16, [1])],
        ),
        r"m\.onnx uses the operator Relu \(opset 14\) with a type or in a form that .*; convert it to float32",
    ),
    (
        built(
            [node("Relu", ["nothing"], ["y"])],
            [value("x", 1, [1])],
            [value("y", 1, [1])],
        ),
        r"onnxruntime .* cannot load m\.onnx \(.*nothing.*\): it is damaged, or needs what .*; copy or export",
    ),
    (
        bytes(4) + b"ORTM" + bytes(100),
        r"m\.onnx is in ONNX Runtime's own format, .*; use the \.onnx file",
    ),
    (onnx.ModelProto(), "there is no graph in it|is empty"),
    (b"", r"m\.onnx is not an ONNX model, or damaged .*is empty.*; copy or export"),
    (b"PK\3\4" + bytes(100), r"m\.onnx is not an ONNX model, or damaged"),
    (b"<!DOCTYPE html><html></html>", r"m\.onnx is not an ONNX model, or damaged"),
    (
        identity(T.FLOAT).SerializeToString()[:-9],
        r"m\.onnx is not an ONNX model, or damaged or truncated",
    ),
]


@pytest.mark.parametrize(
    ("model", "reason"),
    LOAD_FAILURES,
)
def test_a_load_failure_is_explained_in_one_sentence(
    opened: Opener,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    model: Any,
    reason: str,
):
    with pytest.raises(ModelLoadError, match=reason) as caught:
        opened(model)
    text = str(caught.value)
    assert "\n" not in text
    assert str(tmp_path) not in text
    assert "onnxruntime_src" not in text
    assert capfd.readouterr() == ("", "")


def test_a_missing_locale_is_replaced(opened: Opener):
    """Termux has few locales, and scikit-learn's text models name one."""
    step = node(
        "StringNormalizer",
        ["x"],
        ["y"],
        case_change_action="LOWER",
        locale="nowhere_NO",
    )
    model = built([step], [value("x", T.STRING, [1])], [value("y", T.STRING, [1])])
    reason = r"m\.onnx compares texts by the rules of the locale nowhere_NO, .*; install it, or export the model"
    with pytest.raises(ModelLoadError, match=reason):
        opened(model)


def test_a_missing_or_special_file_is_refused(tmp_path: Path):
    with pytest.raises(
        ModelLoadError, match=r"gone\.onnx cannot be read: No such file"
    ):
        RUNTIME.open(ModelSource(tmp_path / "gone.onnx"))
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(
        ModelLoadError, match=r"pipe\.onnx cannot be read: it is not a regular file"
    ):
        RUNTIME.open(ModelSource(tmp_path / "pipe.onnx"))


def test_a_file_beyond_protobufs_limit_is_refused(tmp_path: Path):
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(onnx_check.MAX_FILE_BYTES + 1)
    with pytest.raises(
        ModelLoadError,
        match="larger than 2 GB; save the model with its weights as external data",
    ):
        check_model(tmp_path / "m.onnx")


def test_a_missing_or_broken_package_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = ModelSource(tmp_path / "m.onnx")
    source.path.write_bytes(identity(T.FLOAT).SerializeToString())
    install = (
        r"pip install 'pocketserve\[onnx\]'; in Termux: pkg install python-onnxruntime"
    )
    with pytest.raises(RuntimeMissingError, match=f"is not installed; run: {install}"):
        OnnxRuntime("no_such_onnxruntime").open(source)
    (tmp_path / "broken_onnxruntime.py").write_text(
        "raise OSError('libonnxruntime.so: not found.\\nmore')"
    )
    (tmp_path / "partial_onnxruntime.py").write_text("import no_such_module")
    (tmp_path / "empty_onnxruntime").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name, reason in (
        ("broken_onnxruntime", "libonnxruntime.so: not found"),
        ("partial_onnxruntime", "No module named 'no_such_module'"),
        ("empty_onnxruntime", ".*InferenceSession.*"),
    ):
        with pytest.raises(
            RuntimeMissingError, match=rf"does not load \({reason}\); run: {install}"
        ):
            OnnxRuntime(name).open(source)


# --- Execution providers


def test_a_missing_provider_is_reported(
    opened: Opener, caplog: pytest.LogCaptureFixture
):
    session = opened(
        identity(T.FLOAT), providers=["NoSuchExecutionProvider", "CPUExecutionProvider"]
    )
    assert session.device == "cpu"
    assert "m.onnx runs without NoSuchExecutionProvider" in caplog.text
    with pytest.raises(
        ModelLoadError,
        match=r"NoSuchExecutionProvider is not part of .*available are .*CPUExecution",
    ):
        opened(identity(T.FLOAT), providers=["NoSuchExecutionProvider"], required=True)


FAILING = """
from onnxruntime import *
from onnxruntime import __version__
import onnxruntime as real

def get_available_providers():
    return ["FailingExecutionProvider", *real.get_available_providers()]

class InferenceSession(real.InferenceSession):
    def __init__(self, path, options, providers, **more):
        if "FailingExecutionProvider" in providers:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : no such device")
        super().__init__(path, options, providers, **more)
"""


def test_a_provider_that_fails_to_start_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    (tmp_path / "failing_onnxruntime.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    runtime = OnnxRuntime("failing_onnxruntime")
    path = tmp_path / "m.onnx"
    path.write_bytes(identity(T.FLOAT).SerializeToString())
    options: dict[str, object] = {"providers": ["FailingExecutionProvider"]}
    assert runtime.open(ModelSource(path, options=options)).device == "cpu"
    assert (
        "m.onnx runs without FailingExecutionProvider (no such device)" in caplog.text
    )
    with pytest.raises(
        ModelLoadError,
        match=r"FailingExecutionProvider did not start \(no such device\); available",
    ):
        runtime.open(ModelSource(path, options={**options, "required": True}))
    path.write_bytes(identity(T.FLOAT, opset=99).SerializeToString())
    # The model's own fault is reported first.
    with pytest.raises(ModelLoadError, match="has opset 99"):
        runtime.open(ModelSource(path, options={**options, "required": True}))
    assert capfd.readouterr() == ("", "")


def test_a_provider_without_any_operator_is_not_listed(opened: Opener):
    if "AzureExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no second provider")
    session = opened(identity(T.FLOAT), providers=["AzureExecutionProvider"])
    knows = hasattr(session._native, "get_provider_graph_assignment_info")
    assert session.device == ("cpu" if knows else "AzureExecutionProvider, cpu")
    if knows:
        with pytest.raises(
            ModelLoadError,
            match="AzureExecutionProvider runs no part of this model; available are ",
        ):
            opened(
                identity(T.FLOAT), providers=["AzureExecutionProvider"], required=True
            )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"providers": "CPUExecutionProvider"}, "the option providers is a list"),
        ({"providers": [1]}, "the option providers is a list"),
        ({"required": 1}, "the option required is true or false, not 1"),
    ],
)
def test_options_of_the_wrong_type_are_refused(
    opened: Opener, options: dict[str, Any], reason: str
):
    with pytest.raises(ModelLoadError, match=reason):
        opened(identity(T.FLOAT), **options)


# --- External data

WEIGHTS = np.arange(16, dtype=np.float32)


def tensor_outside(location: str | None = "w.bin", **entries: object) -> Any:
    """Return a 4x4 tensor ``w`` with external data."""
    tensor = T(
        name="w",
        data_type=T.FLOAT,
        dims=[4, 4],
        data_location=T.EXTERNAL,
    )
    pairs = {"location": location, **entries}
    tensor.external_data.extend(
        onnx.StringStringEntryProto(key=key, value=str(item))
        for key, item in pairs.items()
        if item is not None
    )
    return tensor


def with_weights(tensor: Any, op: str = "MatMul") -> Any:
    return built(
        [node(op, ["x", "w"], ["y"])],
        [value("x", 1, ["n", 4])],
        [value("y", 1, ["n", 4])],
        [tensor],
    )


def external(
    folder: Path, location: str | None = "w.bin", op: str = "MatMul", **entries: object
) -> OnnxSession:
    """Return a function that opens a model whose weights are in ``folder/w.bin``."""
    if not (folder / "w.bin").exists():
        WEIGHTS.tofile(folder / "w.bin")
    path = folder / "m.onnx"
    path.write_bytes(
        with_weights(tensor_outside(location, **entries), op).SerializeToString()
    )
    return RUNTIME.open(ModelSource(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return ``models/m`` beside a file that a model must not read."""
    WEIGHTS.tofile(tmp_path / "secret.bin")
    inner = tmp_path / "models" / "m"
    inner.mkdir(parents=True)
    return inner


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("w.bin", {}),
        ("./w.bin", {"offset": 0, "length": 64}),
        ("sub/w.bin", {"checksum": "1234"}),
        ("link.bin", {}),
        ("back\\slash.bin", {}),
        ("ab://w.bin", {}),
    ],
)
def test_weights_inside_the_folder(
    folder: Path, location: str, entries: dict[str, object]
):
    (folder / "sub").mkdir()
    WEIGHTS.tofile(folder / "sub" / "w.bin")
    (folder / "link.bin").symlink_to("sub/w.bin")
    (folder / "back\\slash.bin").symlink_to("sub/w.bin")
    (folder / "ab:").symlink_to("sub")
    result = external(folder, location, **entries).run(
        {"x": np.eye(4, dtype=np.float32)}
    )["y"]
    np.testing.assert_array_equal(result.reshape(-1), WEIGHTS)


OUTSIDE = r"m\.onnx keeps weights in .*, which is not a file inside its folder; save the model again"


BAD_EXTERNAL_DATA = [
    ("../../secret.bin", {}, OUTSIDE),
    ("sub/../../../secret.bin", {}, OUTSIDE),
    ("..\\secret.bin", {}, OUTSIDE),
    ("C:secret.bin", {}, OUTSIDE),
    ("{root}/secret.bin", {}, OUTSIDE),
    ("/dev/zero", {}, OUTSIDE),
    ("link.bin", {}, OUTSIDE),
    ("linked/secret.bin", {}, OUTSIDE),
    ("w.bin\0x", {}, OUTSIDE),
    ("*/_ORT_MEM_ADDR_/*", {"offset": 4096, "length": 64}, OUTSIDE),
    ("", {}, OUTSIDE),
    (None, {"offset": 0}, OUTSIDE),
    (
        "gone.bin",
        {},
        "'gone.bin', which is not there; copy that file into the model's folder",
    ),
    (
        "loop.bin",
        {},
        "'loop.bin', which (is not there|cannot be read|is not a file)",
    ),
    ("sub", {}, "'sub', which cannot be read; copy that file again"),
    ("pipe", {}, "'pipe', which cannot be read; copy that file again"),
    ("x" * 4000, {}, "which is not there|cannot be read"),
    ("x" * 5000, {}, "a name is too long"),
    (
        "short.bin",
        {},
        r"'short.bin', which is truncated \(40 of at least 64 bytes\); copy that file again",
    ),
    (
        "lfs.bin",
        {},
        "m.onnx keeps its weights elsewhere, and lfs.bin is only a pointer of Git LFS: run git lfs pull",
    ),
    ("w.bin", {"offset": 32}, r"truncated \(64 of at least 96 bytes\)"),
    ("w.bin", {"length": 1 << 40}, "truncated"),
    ("w.bin", {"offset": -1}, "the place of a tensor's weights is not a number"),
    ("w.bin", {"offset": "9" * 30}, "the place of a tensor's weights is not a number"),
    ("w.bin", {"length": 32}, "cannot load m.onnx.*size mismatch"),
]


@pytest.mark.parametrize(
    ("location", "entries", "reason"),
    BAD_EXTERNAL_DATA,
)
def test_weights_elsewhere_or_incomplete_are_refused(
    folder: Path, location: str | None, entries: dict[str, object], reason: str
):
    (folder / "sub").mkdir()
    (folder / "link.bin").symlink_to(folder.parent.parent / "secret.bin")
    (folder / "linked").symlink_to(folder.parent.parent)
    (folder / "loop.bin").symlink_to("loop.bin")
    WEIGHTS[:10].tofile(folder / "short.bin")
    (folder / "lfs.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    os.mkfifo(folder / "pipe")
    if location is not None:
        location = location.replace("{root}", str(folder.parent.parent))
    with pytest.raises(ModelLoadError, match=reason) as caught:
        external(folder, location, **entries)
    assert "\n" not in str(caught.value)


def test_a_tensor_with_two_locations_is_refused(folder: Path):
    tensor = tensor_outside("w.bin")
    tensor.external_data.append(
        onnx.StringStringEntryProto(key="location", value="../../secret.bin")
    )
    (folder / "m.onnx").write_bytes(with_weights(tensor).SerializeToString())
    with pytest.raises(ModelLoadError, match="two places"):
        check_model(folder / "m.onnx")


def test_a_linked_model_finds_its_weights_beside_the_real_file(folder: Path):
    external(folder)
    other = folder.parent / "other"
    other.mkdir()
    (other / "m.onnx").symlink_to(folder / "m.onnx")
    np.zeros(16, np.float32).tofile(other / "w.bin")
    session = RUNTIME.open(ModelSource(other / "m.onnx"))
    assert session.run({"x": np.eye(4, dtype=np.float32)})["y"].sum() == WEIGHTS.sum()


def in_attributes(bad: Any, sparse: Any) -> dict[str, Any]:
    """Return models with an external tensor in each kind of attribute."""
    inner = _constant([1.0])
    inner.initializer.append(bad)
    contents = {
        "t": bad,
        "tensors": bad,
        "sparse_tensor": sparse,
        "sparse_tensors": sparse,
        "g": inner,
        "graphs": inner,
    }
    names = {
        "tensor": "t",
        "tensors": "tensors",
        "sparse": "sparse_tensor",
        "sparses": "sparse_tensors",
        "graph": "g",
        "graphs": "graphs",
    }
    models = {}
    for name, field in names.items():
        model = identity(T.FLOAT)
        attribute = model.graph.node[0].attribute.add(name="a")
        target = getattr(attribute, field)
        if name.endswith("s") and name != "sparse":
            target = target.add()
        target.CopyFrom(contents[field])
        models[name] = model
    return models


def in_functions(bad: Any) -> dict[str, Any]:
    """Return models with an external tensor in functions."""
    by_node = identity(T.FLOAT)
    function = by_node.functions.add(name="f")
    function.node.add(op_type="Constant").attribute.add(name="value").t.CopyFrom(bad)

    by_default = identity(T.FLOAT)
    attribute = helper.make_attribute("a", 1)
    attribute.t.CopyFrom(bad)
    by_default.functions.add(name="f").attribute_proto.append(attribute)
    return {"function": by_node, "function_default": by_default}


def hidden() -> dict[str, Any]:
    """Return models with an external tensor in each place where a tensor may be."""
    bad = tensor_outside("../w.bin")
    indices = T(data_type=T.INT64, dims=[16])
    sparse = onnx.SparseTensorProto(values=bad, indices=indices, dims=[16])

    initializer = identity(T.FLOAT)
    initializer.graph.initializer.append(bad)
    sparse_initializer = identity(T.FLOAT)
    sparse_initializer.graph.sparse_initializer.append(sparse)
    training = identity(T.FLOAT)
    training.training_info.add().algorithm.initializer.append(bad)

    # Protobuf merges the two graphs: this is the model of "initializer" in two parts.
    second_part = onnx.ModelProto()
    second_part.graph.initializer.append(bad)
    first_part = identity(T.FLOAT)
    split = first_part.SerializeToString() + second_part.SerializeToString()
    return {
        **in_attributes(bad, sparse),
        "initializer": initializer,
        "sparse_initializer": sparse_initializer,
        **in_functions(bad),
        "training": training,
        "split": split,
    }


@pytest.mark.parametrize("place", sorted(hidden()))
def test_external_tensors_are_found_in_every_place(folder: Path, place: str):
    model = hidden()[place]
    (folder / "m.onnx").write_bytes(
        model if isinstance(model, bytes) else model.SerializeToString()
    )
    with pytest.raises(ModelLoadError, match=OUTSIDE):
        check_model(folder / "m.onnx")


def test_the_table_of_paths_to_tensors_is_complete():
    """Compare the table with all fields of the package's descriptors that lead to a
    TensorProto.
    """
    ways: dict[str, dict[int, str]] = {}
    todo = [onnx.ModelProto.DESCRIPTOR]
    seen = {todo[0].name: todo[0]}
    while todo:
        for field in todo.pop().fields:
            child = field.message_type
            if child is not None and child.name not in seen:
                seen[child.name] = child
                todo.append(child)
    leading = {"TensorProto"}
    for _ in seen:
        leading |= {
            d.name
            for d in seen.values()
            if any(f.message_type and f.message_type.name in leading for f in d.fields)
        }
    for name in leading - {"TensorProto"}:
        fields = [f for f in seen[name].fields if f.message_type is not None]
        ways[name] = {
            f.number: f.message_type.name
            for f in fields
            if f.message_type.name in leading
        }
    assert ways == {name: dict(fields) for name, fields in onnx_check._CHILDREN.items()}


def test_the_table_of_element_sizes_is_right():
    names = dict(zip(T.DataType.values(), T.DataType.keys(), strict=True))
    for number, bits in onnx_check._BITS.items():
        kind = helper.tensor_dtype_to_np_dtype(number)
        packed = 0
        if names[number].startswith(("INT", "UINT", "FLOAT4")):
            packed = int(names[number].lstrip("UINTFLOA")[0])
        assert bits == (packed if packed in (2, 4) else kind.itemsize * 8), names[
            number
        ]


# --- Bounds of the check


def varint(number: int) -> bytes:
    if number > 0x7F:
        return bytes([number & 0x7F | 0x80]) + varint(number >> 7)
    return bytes([number])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def refused_or_passed(path: Path, content: bytes) -> GraphFacts | None:
    """Return the check's result; any other error fails the test."""
    path.write_bytes(content)
    try:
        return check_model(path)
    except ModelLoadError:
        return None


def test_nesting_is_bounded(tmp_path: Path):
    inner = b""
    for _ in range(10_000):
        # A graph's node's attribute's graph.
        inner = message(1, message(5, message(6, inner)))
    (tmp_path / "m.onnx").write_bytes(message(7, inner))
    with pytest.raises(ModelLoadError, match="nested too deeply"):
        check_model(tmp_path / "m.onnx")


def test_work_is_bounded():
    reader = ProtobufReader(message(1, b"") * 100, budget=50)
    with pytest.raises(DamagedFileError, match="too large"):
        list(reader.parts((0, 200)))


def test_packed_numbers_are_skipped_quickly():
    numbers = (b"\x3d1234" + b"\x40\xff\xff\x01" + b"\x3912345678") * 10_000 + message(
        5, b""
    )
    reader = ProtobufReader(numbers, budget=1000)
    assert [number for number, _ in reader.parts((0, len(numbers)))] == [5]


def test_an_impossible_shape_is_refused(tmp_path: Path):
    for dims in (
        [1 << 40, 1 << 40],
        [-1, 4],
        [2] * 1000,
    ):
        tensor = tensor_outside("w.bin")
        tensor.ClearField("dims")
        tensor.dims.extend(dims)
        assert (
            refused_or_passed(
                tmp_path / "m.onnx", with_weights(tensor).SerializeToString()
            )
            is None
        )


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_raises_only_the_checks_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
):
    refused_or_passed(tmp_path_factory.getbasetemp() / "garbage.onnx", content)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.binary(max_size=20),
        lambda inner: st.lists(st.tuples(st.integers(1, 30), inner), max_size=4),
    )
)
def test_nested_messages_raise_only_the_checks_error(
    tmp_path_factory: pytest.TempPathFactory, tree: Any
):
    def encoded(tree: Any) -> bytes:
        if isinstance(tree, bytes):
            return tree
        return b"".join(message(number, encoded(part)) for number, part in tree)

    refused_or_passed(
        tmp_path_factory.getbasetemp() / "tree.onnx", message(7, encoded(tree))
    )


def test_the_check_accepts_files_that_protobuf_parses(tmp_path: Path):
    """Damaged copies raise only the check's error, and hide no external tensor."""
    model = with_weights(tensor_outside("w.bin"))
    whole = model.SerializeToString()
    dice = random.Random(5)
    WEIGHTS.tofile(tmp_path / "w.bin")
    for _ in range(500):
        damaged = bytearray(
            whole[: dice.randrange(1, len(whole) + 1)] if dice.random() < 0.3 else whole
        )
        for _ in range(dice.randrange(3)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        facts = refused_or_passed(tmp_path / "m.onnx", bytes(damaged))
        try:
            parsed = onnx.ModelProto.FromString(bytes(damaged))
        except Exception:
            continue
        outside = [
            e.value
            for t in parsed.graph.initializer
            for e in t.external_data
            if e.key == "location"
        ]
        assert facts is None or all(location == "w.bin" for location in outside)


def test_damaged_files_load_or_are_explained(opened: Opener):
    """ONNX Runtime itself runs after the check."""
    whole = bytearray(zip_map(classlabels_int64s=[1, 2, 3]).SerializeToString())
    dice = random.Random(6)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        with contextlib.suppress(ModelLoadError):
            opened(bytes(damaged)).close()


# --- Public models


def _cases() -> list[dict[str, Any]]:
    root = find_assets()
    cases = (
        [
            json.loads(path.read_text())
            for path in sorted((root / "expected").glob("*.json"))
        ]
        if root
        else []
    )
    return [case for case in cases if case["model"].startswith("models/onnx/")]


CASES = _cases()
WITH_TENSORS = [
    case
    for case in CASES
    if "npy" in case["outputs"][0] and "prob_per_chunk" not in str(case["outputs"])
]
LIMITS = {
    "rtol 1e-4": (1e-4, 1e-4),
    "abs 1e-3": (0, 1e-3),
    "abs 1e-4": (0, 1e-4),
    "abs 0.01": (0, 0.01),
}


def opened_asset(assets: Path, case: dict[str, Any]) -> OnnxSession:
    path = assets / case["model"]
    return RUNTIME.open(ModelSource(path / "model.onnx" if path.is_dir() else path))


def limits(case: dict[str, Any]) -> dict[str, float]:
    rtol, atol = next(
        pair for start, pair in LIMITS.items() if case["tolerance"].startswith(start)
    )
    return {"rtol": rtol, "atol": atol}


@pytest.mark.assets
@pytest.mark.parametrize("case", WITH_TENSORS, ids=lambda case: str(case["id"]))
def test_public_model(assets: Path, case: dict[str, Any]):
    session = opened_asset(assets, case)
    arrays = [np.load(assets / item["npy"]) for item in case["inputs"]]
    assert [
        spec.accepts(array.shape)
        for spec, array in zip(session.inputs, arrays, strict=True)
    ] == [True] * len(arrays)
    results = session.run(
        {spec.name: array for spec, array in zip(session.inputs, arrays, strict=True)}
    )
    for position, expected in enumerate(case["outputs"]):
        got = results.get(expected["name"], list(results.values())[position])
        np.testing.assert_allclose(
            got, np.load(assets / expected["npy"]), **limits(case)
        )


def voice_probabilities(session: Any, sound: Any, chunks: int) -> list[float]:
    """Return the probability of speech of each chunk of 512 samples."""
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(64, np.float32)
    rate = np.array(16000)
    found = []
    for chunk in range(chunks):
        part = sound[512 * chunk : 512 * chunk + 512]
        padding = np.zeros(512 - len(part), np.float32)
        block = np.concatenate([context, part, padding])
        result = session.run(
            {
                "input": block[None],
                "state": state,
                "sr": rate,
            }
        )
        state = result["stateN"]
        context = block[-64:]
        found.append(float(result["output"][0, 0]))
    return found


@pytest.mark.assets
def test_a_voice_detector_whose_state_the_client_carries(assets: Path):
    (case,) = [case for case in CASES if case["id"].startswith("silero")]
    session = opened_asset(assets, case)
    assert [(spec.name, spec.datatype, spec.shape) for spec in session.inputs] == [
        ("input", "FP32", (-1, -1)),
        ("state", "FP32", (2, -1, 128)),
        ("sr", "INT64", ()),
    ]
    with wave.open(str(assets / case["source_inputs"][0])) as file:
        sound = np.frombuffer(file.readframes(-1), "<i2").astype(np.float32) / 32768
    expected = np.load(assets / case["outputs"][0]["npy"])
    found = voice_probabilities(session, sound, len(expected))
    np.testing.assert_allclose(found, expected, **limits(case))


@pytest.mark.assets
def test_text_is_recognized(assets: Path):
    """The model returns a probability per character and step; its file has the
    character table.
    """
    (case,) = [case for case in CASES if case["id"].startswith("ppocr_rec")]
    x = np.load(assets / case["inputs"][0]["npy"])
    (result,) = opened_asset(assets, case).run({"x": x}).values()
    assert list(result.shape) == case["outputs"][0]["shape"]
    metadata = {}
    for item in onnx.load(assets / case["model"]).metadata_props:
        metadata[item.key] = item.value
    characters = ["", *metadata["character"].splitlines(), " "]
    best = result[0].argmax(-1)
    kept = []
    for step in range(len(best)):
        if step == 0 or best[step] != best[step - 1]:
            kept.append(best[step])
    assert "".join(characters[index] for index in kept) == case["answer"]["text"]


@pytest.mark.assets
def test_text_is_found_in_pictures_of_any_size(assets: Path):
    image = pytest.importorskip("PIL.Image")
    (case,) = [case for case in CASES if case["id"].startswith("ppocr_det")]
    session = opened_asset(assets, case)
    picture = image.open(assets / case["source_inputs"][0]).convert("RGB")
    for width, height in ((192, 96), (768, 384)):
        bgr = (
            np.asarray(
                picture.resize((width, height), image.Resampling.BILINEAR), np.float32
            )[..., ::-1]
            / 255
        )
        normal = (bgr - np.array([0.485, 0.456, 0.406])) / np.array(
            [0.229, 0.224, 0.225]
        )
        (result,) = session.run(
            {"x": normal.transpose(2, 0, 1)[None].astype(np.float32)}
        ).values()
        assert result.shape == (1, 1, height, width)
    assert float((result > 0.3).mean()) == pytest.approx(
        case["answer"]["share>0.3"], abs=1e-3
    )
    assert float(result.max()) == pytest.approx(case["answer"]["max"], abs=1e-3)


@pytest.mark.assets
def test_every_public_case_is_covered():
    """A new case needs its tensors, or a test of its own above."""
    own = set()
    for case in CASES:
        if case["id"].startswith(("silero", "ppocr_rec", "ppocr_det")):
            own.add(case["id"])
    assert {case["id"] for case in CASES} == own | {case["id"] for case in WITH_TENSORS}
