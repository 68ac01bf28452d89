"""Recognise SavedModels that rescale pixels from 0..255 themselves."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.protobuf import field

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.tensorflow.savedmodel_rescaling import read_graph_rescaling

FLOAT, BYTE = 1, 4
CALL = "StatefulPartitionedCall"


def message(*fields: tuple[int, bytes | str | int]) -> bytes:
    """Encode a message of numbers, texts and messages."""
    return b"".join(field(number, value) for number, value in fields)


def node(name: str, op: str, *inputs: str, **values: bytes) -> bytes:
    """Encode a node; values are attributes."""
    fields: list[tuple[int, bytes | str | int]] = [(1, name), (2, op)]
    fields += [(3, text) for text in inputs]
    for key, value in values.items():
        fields.append((5, message((1, key), (2, value))))
    return message(*fields)


def const(name: str, *numbers: float, packed: bool = False) -> bytes:
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    tensor = message((1, FLOAT), (5 if packed else 4, raw))
    return node(name, "Const", value=message((8, tensor)))


def call(name: str, function: str, *inputs: str) -> bytes:
    return node(name, CALL, *inputs, f=message((10, message((1, function)))))


def function(name: str, arguments: Sequence[str], *nodes: bytes) -> bytes:
    inputs = [(2, message((1, argument))) for argument in arguments]
    signature = message((1, name), *inputs)
    return message((1, signature), *[(3, item) for item in nodes])


def savedmodel(
    folder: Path,
    nodes: Sequence[bytes],
    functions: Sequence[bytes] = (),
    kind: int = FLOAT,
    axes: int = 4,
) -> Path:
    """Write a SavedModel whose signature takes the tensor ``x``."""
    shape = message(*[(2, message((1, 8)))] * axes)
    info = message((1, "x:0"), (2, kind), (3, shape))
    inputs = message((1, message((1, "picture"), (2, info))))
    signature = message((1, "serving_default"), (2, inputs))
    library = message(*[(1, item) for item in functions])
    items = [node("x", "Placeholder"), *nodes]
    graph = message(*[(1, item) for item in items], (2, library))
    meta_graph = message((2, graph), (5, signature))
    content = message((1, 1), (2, meta_graph))
    (folder / "saved_model.pb").write_bytes(content)
    return folder


BYTES = const("c", 1 / 255)
MEANS = const("c", 123.7, 116.3, 103.5)

PLAIN = {
    "mul": ([BYTES, node("y", "Mul", "x", "c")], True),
    "swapped": ([BYTES, node("y", "Mul", "c", "x:0")], True),
    "div": ([const("c", 255, packed=True), node("y", "RealDiv", "x", "c")], True),
    "sub": ([MEANS, node("y", "Sub", "x", "c")], True),
    "add": ([const("c", -103.9, -116.8), node("y", "AddV2", "x", "c")], True),
    "control": ([BYTES, node("y", "Mul", "x", "c"), node("n", "NoOp", "^x")], True),
    "cast": (
        [
            BYTES,
            node("k", "Cast", "c"),
            node("i", "Identity", "x"),
            node("y", "Mul", "i", "k"),
        ],
        True,
    ),
    "quotient": ([const("c", 255), node("y", "RealDiv", "c", "x")], False),
    "half": ([const("c", 0.5), node("y", "Sub", "x", "c")], False),
    "zero": ([const("c", 0), node("y", "Mul", "x", "c")], False),
    "large": ([const("c", *[255] * 20), node("y", "RealDiv", "x", "c")], False),
    "later": ([BYTES, node("r", "Relu", "x"), node("y", "Mul", "r", "c")], False),
    "branches": ([BYTES, node("y", "Mul", "x", "c"), node("z", "Relu", "x")], False),
    "unknown": ([node("y", "Mul", "x", "nothing")], False),
    "unused": ([BYTES], False),
}


@pytest.mark.parametrize("name", PLAIN)
def test_main_graphs(tmp_path: Path, name: str) -> None:
    nodes, rescales = PLAIN[name]
    found = read_graph_rescaling(savedmodel(tmp_path, nodes))
    assert (found is not None) is rescales
    if found is not None:
        assert found.inputs[0].normalization == ((0.0,), (1.0,))


def test_functions(tmp_path: Path) -> None:
    """Keras calls functions in functions, and passes captured constants."""
    inner = function("inner", ["p", "q"], node("y", "Sub", "p", "q"))
    outer = function("outer", ["a", "b"], call("i", "inner", "a", "b"))
    nodes = [MEANS, call("o", "outer", "x", "c")]
    assert read_graph_rescaling(savedmodel(tmp_path, nodes, [outer, inner]))
    assert read_graph_rescaling(savedmodel(tmp_path, nodes, [outer])) is None


def test_a_function_that_calls_itself_ends(tmp_path: Path) -> None:
    endless = function("endless", ["a"], call("i", "endless", "a"))
    nodes = [call("o", "endless", "x")]
    assert read_graph_rescaling(savedmodel(tmp_path, nodes, [endless])) is None


@pytest.mark.parametrize(("kind", "axes"), [(BYTE, 4), (FLOAT, 2)])
def test_other_inputs(tmp_path: Path, kind: int, axes: int) -> None:
    nodes, _ = PLAIN["mul"]
    folder = savedmodel(tmp_path, nodes, kind=kind, axes=axes)
    assert read_graph_rescaling(folder) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x12\x7f")
    with pytest.raises(DamagedFileError):
        read_graph_rescaling(tmp_path)
