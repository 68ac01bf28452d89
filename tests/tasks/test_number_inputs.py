"""Rows, tensors and .npy files become input arrays or are rejected with a reason."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.tabular import tables
from pocketserve.tasks.tabular.tabular_regression import (
    RegressionTarget,
    TabularRegression,
)
from pocketserve.tasks.tensors import Tensors
from pocketserve.tensors import Array, Quantization, TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from text_models import task_of

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
)
INPUT = ErrorCode.INVALID_INPUT
TENSOR = ErrorCode.INVALID_TENSOR
MALFORMED = ErrorCode.MALFORMED_JSON
OPTIONS = AnswerOptions()


def spec(
    datatype: str = "FP32", shape: tuple[int, ...] = (-1, 3), **options: Any
) -> TensorSpec:
    """Return the spec of a model's input."""
    return TensorSpec("x", datatype, shape, **options)


def npy(array: Any, **options: Any) -> bytes:
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, np.asarray(array), **options)
    return file.getvalue()


def npy_header(
    header: str, content: bytes = b"", version: bytes = b"\x01\x00"
) -> bytes:
    """Return an .npy file with any text as its header."""
    text = header.encode("latin-1") + b"\n"
    return arrays.NPY_MAGIC + version + struct.pack("<H", len(text)) + text + content


# Tabular regression

FEATURES = ("age", "bmi", "bp")
ROWS: TabularRegression = TabularRegression(
    tables.Rows(spec(), FEATURES), [RegressionTarget("progression", "points")]
)


def rows(body: Any, task: TabularRegression = ROWS) -> list[Any]:
    """Return the rows that the model gets."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    (array,) = task.prepare(memoryview(text)).runs[0].values()
    assert array.dtype == np.float32
    assert array.ndim == 2
    result: list[Any] = array.tolist()
    return result


GOOD_ROWS: dict[str, tuple[Any, list[list[float]]]] = {
    "one row": ([1, 2.5, -3], [[1, 2.5, -3]]),
    "rows": ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
    "two rows in one list": ([1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]),
    "an object, in any order": ({"bp": 3, "age": 1, "bmi": 2}, [[1, 2, 3]]),
    "objects": (
        [{"age": 1, "bmi": 2, "bp": 3}, {"bp": 6, "bmi": 5, "age": 4}],
        [[1, 2, 3], [4, 5, 6]],
    ),
    "spaces in front": (b" \r\n\t[1, 2, 3]", [[1, 2, 3]]),
    "a line of CSV": (b"1, 2.5, -3", [[1, 2.5, -3]]),
    "lines of CSV": (b"1,2,3\r\n4,5,6\r\n", [[1, 2, 3], [4, 5, 6]]),
    "CSV with names, in any order": (
        b"bp,age,bmi\n3,1,2\n6,4,5",
        [[1, 2, 3], [4, 5, 6]],
    ),
    ".npy row": (npy([1.0, 2.0, 3.0]), [[1, 2, 3]]),
    ".npy rows of integers": (npy([[1, 2, 3], [4, 5, 6]]), [[1, 2, 3], [4, 5, 6]]),
}


@pytest.mark.parametrize("case", GOOD_ROWS)
def test_rows(case: str) -> None:
    """Every format gives the same array, with features in the model's order."""
    body, expected = GOOD_ROWS[case]
    assert rows(body) == expected


@pytest.mark.parametrize(
    "body", [b"[NaN, 1, 2]", b"[null, 1, 2]", b'{"age": NaN, "bmi": 1, "bp": 2}']
)
def test_missing_numbers(body: bytes) -> None:
    """NaN and null reach the model as NaN, since some models are trained with gaps."""
    ((first, *rest),) = rows(body)
    assert math.isnan(first)
    assert rest == [1, 2]


