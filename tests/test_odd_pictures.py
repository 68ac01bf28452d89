"""Send every kind of picture to every picture task over HTTP.

Each gets the same answer, or one clear sentence.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, Server, start_server
from odd_pictures import bombs, damaged, rotated, saved, variants

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
drawn = pytest.importorskip("drawn")
onnx = pytest.importorskip("onnx", reason="makes the model that tells areas apart")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

TASKS = {
    "digits": "image-classification",
    "shapes": "object-detection",
    "areas": "image-segmentation",
    "poses": "pose-estimation",
}


def areas(folder: Path) -> None:
    """Return a model that calls every pixel dark, bright or reddish."""
    helper = onnx.helper
    numpy_helper = onnx.numpy_helper
    kernel = np.array(
        [
            [-1, -1, -1],
            [1, 1, 1],
            [3, -1.5, -1.5],
        ],
        np.float32,
    )[:, :, None, None]
    bias = np.array([1.5, -1.5, 0], np.float32)
    nodes = [helper.make_node("Conv", ["image", "kernel", "bias"], ["map"])]
    image = helper.make_tensor_value_info(
        "image", onnx.TensorProto.FLOAT, [1, 3, 48, 64]
    )
    output = helper.make_tensor_value_info(
        "map", onnx.TensorProto.FLOAT, [1, 3, 48, 64]
    )
    weights = [
        numpy_helper.from_array(kernel, "kernel"),
        numpy_helper.from_array(bias, "bias"),
    ]
    graph = helper.make_graph(nodes, "areas", [image], [output], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    folder.mkdir()
    (folder / "areas.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("dark\nbright\nreddish\n")
    (folder / "model.toml").write_text(
        'task = "image-segmentation"\nlabels = "labels.txt"\n'
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server with one model per task."""
    root = tmp_path_factory.mktemp("odd-pictures")
    models = root / "models"
    models.mkdir()
    areas(models / "areas")
    shutil.copytree(MODELS / "digits", models / "digits")
    for name in ("shapes", "poses"):
        shutil.copytree(Path(__file__).parent / "models" / name, models / name)
    (root / "server").mkdir()
    running = start_server(root / "server", models)
    yield running
    assert running.stop() == 0


@functools.cache
def example(model: str) -> Any:
    """Return a picture in which the model finds something."""
    if model == "poses":
        return drawn.person(38, 320, 240)[0]
    if model == "shapes":
        return drawn.objects(0, 320, 240)[0]
    if model == "digits":
        with Image.open(MODELS / "digits" / "samples" / "7.png") as digit:
            return digit.convert("RGB").resize((120, 120))
    colours = np.zeros((96, 128, 3), np.uint8)
    colours[:, 40:] = (230, 40, 30)
    colours[60:, 40:] = (240, 240, 230)
    return Image.fromarray(colours)


@functools.cache
def odd_kinds(model: str) -> dict[str, tuple[bytes, Any]]:
    """Return that picture in every colour mode and format."""
    return variants(example(model))


@functools.cache
def useless(model: str) -> dict[str, bytes]:
    """Return files that are not pictures, damaged, or claim enormous sizes."""
    return damaged(example(model)) | bombs()


def ask(
    server: Server,
    model: str,
    body: bytes,
    content_type: str = "application/octet-stream",
) -> Any:
    """Return all entries, also unlikely ones: the models don't know grey shapes."""
    answer = server.call(
        "POST",
        f"/predictions/{model}?threshold=0",
        data=body,
        headers={"Content-Type": content_type},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["task"] == TASKS[model]
    return answer.json()["predictions"]


def check_same_points(found: Any, wanted: Any, size: tuple[int, int]) -> None:
    """Check that nine in ten points moved by less than 3 % of the longer side."""
    points = drawn.scores.points_of(found[0])
    distances = np.linalg.norm(points - drawn.scores.points_of(wanted[0]), axis=1)
    assert np.quantile(distances, 0.9) <= 0.03 * max(size)


def check_same_shapes(found: Any, wanted: Any) -> None:
    """Check that each sure shape is found at its place, and not many others."""
    for shape in wanted:
        if shape["score"] <= 0.4:
            continue
        box = shape["box"]
        right = box["x"] + box["width"]
        bottom = box["y"] + box["height"]
        corners = np.array([box["x"], box["y"], right, bottom])
        same_class = [entry for entry in found if entry["index"] == shape["index"]]
        overlaps = [drawn.scores.overlap(entry["box"], corners) for entry in same_class]
        assert max(overlaps, default=0) > 0.85
    assert len([entry for entry in found if entry["score"] > 0.5]) <= len(wanted)


def check_same_areas(found: Any, wanted: Any) -> None:
    """Check that the shares of the areas differ by less than 3 %."""
    found_shares = {entry["label"]: entry["share"] for entry in found}
    wanted_shares = {entry["label"]: entry["share"] for entry in wanted}
    for label in found_shares | wanted_shares:
        difference = found_shares.get(label, 0) - wanted_shares.get(label, 0)
        assert abs(difference) < 0.03


def check_same(model: str, found: Any, wanted: Any, size: tuple[int, int]) -> None:
    """Compare answers to two formats of a picture, within a codec's rounding."""
    assert wanted
    if found == wanted:
        return
    assert found
    if model == "poses":
        check_same_points(found, wanted, size)
    elif model == "shapes":
        check_same_shapes(found, wanted)
    elif model == "areas":
        check_same_areas(found, wanted)
    else:
        assert found[0]["label"] == wanted[0]["label"]
        assert abs(found[0]["score"] - wanted[0]["score"]) < 0.1


VARIANTS = sorted(variants(Image.new("RGB", (64, 64), (9, 99, 200))))


@pytest.mark.parametrize("case", VARIANTS)
@pytest.mark.parametrize("model", TASKS)
def test_every_kind_of_picture_gets_the_same_answer(
    server: Server, model: str, case: str
) -> None:
    """Rotated, grey, CMYK, RGBA, palette and 16-bit files equal the plain RGB picture."""
    body, shown = odd_kinds(model)[case]
    check_same(
        model, ask(server, model, body), ask(server, model, saved(shown)), shown.size
    )


@pytest.mark.parametrize(
    "kind", ["text/plain", "image/gif", "application/json", "audio/wav", ""]
)
@pytest.mark.parametrize("model", TASKS)
def test_a_wrong_content_type_is_ignored(server: Server, model: str, kind: str) -> None:
    """The bytes decide."""
    picture = example(model)
    for form in ("PNG", "BMP"):
        assert ask(server, model, saved(picture, form), kind) == ask(
            server, model, saved(picture)
        )
    turned = rotated(picture, 6)
    assert ask(server, model, turned, kind) == ask(server, model, turned, "image/jpeg")


DAMAGED = sorted(damaged(Image.new("RGB", (64, 64))))


@pytest.mark.parametrize("case", [*DAMAGED, *bombs()])
@pytest.mark.parametrize("model", TASKS)
def test_unreadable_pictures_are_refused_in_one_sentence(
    server: Server, model: str, case: str
) -> None:
    """Annotated requests give the same sentence."""
    body = useless(model)[case]
    for query in ("", "?annotate=png"):
        answer = server.call("POST", f"/predictions/{model}{query}", data=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_INPUT"), (
            answer.text
        )
        sentence = answer.json()["error"]
        assert 10 < len(sentence) < 300
        assert "\n" not in sentence
        assert "Traceback" not in sentence
