"""Recognise models that rescale pixels from 0..255 themselves."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flat_buffers import Flat
from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.tensorflow.keras_rescaling import read_rescaling
from pocketserve.runtimes.tflite.description import read_metadata

Layer = dict[str, Any]
CONV: Layer = {"class_name": "Conv2D", "config": {"filters": 3}}


def layer(name: str, **options: Any) -> Layer:
    return {"class_name": name, "config": options}


def model(*layers: Layer) -> Layer:
    return layer("Sequential", layers=[layer("InputLayer"), *layers])


def write_keras(path: Path, config: Any) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
    return path


def linked(item: Layer, name: str, *sources: str) -> Layer:
    """Return a layer of a functional model, as Keras 3 writes it."""
    nodes = []
    for source in sources:
        tensor = {"keras_history": [source, 0, 0], "shape": [None, 8]}
        nodes.append({"args": [{"class_name": "__keras_tensor__", "config": tensor}]})
    return {**item, "name": name, "inbound_nodes": nodes}


BYTES = layer("Rescaling", scale=1 / 255, offset=0.0)
SIGNED = layer("Rescaling", scale=[1 / 127.5], offset=-1)
IMAGENET = layer("Normalization", mean=[123.7, 116.3, 103.5], variance=[3409.0] * 3)
FROM_ONE = layer("Rescaling", scale=2, offset=-1)
ARRAY = {"class_name": "__numpy__", "config": {"value": [[[127.5]]], "dtype": "float"}}


def branching(nested: bool) -> list[Layer]:
    """Return the layers of a model that rescales its input in one branch only."""
    layers = [
        linked(layer("InputLayer"), "in"),
        linked(BYTES, "bytes", "in"),
        linked(CONV, "conv", "in"),
        linked(layer("Add"), "add", "bytes", "conv"),
    ]
    return [layer("Functional", layers=layers), BYTES] if nested else layers[1:]


TWO_INPUTS = layer("Functional", layers=[layer("InputLayer"), layer("InputLayer")])


@pytest.mark.parametrize(
    ("layers", "rescales"),
    [
        ([BYTES, CONV], True),
        ([SIGNED, CONV], True),
        ([IMAGENET, CONV], True),
        ([layer("Normalization", mean=ARRAY, variance=[16000]), CONV], True),
        ([layer("RandomFlip"), layer("Resizing"), BYTES], True),
        ([model(layer("RandomZoom"), BYTES), CONV], True),
        ([model(layer("RandomZoom")), SIGNED], True),
        ([CONV, BYTES], False),
        ([FROM_ONE, CONV], False),
        ([layer("Normalization", mean=[0.4], variance=[0.05]), CONV], False),
        ([layer("Normalization", mean=None, variance=None), CONV], False),
        ([layer("Normalization", mean=[9], variance=[9999], invert=True)], False),
        ([layer("InputLayer"), BYTES], False),
        ([layer("Rescaling", scale=0), CONV], False),
        ([layer("Rescaling", scale="x"), CONV], False),
        ([layer("Rescaling", scale={"config": 3}), CONV], False),
        ([], False),
    ],
)
def test_keras(tmp_path: Path, layers: list[Layer], rescales: bool) -> None:
    check_keras(tmp_path, layers, rescales)


@pytest.mark.parametrize(
    ("layers", "rescales"),
    [
        ([linked(BYTES, "a", "in"), linked(CONV, "b", "a")], True),
        (
            [
                {**BYTES, "name": "a", "inbound_nodes": [[["in", 0, 0, {}]]]},
                {**CONV, "name": "b", "inbound_nodes": [[["in", 0, 0, {}]]]},
            ],
            False,
        ),
        (branching(nested=False), False),
        (branching(nested=True), False),
        ([TWO_INPUTS, BYTES], False),
        ([layer("Rescaling", scale=1 / 65535), CONV], False),
    ],
)
def test_keras_models_that_branch(
    tmp_path: Path, layers: list[Layer], rescales: bool
) -> None:
    """Other branches get the pixels as they are."""
    check_keras(tmp_path, layers, rescales)


def check_keras(folder: Path, layers: list[Layer], rescales: bool) -> None:
    """Check whether a model with these layers takes pixels unchanged."""
    found = read_rescaling(write_keras(folder / "m.keras", model(*layers)))
    if not rescales:
        assert found is None
        return
    assert found is not None
    (tensor,) = found.inputs
    assert tensor.normalization == ((0.0,), (1.0,))


@pytest.mark.parametrize("config", [None, [], {"config": 3}, {"config": {"layers": 1}}])
def test_other_configurations_are_no_fault(tmp_path: Path, config: Any) -> None:
    assert read_rescaling(write_keras(tmp_path / "m.keras", config)) is None


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{")
    with pytest.raises(DamagedFileError, match="configuration"):
        read_rescaling(path)
    path.write_bytes(b"no archive")
    with pytest.raises(DamagedFileError, match="configuration"):
        read_rescaling(path)
    huge = layer("Rescaling", scale=10**400)
    with pytest.raises(DamagedFileError, match="configuration"):
        read_rescaling(write_keras(path, model(huge)))


def add_tables(flat: Flat, at: int, count: int, *fields: int) -> list[dict[int, int]]:
    """Add a vector of tables, and point to it."""
    vector = flat.vector(count)
    flat.point(at, vector)
    tables = []
    for number in range(count):
        table = flat.table(*fields)
        flat.point(vector + 4 + 4 * number, table[-1])
        tables.append(table)
    return tables


def add_integers(flat: Flat, at: int, values: list[int]) -> None:
    """Add a vector of int32, and point to it."""
    raw = struct.pack(f"<{len(values)}i", *values)
    flat.point(at, flat.blob(raw))
    start = len(flat.data) - len(raw) - 4
    flat.set(start, len(values))


def tflite(code: int, constant: bytes, swapped: bool = False) -> bytes:
    """Return a graph whose first operator takes the input and a constant."""
    flat = Flat(b"TFL3")
    root = flat.table(1, 2, 4)
    flat.point(0, root[-1])
    (entry,) = add_tables(flat, root[1], 1, 3)
    flat.set(entry[3], code)
    (graph,) = add_tables(flat, root[2], 1, 0, 1, 3)
    tensors = add_tables(flat, graph[0], 2, 2)
    flat.set(tensors[1][2], 1)
    add_integers(flat, graph[1], [0])
    (operator,) = add_tables(flat, graph[3], 1, 1)
    order = [0, 1]
    if swapped:
        order = [1, 0]
    add_integers(flat, operator[1], order)
    buffers = add_tables(flat, root[4], 2, 0)
    for buffer, content in zip(buffers, (b"", constant), strict=True):
        flat.point(buffer[0], flat.blob(content))
    return bytes(flat.data)


def reals(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


MUL, DIV, SUB, ADD = 18, 42, 41, 0


@pytest.mark.parametrize(
    ("code", "constant", "swapped", "rescales"),
    [
        (MUL, reals(1 / 255), False, True),
        (MUL, reals(1 / 127.5), True, True),
        (DIV, reals(255), False, True),
        (SUB, reals(123.7, 116.3, 103.5), False, True),
        (MUL, reals(2), False, False),
        (MUL, reals(0), False, False),
        (SUB, reals(0.5), False, False),
        (ADD, reals(-103.9, -116.8, -123.7), False, True),
        (ADD, reals(200), False, False),
        (DIV, reals(255), True, False),
        (MUL, b"", False, False),
        (MUL, bytes(400), False, False),
    ],
)
def test_tflite(
    tmp_path: Path, code: int, constant: bytes, swapped: bool, rescales: bool
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(tflite(code, constant, swapped))
    found = read_metadata(path)
    assert (found is not None) is rescales
