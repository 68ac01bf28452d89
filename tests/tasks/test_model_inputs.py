"""Tasks accept models with state, without a channel axis, or with one input per column."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.tabular.tables import Rows, rows_of
from pocketserve.tasks.vision.image_classification import ImageClassification
from pocketserve.tensors import TensorSpec
from pocketserve_client import Client, ServerError
from pocketserve_wire import ApiError
from text_models import model, task_of
from vision_models import picture

onnx = pytest.importorskip("onnx", reason="makes the models")
Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

PEOPLE = [
    TensorSpec("age", "INT64", (-1, 1)),
    TensorSpec("city", "BYTES", (-1, 1)),
    TensorSpec("pay", "FP32", (-1,)),
]


def save(path: Path, graph: Any) -> None:
    """Write a model of one graph."""
    path.parent.mkdir(parents=True)
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(made.SerializeToString())


def remembering(path: Path) -> None:
    """Create a classifier of grey pictures [1, 4, 6] with state.

    Scores are column means plus state.
    """
    helper = onnx.helper
    kind = onnx.TensorProto.FLOAT
    shapes = {
        "image": [1, 4, 6],
        "before": [1, 6],
        "scores": [1, 6],
        "after": [1, 6],
    }
    ends = {}
    for name, shape in shapes.items():
        ends[name] = helper.make_tensor_value_info(name, kind, shape)
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["means"], axes=[1], keepdims=0),
        helper.make_node("Add", ["means", "before"], ["scores"]),
        helper.make_node("Identity", ["scores"], ["after"]),
    ]
    # The state comes first.
    both = (
        [ends["before"], ends["image"]],
        [ends["scores"], ends["after"]],
    )
    save(path, helper.make_graph(nodes, "remembering", *both))
    path.with_name("model.toml").write_text(
        'task = "image-classification"\nlabels = "labels.txt"\n[state.feedback]\nbefore = "after"\n'
    )
    path.with_name("labels.txt").write_text(
        "".join(f"column {number}\n" for number in range(6))
    )


def by_column(path: Path) -> None:
    """Create a classifier of two columns whose scores are a and b."""
    helper = onnx.helper
    kind = onnx.TensorProto
    ends = [
        helper.make_tensor_value_info("a", kind.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("b", kind.INT64, ["n", 1]),
    ]
    nodes = [
        helper.make_node("Cast", ["b"], ["real"], to=kind.FLOAT),
        helper.make_node("Concat", ["a", "real"], ["scores"], axis=1),
    ]
    scores = [helper.make_tensor_value_info("scores", kind.FLOAT, ["n", 2])]
    save(path, helper.make_graph(nodes, "by_column", ends, scores))
    path.with_name("model.toml").write_text('task = "tabular-classification"\n')


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve both models."""
    folder = tmp_path_factory.mktemp("models")
    remembering(folder / "remembering" / "model.onnx")
    by_column(folder / "columns" / "model.onnx")
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["http", "socket"])
def client(request: pytest.FixtureRequest, served: Server) -> Iterator[Client]:
    """Return a client of each transport."""
    url = (
        served.url
        if request.param == "http"
        else f"socket://127.0.0.1:{served.socket_port}"
    )
    with Client(url, served.token) as connected:
        yield connected


def test_a_picture_without_channels_beside_a_state(client: Client) -> None:
    """File, array and numbers give the same answer.

    Each request starts from the initial state.
    """
    pixels = np.zeros((4, 6), np.uint8)
    pixels[:, 2] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    sent = [
        file.getvalue(),
        pixels,
        pixels[None],
        np.float32(pixels) / 255,
        np.float32(pixels)[None] / 255,
    ]
    for data in sent + sent:
        best = client.predict("remembering", data)["predictions"][0]
        assert best == {
            "label": "column 2",
            "index": 2,
            "score": 1.0,
        }
    with pytest.raises(
        ServerError, match=r"expected FP32 \[1, 4, 6\], got FP32 \[2, 4, 6\]"
    ):
        client.predict("remembering", np.zeros((2, 4, 6), np.float32))


def test_an_input_for_each_column(client: Client) -> None:
    """Values of rows, names, CSV and arrays are split among the inputs."""
    expected = [
        (0, 0.5, 0),
        (0, 0.0, 1),
        (1, 7.0, 1),
        (1, 0.25, 0),
    ]
    rows = [{"a": 0.5, "b": 0}, {"b": 7, "a": 0.25}]
    for data in (
        rows,
        [[0.5, 0], [0.25, 7]],
        [0.5, 0, 0.25, 7],
        "0.5,0\n0.25,7",
        "b,a\n0,0.5\n7,0.25",
    ):
        answer = client.predict("columns", data)["predictions"]
        assert sorted(
            (
                one["row"],
                one["score"],
                one["index"],
            )
            for one in answer
        ) == sorted(expected)
    (first, _) = client.predict("columns", np.array([[3, 4]], np.int64))["predictions"]
    assert (first["index"], first["score"]) == (1, 4.0)


def table(folder: Path, specs: list[TensorSpec], **features: Any) -> Rows:
    """Return the rows of a model with these inputs."""
    return rows_of(
        model(
            folder, specs, {"y": (-1, 2)}, {"features": features} if features else {}
        ),
        "t",
    )


