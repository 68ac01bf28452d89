"""Recognise ONNX graphs that rescale pixels from 0..255 themselves."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketserve
from pocketserve.runtimes.onnx.description import read_onnx_metadata

pytest.importorskip("onnxruntime", reason="onnx")
onnx = pytest.importorskip("onnx")
image = pytest.importorskip("PIL.Image")
node = onnx.helper.make_node
FLOAT, BYTE = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8

CONSTANTS = {
    "byte": np.float32(255),
    "inverse": np.float32(1 / 255),
    "middle": np.array([[[127.5]]], np.float32),
    "signed": np.float64(1 / 127.5),
    "mean": np.array([[[[123.7]], [[116.3]], [[103.5]]]], np.float32),
    "negative": np.array([-103.9, -116.8, -123.7], np.float32),
    "half": np.float16(0.5),
    "whole": np.array([255], np.int64),
    "wide": np.full((3, 8, 8), 255, np.float32),
    "zero": np.float32(0),
    "ones": np.ones(3, np.float32),
    "means": np.array([123.7, 116.3, 103.5], np.float32),
    "variances": np.array([3409, 3260, 3292], np.float32),
    "reversed": np.array([2, 1, 0]),
    "condition": np.array(True),
}


def constant(**value: Any) -> Any:
    return node("Constant", [], ["c"], **value)


def first(kind: str, *inputs: str, **options: Any) -> Any:
    return node(kind, inputs, ["y"], **options)


def written(
    path: Path, nodes: Sequence[Any], shape: Sequence[Any], kind: int = FLOAT
) -> Path:
    """Write a model from x to y with the constants that its nodes use."""
    names = {name for item in nodes for name in item.input}
    constants = []
    for name in sorted(names & CONSTANTS.keys()):
        constants.append(
            onnx.numpy_helper.from_array(np.asarray(CONSTANTS[name]), name)
        )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", kind, shape)], [value("y", FLOAT, None)], constants
    )
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def body() -> Any:
    """Return a branch that uses the picture of the graph around it."""
    result = onnx.helper.make_tensor_value_info("z", FLOAT, None)
    return onnx.helper.make_graph([node("Relu", ["x"], ["z"])], "b", [], [result])


RESCALING = {
    "div": [first("Div", "x", "byte")],
    "mul": [first("Mul", "inverse", "x")],
    "sub": [first("Sub", "x", "middle")],
    "add": [first("Add", "x", "negative")],
    "mean": [node("Sub", ["x", "mean"], ["s"]), first("Div", "s", "byte")],
    "transposed": [
        node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        first("Mul", "t", "inverse"),
    ],
    "reversed": [
        node("Gather", ["x", "reversed"], ["r"], axis=3),
        first("Add", "r", "negative"),
    ],
    "doubles": [node("Cast", ["x"], ["d"], to=11), first("Mul", "d", "signed")],
    "node": [constant(value_float=255.0), first("Div", "x", "c")],
    "list": [constant(value_floats=[255.0, 255.0]), first("Div", "x", "c")],
    "integer": [node("Cast", ["whole"], ["w"], to=FLOAT), first("Div", "x", "w")],
    "shape": [node("Shape", ["x"], ["s"]), first("Div", "x", "byte")],
    "statistics": [
        first("BatchNormalization", "x", "ones", "ones", "means", "variances")
    ],
}

OTHERS = {
    "half": [first("Sub", "x", "half")],
    "larger": [first("Mul", "x", "byte")],
    "inverted": [first("Sub", "byte", "x")],
    "quotient": [first("Div", "byte", "x")],
    "zero": [first("Mul", "x", "zero")],
    "shifted": [first("Add", "x", "byte")],
    "large": [first("Div", "x", "wide")],
    "later": [node("Relu", ["x"], ["r"]), first("Div", "r", "byte")],
    "branches": [node("Div", ["x", "byte"], ["s"]), first("Add", "s", "x")],
    "twice": [first("Mul", "x", "x")],
    "computed": [node("Relu", ["byte"], ["r"]), first("Div", "x", "r")],
    "unit": [first("BatchNormalization", "x", "ones", "ones", "zero", "ones")],
    "unknown variances": [
        node("Relu", ["variances"], ["v"]),
        first("BatchNormalization", "x", "ones", "ones", "means", "v"),
    ],
    "bodies": [
        node("Div", ["x", "byte"], ["s"]),
        first("If", "condition", then_branch=body(), else_branch=body()),
    ],
}


@pytest.mark.parametrize("name", RESCALING)
def test_rescaling_graphs_get_pixels(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m.onnx", RESCALING[name], ["n", 8, 8, 3])
    found = read_onnx_metadata(path)
    assert found is not None
    assert found.inputs[0].normalization == ((0.0,), (1.0,))


@pytest.mark.parametrize("name", OTHERS)
def test_other_graphs_are_not_described(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m.onnx", OTHERS[name], ["n", 8, 8, 3])
    assert read_onnx_metadata(path) is None


@pytest.mark.parametrize(("shape", "kind"), [([1, 4], FLOAT), ([1, 8, 8, 3], BYTE)])
def test_other_inputs_are_not_pictures_of_floats(
    tmp_path: Path, shape: list[int], kind: int
) -> None:
    path = written(tmp_path / "m.onnx", RESCALING["div"], shape, kind)
    assert read_onnx_metadata(path) is None


def mean_model(folder: Path) -> None:
    """Write a classifier by the mean of pixels that the graph divides by 255."""
    nodes = [
        node("Div", ["x", "byte"], ["s"]),
        node("ReduceMean", ["s"], ["m"], axes=[1, 2, 3], keepdims=0),
        node("Unsqueeze", ["m", "axis"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    constants = [
        onnx.numpy_helper.from_array(CONSTANTS["byte"] * np.float32(1), "byte"),
        onnx.numpy_helper.from_array(np.array([1]), "axis"),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", FLOAT, [1, 3, 8, 8])],
        [value("y", FLOAT, [1, 1])],
        constants,
    )
    sets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=sets, ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "labels.txt").write_text("dark\nlight\n")
    (folder / "model.toml").write_text('task = "image-classification"\n')


def answer_to_grey(folder: Path) -> dict[str, Any]:
    """Return the answer to a picture whose pixels are four fifths of 255."""
    picture = io.BytesIO()
    image.new("RGB", (8, 8), (204, 204, 204)).save(picture, "PNG")
    with pocketserve.load(folder) as opened:
        answer: dict[str, Any] = opened.predict(picture.getvalue())
    return answer


def test_a_picture_reaches_the_graph_unscaled(tmp_path: Path) -> None:
    mean_model(tmp_path)
    answer = answer_to_grey(tmp_path)
    best = answer["predictions"][0]
    assert (best["label"], best["score"]) == ("light", pytest.approx(0.8))
    assert "assumed" not in answer


def test_a_stated_range_overrules_the_operators(tmp_path: Path) -> None:
    mean_model(tmp_path)
    stated = {"image_processor_type": "ViTImageProcessor", "do_rescale": True}
    stated |= {
        "do_normalize": False,
        "do_resize": True,
        "size": {"height": 8, "width": 8},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    best = answer_to_grey(tmp_path)["predictions"][0]
    assert best["label"] == "dark"