BAD_ROWS: dict[str, tuple[Any, ErrorCode, str]] = {
    "empty": (b"", INPUT, "send a JSON array"),
    "text": (b"age=1", INPUT, "send a JSON array"),
    "a string": (b'"1,2,3"', INPUT, "send a JSON array"),
    "broken JSON": (b"[1, 2", MALFORMED, "JSON"),
    "duplicate feature": (b'{"age":1,"age":1}', MALFORMED, "'age'"),
    "no values": (b"[]", INPUT, r"expected FP32 \[-1, 3\], got JSON of shape \[0\]"),
    "a number": (b"5", INPUT, "row 0 has 1 value;"),
    "a number beyond all": (
        b"[1e400, 2, 3]",
        TENSOR,
        r"data\[0\] is beyond 1.8e308, which is too large for FP32",
    ),
    "CSV with a number beyond all": (b"1e400,2,3", INPUT, "send a JSON array"),
    "CSV with a named number beyond all": (
        b"age,bmi,bp\n1,-1e400,3",
        INPUT,
        "row 0: feature 'bmi' is not a number",
    ),
    "a CSV line of three and one of two": (b"1,2,3\n4,5", INPUT, "row 1 has 2 values"),
    "CSV with a missing feature": (
        b"age,bp\n1,2",
        INPUT,
        "row 0: feature 'bmi' is missing",
    ),
    "decimal commas": (
        b"5,1;3,5;1,4",
        INPUT,
        "lines of CSV; numbers have a decimal point, 5.1 and not 5,1",
    ),
    "decimal commas in quotes": (
        b'"5,1","3,5","1,4"\n',
        INPUT,
        "numbers have a decimal point, 5.1 and not 5,1",
    ),
    "decimal commas and tabs": (
        b"5,1\t3,5\t1,4\r\n",
        INPUT,
        "numbers have a decimal point, 5.1 and not 5,1",
    ),
    "decimal commas and commas": (
        b"5,1,3,5,1,4",
        INPUT,
        "row 0 has 6 values; the model takes 3: age, bmi, bp; numbers ",
    ),
    "decimal commas in rows": (
        [[5, 1, 3, 5, 1, 4]],
        INPUT,
        "age, bmi, bp; numbers have a decimal point",
    ),
    "decimal commas by name": (
        b'age,bmi,bp\n1,2,"3,5"',
        INPUT,
        "row 0: feature 'bp' is not a number; numbers have a",
    ),
    "decimal commas as texts": (
        {"age": "5,1", "bmi": 1, "bp": 1},
        INPUT,
        "feature 'age' is a text, '5,1'; numbers have",
    ),
    "semicolons": (
        b"5.1;3.5;1.4",
        INPUT,
        "lines of CSV; separate the numbers by commas, not by semicolons",
    ),
    "CSV with words": (
        b"age,bmi,bp\n1,2,high",
        INPUT,
        "row 0: feature 'bp' is not a number",
    ),
    "CSV with a short line": (
        b"age,bmi,bp\n1,2",
        INPUT,
        "row 0 has 2 values; the line of names has 3",
    ),
    "four values": (
        [1, 2, 3, 4],
        INPUT,
        "4 values do not make a whole row; the model takes 3: age, bmi, bp",
    ),
    "short row": ([[1, 2, 3], [4, 5]], INPUT, "row 1 has 2 values; the model takes 3"),
    "rows that only fit together": (
        [[1, 2], [3, 4, 5, 6]],
        INPUT,
        "row 0 has 2 values",
    ),
    "an empty row": ([[], [1, 2, 3]], INPUT, "row 0 has 0 values"),
    "unknown feature": (
        {"age": 1, "bmi": 2, "bp": 3, "s1": 4},
        INPUT,
        "unknown feature 's1'; the model takes age",
    ),
    "missing feature": ({"age": 1, "bp": 3}, INPUT, "row 0: feature 'bmi' is missing"),
    "missing in the second": (
        [dict.fromkeys(FEATURES, 1), {}],
        INPUT,
        "row 1: feature 'age' is missing",
    ),
    "objects and lists": (
        [dict.fromkeys(FEATURES, 1), [1, 2, 3]],
        INPUT,
        "row 1 is an array",
    ),
    "text as a number": ({"age": "1", "bmi": 2, "bp": 3}, TENSOR, "takes numbers"),
    "a boolean": ([True, 2, 3], TENSOR, "takes numbers"),
    "a list as a number": (
        {"age": [1, 2], "bmi": 2, "bp": 3},
        TENSOR,
        "not rectangular",
    ),
    "an object as a number": ({"age": {}, "bmi": 2, "bp": 3}, TENSOR, "takes numbers"),
    "too large": ([1e300, 2, 3], TENSOR, "too large for FP32"),
    ".npy of the wrong size": (
        npy([1.0, 2.0]),
        INPUT,
        r"expected FP32 \[-1, 3\], got FP64 \[2\]",
    ),
    ".npy of text": (npy(["1", "2", "3"]), INPUT, "expected FP32"),
}


