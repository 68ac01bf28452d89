"""A small detector on a real server uses its metadata, frames and drawings."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import StartServer

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
onnx = pytest.importorskip("onnx", reason="makes the model")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

WIDTH = 64
HEIGHT = 32
CONSTANTS = {
    "boxes": np.array([[[16, 48, 8], [16, 16, 8], [16, 16, 4], [8, 8, 4]]], np.float32),
    "factors": np.array([[[0.9, 0.1, 0.0], [0.0, 0.8, 0.0]]], np.float32),
    "zero": [0],
    "one": [1],
    "axis": [1],
    "last": [3],
}


def make_weights(arrays: dict[str, Any]) -> list[Any]:
    """Return the initializers of a graph."""
    make = onnx.numpy_helper.from_array
    return [make(np.asarray(array), name) for name, array in arrays.items()]


def detector(path: Path) -> None:
    """Create a detector as Ultralytics exports it.

    It has two fixed boxes, scored by the picture's red.
    """
    helper = onnx.helper
    float_type = onnx.TensorProto.FLOAT
    sides = [1, 3, HEIGHT, WIDTH]
    image = helper.make_tensor_value_info("images", float_type, sides)
    output = helper.make_tensor_value_info("output0", float_type, [1, 6, 3])
    nodes = [
        helper.make_node("Slice", ["images", "zero", "one", "axis"], ["red"]),
        helper.make_node("ReduceMax", ["red"], ["most"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["most", "last"], ["flat"]),
        helper.make_node("Mul", ["factors", "flat"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["output0"], axis=1),
    ]
    weights = make_weights(CONSTANTS)
    graph = helper.make_graph(nodes, "detector", [image], [output], weights)
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    metadata = {
        "task": "detect",
        "stride": "32",
        "imgsz": f"[{HEIGHT}, {WIDTH}]",
        "names": "{0: 'left', 1: 'right'}",
    }
    helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def server(new_server: StartServer, tmp_path: Path) -> Any:
    """Serve that one file."""
    models = tmp_path / "models"
    models.mkdir()
    detector(models / "toy.onnx")
    return new_server(models)


def red(width: int, height: int) -> bytes:
    """Return a red picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (255, 0, 0)).save(file, "PNG")
    return file.getvalue()


def entry(label: str, index: int, score: float, x: float) -> dict[str, Any]:
    """Return an object on a picture of 640 x 320."""
    box = {
        "x": x,
        "y": 120,
        "width": 160,
        "height": 80,
    }
    return {
        "label": label,
        "index": index,
        "score": pytest.approx(score),
        "box": box,
    }


LEFT = entry("left", 0, 0.9, 80)
RIGHT = entry("right", 1, 0.8, 400)


def test_a_self_describing_file(server: Any) -> None:
    """Task, size, normalisation, letterbox and labels come from the file.

    Boxes refer to the picture.
    """
    answer = server.call("POST", "/predictions/toy", data=red(640, 320)).json()
    assert answer["task"] == "object-detection"
    assert answer["predictions"] == [LEFT, RIGHT]
    square = server.call("POST", "/predictions/toy", data=red(320, 320)).json()[
        "predictions"
    ]
    # Bars of 16 pixels on either side; the left box lies half on a bar.
    assert [one["box"] for one in square] == [
        {"x": 0, "y": 120, "width": 80, "height": 80},
        {"x": 240, "y": 120, "width": 80, "height": 80},
    ]


def test_a_frame_and_a_drawing(server: Any) -> None:
    """A camera's frame is turned upright, answered and drawn."""
    frame = np.zeros((640, 320, 3), np.uint8)
    frame[..., 0] = 255
    query = "?format=rgb&width=320&height=640&rotation=90"
    answer = server.call(
        "POST", f"/predictions/toy{query}", data=frame.tobytes()
    ).json()
    assert answer["predictions"] == [LEFT, RIGHT]
    drawn = server.call(
        "POST", f"/predictions/toy{query}&annotate=png", data=frame.tobytes()
    )
    assert drawn.headers["Content-Type"] == "image/png"
    as_jpeg = server.call(
        "POST", f"/predictions/toy{query}&annotate=jpeg", data=frame.tobytes()
    )
    assert as_jpeg.headers["Content-Type"] == "image/jpeg"
    assert as_jpeg.content.startswith(b"\xff\xd8\xff")
    pixels = np.asarray(Image.open(io.BytesIO(drawn.content)))
    assert pixels.shape == (320, 640, 3)
    plain = (pixels == (255, 0, 0)).all(axis=-1)
    assert plain[160, 160]
    assert not plain[118:123, 230].all()
    assert not plain[160, 236:242].all()


def test_a_region_and_the_card(server: Any) -> None:
    """A region moves the boxes.

    The card shows the file's metadata.
    """
    found = server.call(
        "POST", "/predictions/toy?region=320,0,320,160", data=red(640, 320)
    ).json()["predictions"]
    assert found[0]["box"] == {
        "x": 360,
        "y": 60,
        "width": 80,
        "height": 40,
    }
    card = server.call("GET", "/v2/models/toy").json()["card"]
    assert card["first_labels"] == ["left", "right"]
    assert (
        card["preprocessing"]
        == "turned upright, scaled to fit between bars to 64x32 RGB, pixel / 255 as FP32"
    )
