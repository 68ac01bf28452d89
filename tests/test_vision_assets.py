"""Send pictures to public models by every client, and check verified answers."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve_client import Client
from vision_cases import MODELS, as_png, write_models

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
pytestmark = [pytest.mark.assets, pytest.mark.live]

FER_REGIONS = {"astronaut.png": "165,60,120,120", "grace_hopper.jpg": "170,70,190,190"}


def marked(name: str, *values: Any) -> Any:
    """Return a case with the mark of its model's framework."""
    mark = MODELS[name].mark
    return pytest.param(
        name, *values, marks=[getattr(pytest.mark, mark)] if mark else []
    )


@pytest.fixture(scope="module")
def servers(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the server of a model, started for its framework's first test."""
    running: dict[str, Server] = {}

    def server_of(model: str) -> Server:
        mark = MODELS[model].mark
        if mark not in running:
            folder = tmp_path_factory.mktemp(f"vision-{mark or 'tflite'}")
            models = write_models(assets, folder / "models", mark)
            (folder / "server").mkdir()
            running[mark] = start_server(folder / "server", models)
        return running[mark]

    yield server_of
    for server in running.values():
        server.stop()


@pytest.fixture
def ask(servers: Any, assets: Path) -> Any:
    """Return a function that queries over HTTP with a file or bytes: ``ask(model,
    picture, query)``.
    """

    def send(model: str, picture: str | bytes, query: str = "") -> Any:
        body = (
            picture
            if isinstance(picture, bytes)
            else (assets / "inputs" / "images" / picture).read_bytes()
        )
        answer = servers(model).call("POST", f"/predictions/{model}{query}", data=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return send


def expected(assets: Path, case: str) -> Any:
    """Return the readable answer of a verified case."""
    return json.loads((assets / "expected" / f"{case}.json").read_text())["answer"]


# Classification


FLOAT = ("burger.jpg", "chelsea.png", "coffee.png", "flower.jpg", "rocket.jpg")


@pytest.mark.parametrize("picture", FLOAT)
def test_a_float_classifier_gives_the_cases_classes(
    ask: Any, assets: Path, picture: str
) -> None:
    """Five classes have the same order, within the case's tolerance."""
    answer = ask("mobilenet_v1_float", picture)
    found = answer["predictions"]
    wanted = expected(assets, f"mnv1_025_float__{Path(picture).stem}")["top5"]
    assert [(one["label"], one["index"]) for one in found] == [
        (one["label"], one["index"]) for one in wanted
    ]
    np.testing.assert_allclose(
        [one["score"] for one in found],
        [one["score"] for one in wanted],
        rtol=1e-3,
        atol=1e-5,
    )


QUANTISED = [
    *(("mobilenet_v1", "mnv1_025_quant", picture) for picture in FLOAT),
    *(
        ("mobilenet_v2", "mnv2_quant", picture)
        for picture in (*FLOAT, "astronaut.png", "china.jpg", "grace_hopper.jpg")
    ),
]


@pytest.mark.parametrize(("model", "case", "picture"), QUANTISED)
def test_a_quantised_classifier_gives_the_cases_classes(
    ask: Any, assets: Path, model: str, case: str, picture: str
) -> None:
    """Scores are within 20 of 256 steps.

    A clear leader comes first.
    """
    wanted = expected(assets, f"{case}__{Path(picture).stem}")
    found = {
        one["index"]: one for one in ask(model, picture, "?top_k=1001")["predictions"]
    }
    for one in wanted["top5"]:
        assert found[one["index"]]["label"] == one["label"]
        assert abs(found[one["index"]]["score"] - one["score"]) <= 20 / 256
    if wanted["top1_margin"] >= 0.15:
        assert next(iter(found)) == wanted["top5"][0]["index"]


@pytest.mark.parametrize("picture", ["burger", "chelsea", "coffee"])
@pytest.mark.tfjs
def test_a_browser_model_is_recognised_by_its_labels(
    ask: Any, assets: Path, picture: str
) -> None:
    """The labels are in the model's folder."""
    file = {"burger": "burger.jpg"}.get(picture, f"{picture}.png")
    answer = ask("darknet", file)
    assert answer["task"] == "image-classification"
    wanted = expected(assets, f"darknet_tiny__{picture}")["top5"]
    assert [one["label"] for one in answer["predictions"]] == [
        one["label"] for one in wanted
    ]
    scores = [one["score"] for one in answer["predictions"]]
    np.testing.assert_allclose(scores, [one["score"] for one in wanted], rtol=1e-2)


@pytest.mark.parametrize(
    ("model", "case", "picture", "tolerance"),
    [
        marked("fer_tflite", "fer_tflite__astronaut", "astronaut.png", 0.02),
        marked("fer_keras", "fer_keras__astronaut", "astronaut.png", 1e-4),
        marked("fer_keras", "fer_keras__grace_hopper", "grace_hopper.jpg", 1e-4),
        marked("fer_savedmodel", "fer_savedmodel__astronaut", "astronaut.png", 1e-4),
    ],
)
def test_emotions_are_found_in_a_region(
    ask: Any, assets: Path, model: str, case: str, picture: str, tolerance: float
) -> None:
    """A face is on a larger picture."""
    answer = ask(model, picture, f"?top_k=7&region={FER_REGIONS[picture]}")
    wanted = {}
    for one in expected(assets, case)["top"]:
        wanted[one["label"]] = one["score"]
    assert {one["label"] for one in answer["predictions"]} == set(wanted)
    assert all(
        abs(one["score"] - wanted[one["label"]]) <= tolerance
        for one in answer["predictions"]
    )


@pytest.mark.onnx
def test_digits_are_recognised(ask: Any, assets: Path) -> None:
    """Their case describes ten handwritten digits."""
    with gzip.open(assets / "inputs" / "tabular" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", max_rows=10)
    for digit, row in enumerate(rows):
        small = Image.fromarray((row[:64].reshape(8, 8) * 255 / 16).astype(np.uint8))
        picture = np.zeros((28, 28), np.uint8)
        picture[4:24, 4:24] = np.asarray(
            small.resize((20, 20), Image.Resampling.BICUBIC)
        )
        best = ask("mnist", as_png(picture), "?top_k=1")["predictions"][0]
        assert (
            best["index"]
            == expected(assets, f"mnist_onnx__digit{digit}")["argmax"]
            == digit
        )


@pytest.mark.onnx
@pytest.mark.parametrize("turned", [False, True])
def test_the_orientation_of_text_is_recognised(
    ask: Any, assets: Path, turned: bool
) -> None:
    """The BGR model gets a line upright and upside down."""
    with Image.open(assets / "inputs" / "images" / "page.png") as page:
        line = np.asarray(page.convert("RGB").crop((0, 0, 300, 44)))
    best = ask("turned", as_png(line[::-1, ::-1] if turned else line))["predictions"][0]
    assert best["label"] == ("turned" if turned else "upright")
    assert best["score"] > 0.99


# Detection


def overlap(one: dict[str, float], other: list[float]) -> float:
    """Return the IoU of an answered box and an expected [x, y, width, height]."""
    left = max(one["x"], other[0])
    top = max(one["y"], other[1])
    right = min(one["x"] + one["width"], other[0] + other[2])
    bottom = min(one["y"] + one["height"], other[1] + other[3])
    shared = max(0.0, right - left) * max(0.0, bottom - top)
    return shared / (one["width"] * one["height"] + other[2] * other[3] - shared)


def check_boxes(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Find each expected object, with its score within 0.05 and an IoU of 0.85."""
    for one in wanted:
        near = []
        for f in found:
            if (
                f["label"] == one["label"]
                and overlap(f["box"], one["box_px_xywh"]) >= 0.85
            ):
                near.append(f)
        assert any(abs(f["score"] - one["score"]) <= 0.05 for f in near), one


@pytest.mark.parametrize(
    "picture", ["astronaut.png", "cats_and_dogs.jpg", "chelsea.png"]
)
def test_objects_are_found_without_a_manifest(
    ask: Any, assets: Path, picture: str
) -> None:
    answer = ask("ssd", picture)
    assert answer["task"] == "object-detection"
    wanted = expected(assets, f"ssd_coco__{Path(picture).stem}")[
        "detections_score>=0.4"
    ]
    check_boxes(answer["predictions"], wanted)
    assert len([one for one in answer["predictions"] if one["score"] >= 0.45]) <= len(
        wanted
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_objects_on_a_rotated_photo_are_found(
    ask: Any, assets: Path, orientation: int
) -> None:
    """Boxes are those of the upright picture."""
    # Pillow's transpositions that undo each orientation.
    back = {
        2: 0,
        3: 3,
        4: 1,
        5: 5,
        6: 2,
        7: 6,
        8: 4,
    }
    with Image.open(assets / "inputs" / "images" / "cats_and_dogs.jpg") as photo:
        stored = (
            photo.copy()
            if orientation == 1
            else photo.transpose(Image.Transpose(back[orientation]))
        )
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "JPEG", quality=97, exif=exif)
    wanted = expected(assets, "ssd_coco__cats_and_dogs")["detections_score>=0.4"][:3]
    check_boxes(ask("ssd", file.getvalue())["predictions"], wanted)


@pytest.mark.tfjs
def test_hands_are_found(ask: Any, assets: Path) -> None:
    """The manifest names four of the detector's eight outputs."""
    wanted = expected(assets, "handtrack__astronaut")["top3"]
    found = ask("hands", "astronaut.png", "?threshold=0.15")["predictions"]
    for one in wanted:
        top, left, bottom, right = (512 * value for value in one["box_yxyx"])
        near = []
        for f in found:
            if overlap(f["box"], [left, top, right - left, bottom - top]) >= 0.85:
                near.append(f)
        assert any(
            f["label"] == one["label"] and abs(f["score"] - one["score"]) <= 0.05
            for f in near
        ), one


# Segmentation


def test_masks_have_the_expected_pixels(ask: Any, assets: Path) -> None:
    """The shares are checked, too."""
    answer = ask("deeplab", "segmentation_input_rotation0.jpg", "?mask=png")
    assert answer["task"] == "image-segmentation"
    wanted = expected(assets, "deeplabv3__segmentation")["class_pixels"]
    found = {one["label"]: one["pixels"] for one in answer["predictions"]}
    assert all(
        abs(found[label] - count) <= 0.01 * 257 * 257 for label, count in wanted.items()
    )
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"]))))
    assert (
        np.mean(
            mask == np.load(assets / "expected" / "deeplabv3__segmentation.argmax.npy")
        )
        >= 0.99
    )


@pytest.mark.onnx
def test_text_on_a_page_is_found(ask: Any, assets: Path) -> None:
    """The heat map has one channel, and the manifest fixes the input's size."""
    found = {
        one["index"]: one["share"] for one in ask("page", "page.png")["predictions"]
    }
    assert abs(found[1] - expected(assets, "ppocr_det__page_png")["share>0.3"]) <= 0.005


# Every road


ROADS = [
    marked("mobilenet_v1_float", "coffee.png", {"top_k": 5}),
    marked("mobilenet_v1", "coffee.png", {}),
    marked("mobilenet_v2", "grace_hopper.jpg", {}),
    marked("ssd", "cats_and_dogs.jpg", {}),
    marked("deeplab", "segmentation_input_rotation0.jpg", {"mask": "png"}),
    marked("fer_tflite", "astronaut.png", {"region": FER_REGIONS["astronaut.png"]}),
    marked("fer_keras", "astronaut.png", {"region": FER_REGIONS["astronaut.png"]}),
    marked("fer_savedmodel", "astronaut.png", {"region": FER_REGIONS["astronaut.png"]}),
    marked("darknet", "chelsea.png", {}),
    marked("hands", "astronaut.png", {"threshold": 0.15}),
    marked("page", "page.png", {}),
    marked("turned", "page.png", {"region": "0,0,300,44"}),
]


def answer_of_command(
    server: Server, model: str, path: Path, parameters: dict[str, Any]
) -> Any:
    """Return the command's answer to a picture."""
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    command = [sys.executable, "-m", "pocketserve", "predict", model, str(path)]
    command.append("--json")
    for name, value in parameters.items():
        command += option(name, value)
    done = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def answer_of_curl(server: Server, path: Path, target: str) -> Any:
    """Return curl's answer to a picture."""
    command = ["curl", "-q", "-sS", "-H", f"Authorization: Bearer {server.token}"]
    command += [
        "-T",
        str(path),
        server.url + target,
    ]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("model", "picture", "parameters"), ROADS)
def test_every_client_gets_the_same_answer(
    servers: Any,
    ask: Any,
    assets: Path,
    model: str,
    picture: str,
    parameters: dict[str, Any],
) -> None:
    """They are our client on both transports, the command, curl and plain HTTP."""
    server = servers(model)
    path = assets / "inputs" / "images" / picture
    query = ""
    if parameters:
        query = "?" + "&".join(f"{name}={value}" for name, value in parameters.items())
    wanted = ask(model, picture, query)

    answers = []
    for url in (server.url, f"socket://127.0.0.1:{server.ready['socket']['port']}"):
        with Client(url, server.token) as client:
            content = path.read_bytes()
            answers.append(client.predict(model, content, parameters=parameters))
    answers.append(answer_of_command(server, model, path, parameters))
    answers.append(answer_of_curl(server, path, f"/predictions/{model}{query}"))

    del wanted["timing_ms"]
    for answer in answers:
        del answer["timing_ms"]
        assert answer == wanted


def option(name: str, value: Any) -> list[str]:
    """Return a request's parameter as the command's option."""
    if name in ("top_k", "threshold"):
        return [f"--{name.replace('_', '-')}", str(value)]
    return ["--set", f"{name}={value}"]


def test_every_client_gets_the_same_annotated_picture(
    servers: Any, assets: Path, tmp_path: Path
) -> None:
    server = servers("ssd")
    path = assets / "inputs" / "images" / "cats_and_dogs.jpg"
    with Client(server.url, server.token) as client:
        drawn = client.predict("ssd", path.read_bytes(), annotate="png")
    assert Image.open(io.BytesIO(drawn)).size == (1200, 600)
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    saved = tmp_path / "drawn.png"
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "predict",
        "ssd",
        str(path),
        "--save",
        str(saved),
    ]
    subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    assert saved.read_bytes() == drawn