def test_long_csv_is_counted_before_it_is_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cells and lines have separate limits."""
    monkeypatch.setattr(tables, "MAX_CELLS", 20)
    monkeypatch.setattr(tables, "MAX_ROWS", 4)
    assert len(rows(b"1,2,3\n\n" * 4)) == 4
    with pytest.raises(ApiError, match="more than 4 lines") as caught:
        rows(b"1,2,3\n" * 5)
    assert caught.value.code is INPUT
    for body in (
        b"1,2,3" + b"," * 30,
        b"1,2,3" + b"\n" * 30,
        b"1,2,3" + b"\r" * 30,
    ):
        with pytest.raises(ApiError, match="cells, the limit is 20"):
            rows(body)


@pytest.mark.parametrize("sign", [" ", '"', "1"])
def test_a_long_line_of_csv_needs_little_memory(sign: str) -> None:
    body = sign.encode() * 10**6
    tracemalloc.start()
    try:
        with pytest.raises(ApiError):
            rows(body)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", BAD_ROWS)
def test_invalid_rows_are_rejected(case: str) -> None:
    """The error names the row and the feature."""
    body, code, part = BAD_ROWS[case]
    with pytest.raises(ApiError, match=part) as caught:
        rows(body)
    assert caught.value.code is code


def test_infinity_by_name_is_rejected() -> None:
    for body in (
        b"[Infinity, 1, -Infinity]",
        b"inf,1,-inf",
        b"age,bmi,bp\nInfinity,1,-Infinity",
    ):
        assert rows(body) == [[math.inf, 1, -math.inf]]


def test_features_without_names() -> None:
    """Rows are arrays if the manifest names no features."""
    task = TabularRegression(tables.Rows(spec(), ()), [RegressionTarget("y")])
    assert rows([1, 2, 3], task) == [[1, 2, 3]]
    with pytest.raises(ApiError, match="have no names"):
        rows({"age": 1}, task)


def test_text_features_can_look_like_numbers() -> None:
    task = TabularRegression(
        tables.Rows(spec("BYTES"), FEATURES), [RegressionTarget("y")]
    )
    (array,) = (
        task.prepare(memoryview(b'{"age": "5,1", "bmi": "1", "bp": "high"}'))
        .runs[0]
        .values()
    )
    assert array.tolist() == [[b"5,1", b"1", b"high"]]


def test_features_are_listed_with_their_units() -> None:
    told = TabularRegression(
        tables.Rows(spec(), FEATURES, ("years", "", "mmHg")), [RegressionTarget("y")]
    ).describe()["input"]
    assert told.endswith(
        "or lines of CSV; the features are age (years), bmi, bp (mmHg)"
    )
    assert ROWS.describe()["input"].endswith("; the features are age, bmi, bp")
    assert tables.Rows(spec(), ()).describe().endswith("or lines of CSV")
    many = tables.Rows(spec(), [f"f{number}" for number in range(1000)]).describe()
    assert many.endswith("f48, f49 and 950 more")


def test_a_wrong_number_of_units_is_rejected(tmp_path: Path) -> None:
    manifest = {
        "task": "tabular-regression",
        "features": {"names": ["a", "b"], "units": ["m"]},
    }
    with pytest.raises(
        ModelLoadError, match=r"features.units has 1, features.names has 2"
    ):
        task_of(tmp_path, [TensorSpec("x", "FP32", (-1, 2))], {"y": (-1, 1)}, manifest)
    manifest["features"] = {"names": ["a", "b"], "units": ["m", "s"]}
    task = task_of(
        tmp_path, [TensorSpec("x", "FP32", (-1, 2))], {"y": (-1, 1)}, manifest
    )
    assert "the features are a (m), b (s)" in task.describe()["input"]


def test_a_model_fixed_to_one_row_accepts_one() -> None:
    task = TabularRegression(
        tables.Rows(spec(shape=(1, 3)), FEATURES), [RegressionTarget("y")]
    )
    assert rows([[1, 2, 3]], task) == [[1, 2, 3]]
    with pytest.raises(
        ApiError, match=r"expected FP32 \[1, 3\], got JSON of shape \[2, 3\]"
    ):
        rows([[1, 2, 3], [4, 5, 6]], task)


@pytest.mark.parametrize(
    "shape",
    [
        (2,),
        (2, 1),
        (1, 2),
    ],
)
def test_predictions(shape: tuple[int, ...]) -> None:
    """Each row has an entry with its number and, if known, the target's name and unit."""
    outputs = {"out": np.array([1.5, -2], np.float32).reshape(shape)}
    assert ROWS.answer([outputs], OPTIONS, 2) == [
        {"row": 0, "name": "progression", "value": 1.5, "unit": "points"},
        {"row": 1, "name": "progression", "value": -2.0, "unit": "points"},
    ]
    unnamed = TabularRegression(tables.Rows(spec(), ()), [RegressionTarget("y")])
    assert unnamed.answer([{"out": np.float32([1.5])}], OPTIONS, 1) == [
        {"name": "y", "value": 1.5}
    ]


# Plain tensors