@pytest.mark.parametrize(
    "body",
    [
        b'[{"age": 41, "city": "Bonn", "pay": 1.5}, {"pay": 2, "age": 7, "city": "5,1"}]',
        b'[[41, "Bonn", 1.5], [7, "5,1", 2]]',
        b'[41, "Bonn", 1.5, 7, "5,1", 2]',
        b'41,Bonn,1.5\n7,"5,1",2\n',
        b'city,age,pay\nBonn,41,1.5\n"5,1",7,2\n',
    ],
)
def test_columns_of_several_datatypes(tmp_path: Path, body: bytes) -> None:
    """Each column has its own type, and texts may look like numbers."""
    found = table(tmp_path, PEOPLE).read(memoryview(body))[0]
    assert found["age"].tolist() == [[41], [7]]
    assert found["age"].dtype == np.int64
    assert found["city"].tolist() == [[b"Bonn"], [b"5,1"]]
    assert found["pay"].tolist() == [1.5, 2.0]
    assert found["pay"].dtype == np.float32


def test_features_name_columns(tmp_path: Path) -> None:
    """They are in the manifest's order if they are the inputs' names.

    Otherwise they are in the inputs' order.
    """
    found = table(tmp_path, PEOPLE, names=["pay", "city", "age"]).read(
        memoryview(b'[2.5, "Bonn", 41]')
    )[0]
    assert (found["age"].tolist(), found["pay"].tolist()) == ([[41]], [2.5])
    found = table(tmp_path, PEOPLE, names=["x", "y", "z"]).read(
        memoryview(b'{"z": 2.5, "x": 41, "y": "Bonn"}')
    )[0]
    assert (found["age"].tolist(), found["pay"].tolist()) == ([[41]], [2.5])
    with pytest.raises(
        ModelLoadError, match=r"features.names has 2, the model takes 3"
    ):
        table(tmp_path, PEOPLE, names=["x", "y"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "got JSON of shape"),
        (
            b'[41, "Bonn"]',
            "2 values do not make a whole row; the model takes 3: age, city, pay",
        ),
        (b'[[41, "Bonn", 1.5], 7]', "row 1 is not an array, others are"),
        (b'[[41, "Bonn", [1.5]]]', "got JSON of shape"),
        (b'{"age": 41, "city": "Bonn"}', "feature 'pay' is missing"),
        (b'{"age": 41, "city": 5, "pay": 1}', "input 'city': data"),
        (b'{"age": 41.5, "city": "Bonn", "pay": 1}', "input 'age': data"),
        (b'{"age": 41, "city": "Bonn", "pay": "1,5"}', "feature 'pay' is a text"),
        (b"old,Bonn,1.5", "send a JSON array"),
        (b"age,city,pay\nold,Bonn,1.5", "feature 'age' is not a number"),
    ],
)
def test_invalid_columns_are_rejected(tmp_path: Path, body: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        table(tmp_path, PEOPLE).read(memoryview(body))


def test_an_array_for_columns(tmp_path: Path) -> None:
    """The shape is [rows, columns], and the datatype must suit each input."""
    rows = table(
        tmp_path, [TensorSpec("a", "FP32", (-1, 1)), TensorSpec("b", "FP64", (-1,))]
    )
    file = io.BytesIO()
    np.save(file, np.array([[1, 2], [3, 4]]))
    assert {
        name: array.tolist() for name, array in rows.read(file.getvalue())[0].items()
    } == {
        "a": [[1], [3]],
        "b": [2, 4],
    }
    with pytest.raises(
        ApiError, match=r"input 'city': expected BYTES \[-1, 1\], got INT64 \[2, 1\]"
    ):
        table(tmp_path, PEOPLE[1:]).read(file.getvalue())
    with pytest.raises(
        ApiError, match=r"input 'row': expected INT64 \[-1, 3\], got INT64 \[2, 2\]"
    ):
        table(tmp_path, PEOPLE).read(file.getvalue())


def test_a_detector_with_a_state(tmp_path: Path) -> None:
    """State inputs are ignored in any position."""
    inputs = [
        TensorSpec("h", "FP32", (1, 8)),
        TensorSpec("image", "FP32", (1, 32, 32, 3)),
        TensorSpec("c", "FP32", (1, 8)),
    ]
    outputs = {
        "rows": (1, 6, 20),
        "h2": (1, 8),
        "c2": (1, 8),
    }
    manifest = {
        "task": "object-detection",
        "detection": {"format": "yolov8", "boxes": "rows"},
    }
    with pytest.raises(
        ModelLoadError,
        match=r"needs one input, the model has 3: 'h', 'image', 'c'; name .*feedback",
    ):
        task_of(tmp_path, inputs, outputs, manifest)
    task = task_of(
        tmp_path,
        inputs,
        outputs,
        manifest | {"state": {"feedback": {"h": "h2", "c": "c2"}}},
    )
    assert list(task.prepare(picture()).runs[0]) == ["image"]


def test_a_grey_picture_without_channels_needs_a_manifest(tmp_path: Path) -> None:
    """[1, 49, 40] may also be a spectrogram."""
    spec = [TensorSpec("x", "FP32", (-1, 28, 28))]
    outputs = {"y": (1, 2)}
    files = {"labels.txt": "a\nb\n"}
    assert task_of(tmp_path, spec, outputs, {}, files).name == "tensors"
    task = task_of(tmp_path, spec, outputs, {"task": "image-classification"}, files)
    assert isinstance(task, ImageClassification)
    assert task.prepare(picture()).runs[0]["x"].shape == (1, 28, 28)
    numbers = json.dumps(np.zeros((28, 28)).tolist()).encode()
    assert task.prepare(memoryview(numbers)).runs[0]["x"].shape == (1, 28, 28)
