"""Serve the small models of the recipe ``figures``: points and boxes in pixels."""

from __future__ import annotations

import base64
import functools
import io
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, StartServer, start_server
from odd_pictures import rotated, saved
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.service import Service
from pocketserve_client import Client

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
drawn = pytest.importorskip("drawn")

FOLDER = Path(__file__).parent / "models"
MAX_BYTES = 300_000
SIZES = (
    (640, 480),
    (300, 500),
    (97, 61),
    (1200, 720),
)
PEOPLE = (14, 21, 30, 38)
OBJECTS = (0, 8, 12, 14)
"""Seeds of drawings that are used as examples; the overall quality is measured below.
"""

SHOWN = 100
SCORE_TOLERANCE = 0.03
"""The first hundred of the 300 drawings that the cards are based on."""

VERSIONS = [
    ("poses", "tflite"),
    ("poses", "tflite-points"),
    pytest.param("poses", "onnx", marks=pytest.mark.onnx),
    ("shapes", "tflite"),
    pytest.param("shapes", "onnx", marks=pytest.mark.onnx),
    ("shapes-yolo", "tflite"),
]


# Quality


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run the server without a transport."""
    settings = {
        "models_dir": FOLDER,
        "state_dir": tmp_path_factory.mktemp("state"),
        "quarantine": False,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


@functools.cache
def shown(kind: str) -> list[tuple[bytes, Any]]:
    """Return the pictures as files with their contents, for all versions."""
    return list(islice(getattr(drawn.scores, kind)(), SHOWN))


@pytest.mark.parametrize(("model", "version"), VERSIONS)
def test_the_cards_score_is_reproduced(
    service: Service, model: str, version: str
) -> None:
    """It is measured from PNG files to pixels of the picture."""

    def ask(body: bytes, threshold: float) -> Any:
        query = {"version": version, "threshold": str(threshold)}
        request = ApiRequest(path={"model": model}, query=query, body=memoryview(body))
        return predictions.document(predictions.ask(service, request))

    if model == "poses":
        close = [
            drawn.scores.close(drawn.points_of(ask(body, 0)), truth)
            for body, truth in shown("people")
        ]
        found = float(np.mean(close))
    else:
        answers = [
            (ask(body, 0.05)["predictions"], truth) for body, truth in shown("objects")
        ]
        found = drawn.scores.mean_precision(answers)
    manifest = tomllib.loads(
        (FOLDER / model / "model.toml").read_text(encoding="utf-8")
    )
    said = manifest["versions"][version]["evaluation"]["value"]
    assert abs(found - said) <= SCORE_TOLERANCE
    assert f"{said:.3f}" in (FOLDER / model / "README.md").read_text(encoding="utf-8")


def test_the_files_are_small() -> None:
    """Each is small enough for a repository."""
    for model in ("poses", "shapes", "shapes-yolo"):
        assert all(
            path.stat().st_size <= MAX_BYTES for path in (FOLDER / model).iterdir()
        )


# Over the wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on these models."""
    running = start_server(tmp_path_factory.mktemp("vision-models"), FOLDER)
    yield running
    assert running.stop() == 0


@pytest.fixture
def ask(server: Server) -> Any:
    """Return a function that queries both transports: ``ask(model, body, query)``."""

    def send(model: str, body: bytes, **query: Any) -> Any:
        answers = []
        for url in (server.url, f"socket://127.0.0.1:{server.socket_port}"):
            with Client(url, server.token) as client:
                answers.append(client.predict(model, body, parameters=query))
        for answer in answers:
            del answer["timing_ms"]
        assert answers[0] == answers[1]
        return answers[0]

    return send


@pytest.mark.live
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", PEOPLE)
def test_people_are_found(ask: Any, seed: int, size: tuple[int, int]) -> None:
    """Pictures have different shapes and sizes, models either layout."""
    picture, truth = drawn.person(seed, *size)
    for version in ("tflite", "tflite-points"):
        answer = ask("poses", saved(picture), version=version)
        drawn.check_points(drawn.points_of(answer), truth, size)
        (body,) = answer["predictions"]
        assert [point["label"] for point in body["keypoints"]][::8] == [
            "nose",
            "right elbow",
            "right ankle",
        ]
    sent = saved(picture, "JPEG", quality=95)
    drawn.check_points(drawn.points_of(ask("poses", sent)), truth, size)