ONE = Tensors([spec(shape=(2, 2))])
TWO = Tensors([TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT32", (-1,))])


@pytest.mark.parametrize(
    "body",
    [
        b"[1, 2, 3, 4]",
        b"[[1, 2], [3, 4]]",
        b'{"x": [[1, 2], [3, 4]]}',
        npy([[1.0, 2], [3, 4]]),
    ],
    ids=["flat", "nested", "by name", ".npy"],
)
def test_a_single_tensor(body: bytes) -> None:
    """It can be sent bare, by name, or as a file."""
    prepared = ONE.prepare(memoryview(body)).runs[0]
    assert {name: array.tolist() for name, array in prepared.items()} == {
        "x": [[1, 2], [3, 4]]
    }


def test_tensors_by_name() -> None:
    """Each has its own datatype, and a number is a list of one."""
    prepared = TWO.prepare(memoryview(b'{"b": 7, "a": [0.5, 1]}')).runs[0]
    assert {name: array.tolist() for name, array in prepared.items()} == {
        "a": [0.5, 1],
        "b": [7],
    }
    assert [array.dtype for array in prepared.values()] == [np.float32, np.int32]


BAD_TENSORS: dict[str, tuple[Tensors, bytes, ErrorCode, str]] = {
    "empty": (ONE, b"", INPUT, "takes numbers"),
    "a picture": (ONE, b"\x89PNG\r\n\x1a\n", INPUT, "give it a task"),
    "three values": (
        ONE,
        b"[1, 2, 3]",
        INPUT,
        r"expected FP32 \[2, 2\], got JSON of shape \[3\]",
    ),
    "nested otherwise": (ONE, b"[[[1], [2, [3]]], 4]", TENSOR, "not rectangular"),
    "another shape": (ONE, b"[[1, 2, 3, 4]]", INPUT, r"got JSON of shape \[1, 4\]"),
    "broken JSON": (ONE, b"[1, 2, 3, 4]]", MALFORMED, "JSON"),
    "wrong type": (ONE, b'[1, 2, 3, "4"]', TENSOR, "takes numbers"),
    "unknown name": (
        ONE,
        b'{"y": [1, 2, 3, 4]}',
        INPUT,
        "unknown input 'y'; the model takes 'x'",
    ),
    "missing name": (TWO, b'{"a": [1, 2]}', INPUT, "input 'b' is missing"),
    "integer with a fraction": (
        TWO,
        b'{"a": [1, 2], "b": [1.5]}',
        TENSOR,
        "INT32 takes integers",
    ),
    "no name for two inputs": (
        TWO,
        b"[1, 2]",
        INPUT,
        "takes 2 inputs; send a JSON object with 'a', 'b'",
    ),
    ".npy for two inputs": (TWO, npy([1.0, 2.0]), INPUT, "takes 2 inputs"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_invalid_tensors_are_rejected(case: str) -> None:
    task, body, code, part = BAD_TENSORS[case]
    with pytest.raises(ApiError, match=part) as caught:
        task.prepare(memoryview(body))
    assert caught.value.code is code


def test_outputs_are_returned_with_name_type_and_shape() -> None:
    """Options for classes are ignored."""
    outputs = {
        "y": np.array([[0.5], [2]], np.float32),
        "t": np.array([b"a", b"\xc3\xa9"], object),
    }
    assert ONE.answer([outputs], AnswerOptions(top_k=1, threshold=9)) == [
        {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 2.0]},
        {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]},
    ]


def test_outputs_without_a_json_form() -> None:
    """JSON cannot carry half precision, and the error says so."""
    with pytest.raises(ApiError, match="FP16"):
        ONE.answer([{"y": np.zeros(1, np.float16)}], OPTIONS)


# .npy files


@pytest.mark.parametrize(
    "array",
    [
        np.float32(1.5),
        np.zeros((0, 3), np.int8),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.array([[True, False]]),
    ],
    ids=["scalar", "empty", "big-endian", "bool"],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files(array: Any, order: Any) -> None:
    """Any byte order and memory layout is read into a contiguous array."""
    read = arrays.read_npy(memoryview(npy(np.asarray(array, order=order))))
    assert (read == array).all()
    assert read.shape == np.shape(array)
    assert read.flags.c_contiguous


class Trap:
    """An object that records its unpickling."""

    opened = False

    def __reduce__(self) -> Any:
        return setattr, (Trap, "opened", True)


HUGE = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,)}"
BAD_NPY = {
    "magic only": arrays.NPY_MAGIC,
    "no header": arrays.NPY_MAGIC + b"\x01\x00",
    "header cut": npy([1.0])[:40],
    "content cut": npy([1.0, 2.0])[:-1],
    "unknown version": arrays.NPY_MAGIC + b"\x09\x00" + bytes(200),
    "zeros": arrays.NPY_MAGIC + bytes(200),
    "garbage": npy_header("\xff\xfe\x00 nonsense"),
    "an expression": npy_header("__import__('os').getpid()"),
    "an unhashable key": npy_header("{[]: 1}"),
    "open bracket": npy_header("("),
    "open quote": npy_header("'"),
    "thousands of signs": npy_header("-" * 9000 + "1"),
    "warnings of Python's parser": npy_header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1if 1 else 1,)}"
    ),
    "a tensor of 4 GB": npy_header(HUGE % ("<f4", 10**9), bytes(12)),
    "more than one": npy([1.0]) + npy([2.0]),
    "a key twice": npy_header(
        "{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", bytes(4)
    ),
    "a large header": npy_header((HUGE % ("<f4", 1)).ljust(2000), bytes(4)),
    "other words": npy_header(
        "{'descr': False, 'fortran_order': '<f4', 'shape': True}", bytes(4)
    ),
    "thousands of brackets": npy_header("(" * 9000),
    "empty descr": npy_header("{'descr': (), 'fortran_order': False, 'shape': (1,)}"),
    "unknown descr": npy_header(
        "{'descr': 'what', 'fortran_order': False, 'shape': (1,)}"
    ),
    "shape of text": npy_header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': ('1',)}"
    ),
    "negative shape": npy_header(HUGE % ("<f4", "-1")),
    "shape of 10^18": npy_header(HUGE % ("<f8", 10**18)),
    "shape of 2^62 x 4": npy_header(HUGE % ("<f4", "4611686018427387904, 4")),
    "shape of 10^30": npy_header(HUGE % ("<f4", 10**30)),
    "empty, but huge": npy_header(HUGE % ("<f4", "0, 9999999999, 99999999999")),
    "10^12 elements of no size": npy_header(HUGE % ("|S0", 10**12)),
    "10^12 texts of no size": npy_header(HUGE % ("<U0", 10**12)),
    "complex numbers": npy(np.zeros(2, np.complex64)),
    "dates": npy(np.zeros(2, "datetime64[s]")),
    "records": npy(np.zeros(2, [("a", "<f4")])),
    "pickled": npy(np.array([Trap()], object), allow_pickle=True),
}


@pytest.mark.parametrize("case", BAD_NPY)
def test_invalid_npy_files_are_rejected(case: str) -> None:
    """No memory is allocated and nothing unpickled for damaged, hostile or pickled
    files.
    """
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match=r"\.npy file cannot be read: .") as caught:
            arrays.read_npy(memoryview(BAD_NPY[case]))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert caught.value.code is INPUT
    assert not Trap.opened


@SETTINGS
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_damaged_npy_files_do_no_harm(data: st.DataObject) -> None:
    """A changed file is read or rejected, without a crash."""
    body = bytearray(npy(np.arange(4, dtype=np.float32)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(6, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        outcome: Any = arrays.read_npy(memoryview(bytes(body)))
    except ApiError as error:
        outcome = error.code
    assert isinstance(outcome, np.ndarray) or outcome is INPUT


# Fitting


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"[", True),
        (b" {", True),
        (b"-1", True),
        (b"\n7", True),
        (b"\xef\xbb\xbf[", False),
        (b'"', False),
        (b"", False),
    ],
)
def test_looks_like_json(body: bytes, answer: bool) -> None:
    """Arrays, objects and numbers, optionally after spaces."""
    assert arrays.looks_like_json(memoryview(body)) is answer


QUANTISED = {"datatype": "INT8", "quantization": Quantization(0.5, 0)}
FITS: list[tuple[TensorSpec, Array, tuple[int, ...], str]] = [
    (spec(), np.zeros(3, np.float32), (1, 3), "float32"),
    (spec(), np.zeros((2, 3), np.float64), (2, 3), "float32"),
    (spec(), np.zeros((0, 3), np.float32), (0, 3), "float32"),
    (spec(), np.zeros(6, np.float32), (2, 3), "float32"),
    (spec(), np.array([1, 2, 3]), (1, 3), "float32"),
    (spec(shape=(-1, -1)), np.zeros((2, 4), np.float32), (2, 4), "float32"),
    (spec(shape=(-1, -1)), np.zeros(4, np.float32), (1, 4), "float32"),
    (spec(open=True), np.zeros((2, 4)), (2, 4), "float32"),
    (spec(open=True), np.zeros((2, 4), np.int64), (2, 4), "int64"),
    (spec(shape=()), np.zeros((1, 1), np.float32), (), "float32"),
    (spec(shape=(1, 2, 2)), np.zeros((2, 2), np.float32), (1, 2, 2), "float32"),
    (spec("INT32"), np.array([1, 2, 2**31 - 1]), (1, 3), "int32"),
    (spec("FP64"), np.array([1, 2, 3], np.int32), (1, 3), "float64"),
    (spec("BF16"), np.array([1, 2, 3], np.uint16), (1, 3), "uint16"),
    (spec("FP32"), np.array([np.inf, -np.inf, np.nan]), (1, 3), "float32"),
    (spec("BOOL"), np.array([True, False, True]), (1, 3), "bool"),
    (spec("BYTES"), np.array(["a", "é", ""]), (1, 3), "object"),
    (spec(**QUANTISED), np.array([0.5, 1, 1000]), (1, 3), "float32"),
    (spec(**QUANTISED), np.array([1, 2, 3], np.int8), (1, 3), "int8"),
]


@pytest.mark.parametrize(("wanted", "array", "shape", "dtype"), FITS)
def test_arrays_that_fit(
    wanted: TensorSpec, array: Array, shape: tuple[int, ...], dtype: str
) -> None:
    """Values are kept, the type is converted, and one variable dimension takes its size
    from the data.
    """
    fitted = arrays.fit_array(array, wanted)
    assert (fitted.shape, fitted.dtype) == (shape, dtype)
    np.testing.assert_array_equal(fitted.reshape(-1), array.reshape(-1).astype(dtype))