@pytest.mark.live
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", OBJECTS)
def test_objects_are_found(ask: Any, seed: int, size: tuple[int, int]) -> None:
    """Every shape has one box, by anchors with suppression, and by YOLO's rows."""
    picture, truth = drawn.objects(seed, *size)
    for model in ("shapes", "shapes-yolo"):
        drawn.check_boxes(ask(model, saved(picture)), truth)
        # on smaller pictures, JPEG's blocks are as large as the shapes
        if min(size) > 100:
            drawn.check_boxes(ask(model, saved(picture, "JPEG", quality=95)), truth)


@pytest.mark.live
def test_suppression_is_needed(ask: Any) -> None:
    """Adjacent anchors see the same shape."""
    picture, truth = drawn.objects(OBJECTS[0], 640, 480)
    for model in ("shapes", "shapes-yolo"):
        assert len(ask(model, saved(picture), iou=1.0)["predictions"]) > len(truth)


@pytest.mark.live
def test_an_empty_picture_has_no_people(ask: Any) -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        assert (
            ask("poses", saved(drawn.drawings.nobody(rng, 320, 240)))["predictions"]
            == []
        )


@pytest.mark.live
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_rotation_is_applied(ask: Any, orientation: int, kind: str) -> None:
    """Points and boxes are those of the upright picture."""
    picture, truth = drawn.person(PEOPLE[0], 640, 400)
    body = rotated(
        picture, orientation, kind, **({"lossless": True} if kind == "WEBP" else {})
    )
    drawn.check_points(drawn.points_of(ask("poses", body)), truth, picture.size)
    picture, shapes = drawn.objects(OBJECTS[0], 640, 400)
    drawn.check_boxes(ask("shapes", rotated(picture, orientation, kind)), shapes)


@pytest.mark.live
def test_a_person_in_a_region_is_found(ask: Any) -> None:
    """The points are those of the whole picture."""
    picture, truth = drawn.person(PEOPLE[1], 300, 400)
    whole = Image.new("RGB", (1000, 700), (90, 120, 90))
    whole.paste(picture, (520, 210))
    found = drawn.points_of(ask("poses", saved(whole), region="520,210,300,400"))
    drawn.check_points(found, truth + np.array([520, 210]), picture.size)


@pytest.mark.live
def test_self_describing_files_need_no_manifest(
    new_server: StartServer, tmp_path: Path
) -> None:
    """MoveNet's and PoseNet's outputs, and Ultralytics' metadata, tell the task."""
    models = tmp_path / "models"
    models.mkdir()
    for name, file in (("movenet", "poses.points.tflite"), ("posenet", "poses.tflite")):
        shutil.copy(FOLDER / "poses" / file, models / f"{name}.tflite")
    shutil.copy(FOLDER / "shapes-yolo" / "shapes-yolo.tflite", models / "yolo.tflite")
    bare = new_server(models)
    picture, truth = drawn.person(PEOPLE[2], 400, 400)
    for name in ("movenet", "posenet"):
        answer = bare.call("POST", f"/predictions/{name}", data=saved(picture)).json()
        assert answer["task"] == "pose-estimation"
        drawn.check_points(drawn.points_of(answer), truth, picture.size)
    picture, shapes = drawn.objects(OBJECTS[1], 400, 300)
    answer = bare.call("POST", "/predictions/yolo", data=saved(picture)).json()
    assert answer["task"] == "object-detection"
    assert {one["label"] for one in answer["predictions"]} == {
        drawn.drawings.SHAPES[kind] for kind, _ in shapes
    }
    drawn.check_boxes(answer, shapes)


# Camera frames