MISFITS: list[tuple[TensorSpec, Array, str]] = [
    (spec(), np.zeros(4, np.float32), r"expected FP32 \[-1, 3\], got FP32 \[4\]"),
    (spec(), np.zeros(0, np.float32), r"got FP32 \[0\]"),
    (spec(), np.zeros((3, 2), np.float32), r"got FP32 \[3, 2\]"),
    (spec(), np.zeros((1, 2, 3), np.float32), r"got FP32 \[1, 2, 3\]"),
    (
        spec(),
        np.zeros((1, 3), np.uint8),
        r"got UINT8 \[1, 3\]; send a picture as its file",
    ),
    (spec(), np.zeros((1, 3), np.int16), r"got INT16 \[1, 3\]"),
    (spec(), np.zeros((1, 3), bool), r"got BOOL \[1, 3\]"),
    (spec("BF16"), np.zeros((1, 3), np.uint8), "got UINT8"),
    (spec(shape=(-1, 3, -1)), np.zeros(6, np.float32), r"got FP32 \[6\]"),
    (
        spec(shape=(2, 3)),
        np.zeros(3, np.float32),
        r"expected FP32 \[2, 3\], got FP32 \[3\]",
    ),
    (spec("INT32"), np.zeros(3, np.float32), "expected INT32 .*, got FP32"),
    (spec("UINT8"), np.array([1, 2, 3]), "expected UINT8 .*, got INT64"),
    (spec("INT8"), np.array([1, 2, 300]), "do not fit INT8"),
    (spec("INT32"), np.array([1, 2, 2**31]), "do not fit INT32"),
    (spec("INT64"), np.array([1, 2, 2**63], np.uint64), "do not fit INT64"),
    (spec("FP32"), np.array([1, 2, 1e300]), "do not fit FP32"),
    (spec("FP32"), np.array([np.inf, 1e300, 1]), "do not fit FP32"),
    (spec("FP16"), np.array([1, 2, 1e6], np.float32), "do not fit FP16"),
    (spec("BOOL"), np.array([1, 0, 2], np.uint8), "expected BOOL"),
    (spec("BF16"), np.array([1, 2, 3], np.float32), "expected BF16"),
    (spec(), np.array(["1", "2", "3"]), "expected FP32 .*, got BYTES"),
    (
        spec(**QUANTISED),
        np.array([1, 2, 3]),
        r"expected INT8 or FP32 \[-1, 3\], got INT64",
    ),
]


@pytest.mark.parametrize(("wanted", "array", "part"), MISFITS)
def test_incompatible_arrays_are_rejected(
    wanted: TensorSpec, array: Array, part: str
) -> None:
    """No value is truncated, wrapped or turned into infinity."""
    with pytest.raises(ApiError, match=part) as caught:
        arrays.fit_array(array, wanted)
    assert caught.value.code is INPUT


@pytest.mark.parametrize(
    ("wanted", "values", "shape"),
    [
        (spec(), [1, 2, 3], (1, 3)),
        (spec(), [[1, 2, 3], [4, 5, 6]], (2, 3)),
        (spec(shape=()), 5, ()),
        (spec(shape=()), [[5]], ()),
        (spec(shape=(1,)), 5, (1,)),
        (spec(shape=(-1, -1)), [1, 2], (1, 2)),
        (spec(shape=(2, -1)), [1, 2, 3, 4], (2, 2)),
        (spec(shape=(-1, 2, 2)), [[1, 2], [3, 4]], (1, 2, 2)),
        (spec(shape=(1, 2, 2, 1)), [[1, 2], [3, 4]], (1, 2, 2, 1)),
        (spec(open=True), [[1, 2], [3, 4]], (2, 2)),
        (spec("BYTES", (-1,)), ["a", "b"], (2,)),
        (spec("BYTES", (1,)), "a", (1,)),
        (spec("UINT64", (1,)), 2**64 - 1, (1,)),
        (spec(**QUANTISED), [0.5, 1000, -1e30], (1, 3)),
    ],
)
def test_values_that_fit(
    wanted: TensorSpec, values: Any, shape: tuple[int, ...]
) -> None:
    """Nested lists keep their shape.

    A quantised input takes real numbers.
    """
    fitted = arrays.fit_values(values, wanted)
    assert fitted.shape == shape
    assert fitted.dtype == (np.float32 if wanted.quantization else fitted.dtype)


@pytest.mark.parametrize(
    ("wanted", "values", "code"),
    [
        (spec(), [], INPUT),
        (spec(), [[]], INPUT),
        (spec(), [[1], [2], [3]], INPUT),
        (spec(shape=(-1, 9)), [[0] * 6] * 3, INPUT),
        (spec(shape=(-1, -1, 2)), [1, 2], INPUT),
        (spec(), [[1], [2], [3], [[4, 5], 6]], TENSOR),
        (spec(), [1, 2, 3, 4], INPUT),
        (spec(), {"a": 1}, INPUT),
        (spec(shape=(1,)), {"a": 1}, TENSOR),
        (spec(shape=(1,)), "1", TENSOR),
        (spec("INT8", (1,)), 128, TENSOR),
        (spec("FP16", (1,)), 1, TENSOR),
        (spec("BYTES", (1,)), 1, TENSOR),
        (spec(shape=(1,)), True, TENSOR),
    ],
)
def test_incompatible_values_are_rejected(
    wanted: TensorSpec, values: Any, code: ErrorCode
) -> None:
    """A wrong count is an input error, a wrong element a tensor error."""
    with pytest.raises(ApiError) as caught:
        arrays.fit_values(values, wanted)
    assert caught.value.code is code


SIZES = st.integers(1, 4)
SHAPES = st.lists(SIZES, max_size=4).map(tuple)


@SETTINGS
@given(
    sent=SHAPES,
    wanted=st.lists(st.one_of(SIZES, st.just(-1)), max_size=4).map(tuple),
    as_json=st.booleans(),
)
def test_no_array_is_reinterpreted(
    sent: tuple[int, ...], wanted: tuple[int, ...], as_json: bool
) -> None:
    """An accepted array reaches the model with each element in its position."""
    array = np.arange(math.prod(sent), dtype=np.float32).reshape(sent)
    body = json.dumps(array.tolist()).encode() if as_json else npy(array)
    task = Tensors([spec(shape=wanted)])
    expected = got_shape(sent, wanted)
    if expected is None:
        with pytest.raises(
            ApiError, match=re.escape(f"expected FP32 {list(wanted)}, got")
        ):
            task.prepare(memoryview(body))
        return
    got = task.prepare(memoryview(body)).runs[0]["x"]
    assert got.shape == expected
    assert got.reshape(-1).tolist() == array.reshape(-1).tolist()


def got_shape(sent: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Restate the rule: the only accepted shape that describes the same array, or None."""
    accepted = _accepted_shapes(sent, wanted)
    assert len(accepted) < 2
    return next(iter(accepted), None)


def _accepted_shapes(
    sent: tuple[int, ...], wanted: tuple[int, ...]
) -> set[tuple[int, ...]]:
    takes_one_row = wanted[:1] in ((1,), (-1,))
    if len(sent) < 2 and wanted.count(-1) > 1:
        if not takes_one_row:
            return set()
        # only a batch of one is left
        sizes = [[1, *sent][-2:] if dim < 0 else [dim] for dim in wanted]
        return {(1, *sent)} & set(itertools.product(*sizes))
    if len(sent) < 2:
        sizes = [[*range(1, 257)] if dim < 0 else [dim] for dim in wanted]
        count = math.prod(sent)
        shapes = itertools.product(*sizes)
        return {shape for shape in shapes if math.prod(shape) == count}
    if -1 in wanted:
        same = [sent, (1, *sent)] if takes_one_row else [sent]
        return {shape for shape in same if _fits(shape, wanted)}
    if [dim for dim in sent if dim > 1] == [dim for dim in wanted if dim > 1]:
        return {wanted}
    return set()


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    return all(dim in (-1, size) for dim, size in zip(wanted, shape, strict=True))


@SETTINGS
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=60).map(lambda rest: arrays.NPY_MAGIC + rest),
    )
)
@pytest.mark.filterwarnings("ignore")
def test_random_bodies_do_no_harm(body: bytes) -> None:
    """Random bytes raise only ApiError in any task for numbers."""
    codes = set()
    for task in (ROWS, ONE, TWO):
        try:
            task.prepare(memoryview(body))
        except ApiError as error:
            codes.add(error.code)
    assert codes <= {INPUT, TENSOR, MALFORMED}


# Tabular classification and recommendation


def test_rows_to_classes(tmp_path: Path) -> None:
    """Each row gets its classes.

    Entries of a single row have no number.
    """
    manifest = {
        "task": "tabular-classification",
        "labels": "l.txt",
        "features": {"names": ["a", "b"]},
    }
    files = {"l.txt": "red\ngreen\n"}
    outputs = {"label": (-1,), "probabilities": (-1, 2)}
    task = task_of(
        tmp_path, [TensorSpec("x", "FP32", (-1, 2))], outputs, manifest, files
    )
    two = task.prepare(memoryview(b"b,a\n2,1\n4,3"))
    assert two.runs[0]["x"].tolist() == [[1, 2], [3, 4]]
    scores = {"probabilities": np.array([[0.2, 0.8], [0.7, 0.3]], np.float32)}
    found = task.answer([scores], AnswerOptions(top_k=1), two.context)
    assert [(e["row"], e["label"]) for e in found] == [(0, "green"), (1, "red")]
    one = task.prepare(memoryview(b'{"a": 1, "b": 2}'))
    best = task.answer(
        [{"probabilities": scores["probabilities"][:1]}],
        AnswerOptions(threshold=0.5),
        one.context,
    )
    assert best == [{"label": "green", "index": 1, "score": pytest.approx(0.8)}]


def test_classes_named_by_the_models_output(tmp_path: Path) -> None:
    """scikit-learn's ONNX classifiers return probabilities as maps by class."""
    inputs = [TensorSpec("x", "FP32", (-1, 2))]
    outputs = {
        "output_label": (-1,),
        "output_probability.keys": (2,),
        "output_probability.values": (-1, 2),
    }
    task = task_of(tmp_path, inputs, outputs, {"task": "tabular-classification"}, {})
    run = {"output_probability.values": np.array([[0.2, 0.8]], np.float32)}
    for keys, names in (
        (np.array([b"no", "grün".encode()], object), ["grün", "no"]),
        (np.array([4, 7]), ["7", "4"]),
    ):
        found = task.answer(
            [run | {"output_probability.keys": keys}], AnswerOptions(), 1
        )
        assert [entry["label"] for entry in found] == names


def test_labels_of_the_manifest_override_those_of_the_output(tmp_path: Path) -> None:
    inputs = [TensorSpec("x", "FP32", (-1, 2))]
    manifest = {"task": "tabular-classification", "labels": "l.txt"}
    task = task_of(
        tmp_path,
        inputs,
        {"p.keys": (2,), "p.values": (-1, 2)},
        manifest,
        {"l.txt": "red\ngreen\n"},
    )
    run = {"p.keys": np.array([0, 1]), "p.values": np.array([[0.2, 0.8]], np.float32)}
    assert [entry["label"] for entry in task.answer([run], AnswerOptions(), 1)] == [
        "green",
        "red",
    ]


def test_ambiguous_outputs_are_rejected(tmp_path: Path) -> None:
    inputs = [TensorSpec("x", "FP32", (-1, 2))]
    with pytest.raises(
        ModelLoadError,
        match=r"3 outputs \(label, cat, dog\); name one as scores, in \[\[outputs\]\]",
    ):
        task_of(
            tmp_path,
            inputs,
            dict.fromkeys(("label", "cat", "dog"), (-1,)),
            {"task": "tabular-classification"},
            {},
        )


TITLES = {"l.txt": "\nAlien\nBrazil\nCube\nDune\nEd Wood\n"}


def recommender(
    folder: Path, ids: Any = None, outputs: Any = None, user: bool = False, **items: Any
) -> Any:
    """Return a model of five items; 0 is padding."""
    specs = [ids or TensorSpec("history", "INT32", (1, 4))]
    specs += [TensorSpec("user_id", "INT64", (1,))] if user else []
    manifest = {
        "task": "recommendation",
        "labels": "l.txt",
        "items": {"padding": 0, **items},
    }
    return task_of(folder, specs, outputs or {"scores": (1, 6)}, manifest, TITLES)


def test_recommend_items(tmp_path: Path) -> None:
    """By number or title.

    The last ones are used; seen items and padding are left out of the answer.
    """
    task = recommender(tmp_path)
    prepared = task.prepare(memoryview(b'[1, "brazil"]'))
    assert prepared.runs[0]["history"].tolist() == [[1, 2, 0, 0]]
    assert prepared.runs[0]["history"].dtype == np.int32
    scores = {"scores": np.array([[0.9, 0.8, 0.7, 0.1, 0.6, 0.2]], np.float32)}
    found = task.answer([scores], AnswerOptions(top_k=2), prepared.context)
    assert [(e["label"], e["index"]) for e in found] == [("Dune", 4), ("Ed Wood", 5)]
    assert (
        len(task.answer([scores], AnswerOptions(threshold=0.5), prepared.context)) == 1
    )
    left = recommender(tmp_path, pad="left", exclude_seen=False)
    assert left.prepare(memoryview(b"[1,2,3,4,5]")).runs[0]["history"].tolist() == [
        [2, 3, 4, 5]
    ]
    assert left.prepare(memoryview(b"[3]")).runs[0]["history"].tolist() == [
        [0, 0, 0, 3]
    ]
    assert [
        e["index"]
        for e in left.answer([scores], AnswerOptions(top_k=1), frozenset({1}))
    ] == [1]


def test_items_ranked_by_the_model(tmp_path: Path) -> None:
    """Two outputs, one of which contains numbers of items."""
    facts_outputs = {"ids": (1, 3), "scores": (1, 3)}
    task = recommender(
        tmp_path,
        TensorSpec("history", "INT32", (-1,)),
        facts_outputs,
        user=True,
        output="scores",
        ids_output="ids",
    )
    prepared = task.prepare(memoryview(b'{"items": [1, 5], "user": 7}'))
    assert {name: a.tolist() for name, a in prepared.runs[0].items()} == {
        "history": [1, 5],
        "user_id": [7],
    }
    outputs = {
        "ids": np.array([[3, 5, 4]]),
        "scores": np.array([[0.5, 0.9, 0.7]], np.float32),
    }
    assert [
        e["label"] for e in task.answer([outputs], AnswerOptions(), prepared.context)
    ] == ["Dune", "Cube"]


BAD_ITEMS = {
    "text": (b"Alien", "JSON list of items"),
    "none": (b"[]", "1 to 10000"),
    "an unknown title": (b'["Zardoz"]', "unknown item 'Zardoz'"),
    "too high": (b"[6]", "from 0 to 5"),
    "negative": (b"[-1]", "from 0 to 5"),
    "a fraction": (b"[1.5]", "from 0 to 5"),
    "true": (b"[true]", "from 0 to 5"),
    "another key": (b'{"items": [1], "film": 2}', "unknown key 'film'"),
    "a user for a model without": (b'{"items": [1], "user": 2}', "unknown key 'user'"),
    "items in an object": (b'{"items": {"a": 1}}', "must be a list"),
}


@pytest.mark.parametrize("case", BAD_ITEMS)
def test_invalid_items_are_rejected(tmp_path: Path, case: str) -> None:
    body, text = BAD_ITEMS[case]
    with pytest.raises(ApiError, match=text) as caught:
        recommender(tmp_path).prepare(memoryview(body))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    with pytest.raises(ApiError, match="needs the user's number"):
        recommender(tmp_path, user=True).prepare(memoryview(b"[1]"))