def half_size(plane: Any) -> Any:
    """Return the means of 2 by 2 pixels, rounded."""
    height, width = plane.shape
    blocks = plane.reshape(height // 2, 2, width // 2, 2)
    return (blocks.mean(axis=(1, 3)) + 0.5).astype(np.uint8)


def padded_planes(y: Any, u: Any, v: Any) -> bytes:
    """Return YUV_420_888 as most phones store it.

    Rows are padded by 32 bytes, and U and V alternate, seen as two planes.
    """
    height, width = y.shape
    row = width + 32
    half = height // 2
    parts = [np.pad(y, ((0, 0), (0, 32))).tobytes()]
    for pair in ((u, v), (v, u)):
        alternating = np.stack(pair, axis=-1).reshape(half, width)
        padded = np.pad(alternating, ((0, 0), (0, 32))).tobytes()
        parts.append(padded[: (half - 1) * row + width - 1])
    return b"".join(parts)


def frame(picture: Any, kind: str, rotation: int) -> tuple[bytes, dict[str, Any]]:
    """Return a camera's frame of a picture, rotated clockwise, and its parameters."""
    held = np.rot90(np.asarray(picture), rotation // 90)
    height, width = held.shape[:2]
    parameters: dict[str, Any] = {
        "width": width,
        "height": height,
        "rotation": rotation,
        "format": kind,
    }
    if kind == "rgba":
        alpha = np.full((height, width, 1), 255, np.uint8)
        return np.concatenate([held, alpha], axis=2).tobytes(), parameters
    planes = Image.fromarray(held).convert("YCbCr").split()
    y = np.asarray(planes[0])
    u = half_size(np.asarray(planes[1]))
    v = half_size(np.asarray(planes[2]))
    if kind == "nv21":
        return y.tobytes() + np.stack([v, u], axis=-1).tobytes(), parameters
    row = width + 32
    parameters |= {
        "row_stride": row,
        "uv_row_stride": row,
        "pixel_stride": 2,
    }
    return padded_planes(y, u, v), parameters


@pytest.mark.live
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("kind", ["nv21", "yuv420", "rgba"])
def test_camera_frames_give_the_pngs_answers(
    ask: Any, kind: str, rotation: int
) -> None:
    """Every rotation gives the same points and boxes."""
    for size in ((640, 480), (240, 320)):
        picture, truth = drawn.person(PEOPLE[3], *size)
        body, said = frame(picture, kind, rotation)
        found = drawn.points_of(ask("poses", body, **said))
        wanted = drawn.points_of(ask("poses", saved(picture)))
        drawn.check_points(found, truth, size)
        assert np.quantile(np.linalg.norm(found - wanted, axis=1), 0.9) <= 0.02 * max(
            size
        )
        picture, shapes = drawn.objects(OBJECTS[2], *size)
        body, said = frame(picture, kind, rotation)
        drawn.check_boxes(ask("shapes", body, **said), shapes)


# Drawings of the answer


def annotated_by_command(
    server: Server, folder: Path, model: str, version: str, body: bytes
) -> bytes:
    """Return the annotated picture that the command saves."""
    path = folder / "picture.png"
    path.write_bytes(body)
    out = folder / "drawn.png"
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    command = [sys.executable, "-m", "pocketserve", "predict", model, str(path)]
    command += ["--version", version, "--save", str(out)]
    subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    return out.read_bytes()


def count_runs(server: Server, model: str, version: str) -> int:
    """Return the number of runs of a version so far."""
    path = f"/v2/models/{model}/versions/{version}/stats"
    statistics = server.call("GET", path).json()["model_stats"][0]
    return int(statistics["inference_count"])


def check_annotation(
    content: bytes, picture: Any, entries: list[dict[str, Any]], *, boxes: bool
) -> None:
    """Check that joints and frames are drawn where the answer says."""
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert pixels.shape == (600, 800, 3)
    plain = np.asarray(picture)
    for entry in entries:
        for point in entry.get("keypoints", ()):
            if point["score"] < 0.3:
                continue
            x = round(point["x"])
            y = round(point["y"])
            assert pixels[y, x].min() > 200, point  # a joint is a light dot
        if boxes:
            box = entry["box"]
            x = round(box["x"] + box["width"] / 2)
            y = round(box["y"] + box["height"] - 1)
            column = slice(max(0, y - 4), y + 5)
            assert (pixels[column, x] != plain[column, x]).any()


@pytest.mark.live
@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("poses", "tflite"),
        ("poses", "tflite-points"),
        ("shapes", "tflite"),
    ],
)
def test_annotations_match_the_answer(
    server: Server, tmp_path: Path, model: str, version: str
) -> None:
    """HTTP, the socket and the command give the same picture."""
    draw = drawn.objects
    if model == "poses":
        draw = drawn.person
    picture, _ = draw(PEOPLE[0], 800, 600)
    body = saved(picture)
    query = {"version": version}

    pictures = []
    for url in (server.url, f"socket://127.0.0.1:{server.socket_port}"):
        with Client(url, server.token) as client:
            answer = client.predict(model, body, parameters=query)
            png = client.predict(model, body, parameters=query, annotate="png")
            both = client.predict(model, body, parameters=query, annotate="both")
        pictures.append(png)
        pictures.append(base64.b64decode(both["picture"]))
        assert both["predictions"] == answer["predictions"]

    runs = count_runs(server, model, version)
    by_command = annotated_by_command(server, tmp_path, model, version, body)
    assert pictures == [by_command] * 4
    # One request gives the answer and the picture.
    assert count_runs(server, model, version) == runs + 1

    entries = answer["predictions"]
    check_annotation(pictures[0], picture, entries, boxes=model == "shapes")
