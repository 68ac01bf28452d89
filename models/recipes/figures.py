"""Trains a small pose model and a small detector on drawn pictures, and writes them in the layouts of well-known ones.

- ``poses``: heat maps and offsets as PoseNet gives them (TFLite, ONNX), and points as MoveNet gives them (TFLite);
- ``shapes``: the raw boxes and scores of a single-shot detector, for anchors and suppression (TFLite, ONNX);
- ``shapes-yolo``: the same network with the rows and the metadata of a YOLO that Ultralytics exported (TFLite).

All pictures come out of ``drawings.py``: no licence is involved, and nothing is claimed for photos. The models are made
for the tests (``tests/models``), not for the wheel. Each card states a score on pictures that were not trained on,
measured by the server's own tasks from PNG files.

Run from the repository root: python -m models.recipes.figures [poses] [shapes]
"""

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from string import Template

from models.recipes.figure_networks import SEED, Network, OnnxNetwork, to_onnx, to_tflite, train

import numpy as np
import tensorflow as tf
from PIL import Image
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.terminal.local import open_local

from models.recipes import drawings
from models.recipes import figure_scores as scores

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "models"


def boxed(picture: Image.Image, width: int, height: int, fill: int) -> tuple[np.ndarray, float, np.ndarray]:
    """A picture between bars, as the server sends it; its scale, and where its upper left corner went."""
    scale = min(width / picture.width, height / picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    canvas = np.full((height, width, 3), fill, np.uint8)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    canvas[top : top + size[1], left : left + size[0]] = np.asarray(picture.resize(size))
    return canvas, scale, np.array([left, top])


# --- poses -------------------------------------------------------------------------------------------------------

POSE_SIZE, CELLS, STRIDE = 97, 13, 8
"""Cell (row, column) of the maps lies at STRIDE times row and column of the input: 97 = 12 * 8 + 1."""

NEAR = 1.5 * STRIDE
"""Cells within this distance of a point learn its offset."""


def pose_layers(net: Network | OnnxNetwork, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = net.relu(net.conv(x, "a", 16, step=2))
    x = net.relu(net.conv(x, "b", 24, step=2))
    x = net.relu(net.conv(x, "c", 40, step=2))
    for name, spread in (("d", 1), ("e", 2), ("f", 4), ("g", 2), ("h", 1)):
        x = net.add(x, net.relu(net.conv(x, name, 40, spread=spread)))
    return net.conv(x, "heat", 17, size=1), net.conv(x, "offsets", 34, size=1)


def pose_data(count: int, seed: int) -> list[np.ndarray]:
    """Pictures uint8 [n, 97, 97, 3]; points float32 [n, 17, (x, y)] of the input, far outside where nobody is there."""
    rng = np.random.default_rng(seed)
    pictures = np.zeros((count, POSE_SIZE, POSE_SIZE, 3), np.uint8)
    points = np.full((count, 17, 2), -1000, np.float32)
    for row in range(count):
        width, height = scores.any_size(rng, 128)
        if rng.random() < 0.08:
            pictures[row], _, _ = boxed(drawings.nobody(rng, width, height), POSE_SIZE, POSE_SIZE, 0)
            continue
        picture, found = drawings.person(rng, width, height)
        pictures[row], scale, corner = boxed(picture, POSE_SIZE, POSE_SIZE, 0)
        points[row] = found * scale + corner
    return [pictures, points]


def pose_loss(network: Network) -> Callable[..., tf.Tensor]:
    at = np.stack(np.meshgrid(*[np.arange(CELLS) * STRIDE] * 2), axis=-1).astype(np.float32)  # [13, 13, (x, y)]

    def loss(pictures: tf.Tensor, points: tf.Tensor) -> tf.Tensor:
        heat, offsets = pose_layers(network, pictures / 127.5 - 1)
        away = points[:, None, None] - at[None, :, :, None]  # [n, 13, 13, 17, (x, y)]
        distance = tf.norm(away, axis=-1)
        wanted = tf.exp(-tf.square(distance / (0.75 * STRIDE)))
        crossed = tf.nn.sigmoid_cross_entropy_with_logits(wanted, heat)
        # The few cells with a point in them count as much as the many without.
        heat_loss = tf.reduce_mean(crossed * (1 + 20 * wanted))
        moves = tf.stack([offsets[..., 17:], offsets[..., :17]], axis=-1)  # down comes first in PoseNet's maps
        near = tf.cast(distance < NEAR, tf.float32)
        off = tf.reduce_sum(tf.abs(moves - away), axis=-1)
        return heat_loss + 0.02 * tf.reduce_sum(near * off) / (tf.reduce_sum(near) + 1)

    return loss


def points_of(heat: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """MoveNet's [1, 1, 17, (y, x, score)] of the maps: the hottest cell and its offset, as ratios of the input."""
    flat, moves = tf.reshape(heat, (CELLS * CELLS, 17)), tf.reshape(offsets, (CELLS * CELLS, 34))
    best = tf.argmax(flat, axis=0, output_type=tf.int32)
    picked = tf.one_hot(best, CELLS * CELLS)  # a product in place of a gather, which not every delegate has
    down = tf.reduce_sum(picked * tf.transpose(moves[:, :17]), axis=1)
    right = tf.reduce_sum(picked * tf.transpose(moves[:, 17:]), axis=1)
    row, column = tf.cast(best // CELLS, tf.float32), tf.cast(best % CELLS, tf.float32)
    y, x = ((cell * STRIDE + move) / POSE_SIZE for cell, move in ((row, down), (column, right)))
    return tf.reshape(tf.stack([y, x, tf.sigmoid(tf.reduce_max(flat, axis=0))], axis=-1), (1, 1, 17, 3))


POSE_MANIFEST = """description = "The points of one drawn person, as PoseNet or as MoveNet answers."
license = "Apache-2.0"
task = "pose-estimation"
default_version = "tflite"

[image]
mean = 127.5                   # of the float versions; the other one takes bytes
std = 127.5
resize = "letterbox"

[versions.tflite]
file = "poses.tflite"
[versions.tflite.evaluation]
$tflite

[versions.onnx]
file = "poses.onnx"
[versions.onnx.evaluation]
$onnx

[versions.tflite-points]
file = "poses.points.tflite"
[versions.tflite-points.evaluation]
$points
"""


def make_poses(steps: int = 7000, pictures: int = 14000) -> None:
    network = Network()
    train("poses", network, pose_loss(network), pose_data(pictures, SEED), steps)
    folder = emptied("poses")
    float_input = tf.TensorSpec((1, POSE_SIZE, POSE_SIZE, 3), tf.float32, name="image")
    named = lambda x: dict(zip(("heatmaps", "offsets"), pose_layers(network, x)))  # noqa: E731
    to_tflite(folder / "poses.tflite", network, named, float_input)
    bytes_input = tf.TensorSpec((1, POSE_SIZE, POSE_SIZE, 3), tf.uint8, name="image")
    points = lambda x: {"output_0": points_of(*pose_layers(network, tf.cast(x, tf.float32) / 127.5 - 1))}  # noqa: E731
    to_tflite(folder / "poses.points.tflite", network, points, bytes_input)
    maps = [("heatmaps", (1, CELLS, CELLS, 17)), ("offsets", (1, CELLS, CELLS, 34))]
    to_onnx(folder / "poses.onnx", network, pose_layers, (1, 3, POSE_SIZE, POSE_SIZE), maps)
    (folder / "model.toml").write_text(Template(POSE_MANIFEST).substitute(tflite="", onnx="", points=""))
    found = {version: measured_points(folder, version) for version in ("tflite", "onnx", "tflite-points")}
    tables = {name.split("-")[-1]: evaluation("pck_0.2_torso", value) for name, value in found.items()}
    (folder / "model.toml").write_text(Template(POSE_MANIFEST).substitute(tables))
    card(
        folder,
        "The points of a drawn person",
        f"{found['tflite']:.3f} of the points of {scores.HELD_OUT} held-out drawings lie within a fifth of the torso's length of "
        f"where they belong (PCK@0.2; `onnx` {found['onnx']:.3f}, `tflite-points` {found['tflite-points']:.3f}; pointing at "
        f"the average place of each point would score {scores.average_pose():.3f}).",
        "It knows the drawn people of the recipe: one on a picture, whole, facing the viewer, head up, in colour. It says nothing "
        "about photos.",
    )


def measured_points(folder: Path, version: str) -> float:
    """PCK@0.2 of the server's answers."""
    query = {"version": version, "threshold": "0"}
    return float(np.mean([scores.close(scores.points_of(ask(folder, body, query)[0]), truth) for body, truth in scores.people()]))


# --- shapes ------------------------------------------------------------------------------------------------------

SHAPES_SIZE = (128, 96)
STRIDES = (8, 16)
SCALES = ((0.2, (0.2 * 0.4) ** 0.5), (0.4, 0.4**0.5))
"""Two anchors a cell, as ratios of the input: the layer's own scale, and the mean of that and the next one's."""

BOX_SCALE = np.array([10, 10, 5, 5], np.float32)
GREY = 114


def shapes_layers(net: Network | OnnxNetwork, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = net.relu(net.conv(x, "a", 16, step=2))
    x = net.relu(net.conv(x, "b", 24, step=2))
    x = net.relu(net.conv(x, "c", 40, step=2))
    for name in ("d", "e"):
        x = net.add(x, net.relu(net.conv(x, name, 40)))
    y = net.relu(net.conv(x, "f", 48, step=2))
    y = net.add(y, net.relu(net.conv(y, "g", 48)))
    boxes = [net.rows(net.conv(part, f"boxes {name}", 8), 4) for name, part in (("x", x), ("y", y))]
    scores = [net.rows(net.conv(part, f"scores {name}", 8), 4) for name, part in (("x", x), ("y", y))]
    return net.join(boxes), net.join(scores)


def anchors() -> np.ndarray:
    """[480, (center y, center x, height, width)] as ratios."""
    rows = []
    for stride, scales in zip(STRIDES, SCALES):
        columns, lines = SHAPES_SIZE[0] // stride, SHAPES_SIZE[1] // stride
        for line in range(lines):
            for column in range(columns):
                rows += [((line + 0.5) / lines, (column + 0.5) / columns, scale, scale) for scale in scales]
    return np.array(rows, np.float32)


def shapes_data(count: int, seed: int) -> list[np.ndarray]:
    """Pictures uint8 [n, 96, 128, 3], raw boxes [n, 480, 4], and the class of each anchor [n, 480]: -1 is none, -2 counts
    neither way."""
    rng = np.random.default_rng(seed)
    fixed = anchors()
    pictures = np.zeros((count, SHAPES_SIZE[1], SHAPES_SIZE[0], 3), np.uint8)
    raw, kinds = np.zeros((count, len(fixed), 4), np.float32), np.full((count, len(fixed)), -1, np.int8)
    for row in range(count):
        picture, found = drawings.objects(rng, *scores.any_size(rng, 160))
        pictures[row], scale, corner = boxed(picture, *SHAPES_SIZE, GREY)
        for kind, box in found:
            left, top, right, bottom = (np.array(box) * scale + [*corner, *corner]) / [*SHAPES_SIZE, *SHAPES_SIZE]
            shares = _overlaps(fixed, np.array([top, left, bottom, right]))
            kinds[row, (shares > 0.35) & (kinds[row] < 0)] = -2
            mine = (shares > 0.5) | (shares == shares.max())
            kinds[row, mine] = kind
            center = [(top + bottom) / 2, (left + right) / 2]
            moved = (center - fixed[mine, :2]) / fixed[mine, 2:]
            raw[row, mine] = np.concatenate([moved, np.log([bottom - top, right - left] / fixed[mine, 2:])], 1) * BOX_SCALE
    return [pictures, raw, kinds]


def _overlaps(boxes: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Intersection over union of anchors with one (top, left, bottom, right)."""
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    shared = np.clip(np.minimum(high, one[2:]) - np.maximum(low, one[:2]), 0, None).prod(1)
    return shared / (boxes[:, 2:].prod(1) + (one[2:] - one[:2]).prod() - shared)


def shapes_loss(network: Network) -> Callable[..., tf.Tensor]:
    def loss(pictures: tf.Tensor, raw: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
        boxes, scores = shapes_layers(network, pictures / 255)
        wanted = tf.one_hot(tf.cast(kinds, tf.int32), len(drawings.SHAPES))
        counts = tf.cast(kinds != -2, tf.float32)[..., None]
        probability = tf.sigmoid(scores)
        # Focal: the many easy anchors of the ground do not drown the few of objects.
        wrong = wanted * (1 - probability) + (1 - wanted) * probability
        crossed = tf.nn.sigmoid_cross_entropy_with_logits(wanted, scores) * wrong * wrong * counts
        there = tf.cast(kinds >= 0, tf.float32)
        number = tf.reduce_sum(there)
        off = tf.reduce_sum(tf.abs(boxes - raw), axis=-1) * there
        return (tf.reduce_sum(crossed) * 2 + 0.3 * tf.reduce_sum(off)) / number

    return loss


def yolo_rows(boxes: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """[1, 8, 480]: center x, center y, width and height in pixels of the input, then a probability a class."""
    fixed, scaled = anchors()[None], boxes / BOX_SCALE
    center = scaled[..., :2] * fixed[..., 2:] + fixed[..., :2]
    size = tf.exp(scaled[..., 2:]) * fixed[..., 2:]
    columns = [center[..., 1], center[..., 0], size[..., 1], size[..., 0]]
    pixels = tf.stack(columns, axis=1) * np.array([*SHAPES_SIZE, *SHAPES_SIZE], np.float32)[None, :, None]
    return tf.concat([pixels, tf.transpose(tf.sigmoid(scores), (0, 2, 1))], axis=1)


SHAPES_MANIFEST = """description = "Circles, squares, stars and triangles: raw boxes and scores of a single-shot detector."
license = "Apache-2.0"
task = "object-detection"
labels = "labels.txt"

[image]
resize = "letterbox"
fill = 114

[detection]
format = "ssd"
boxes = "boxes"
scores = "scores"
activation = "sigmoid"

[detection.anchors]
strides = [8, 16]
min_scale = 0.2
max_scale = 0.4
aspect_ratios = [1]
reduce_lowest = false

[versions.tflite]
file = "shapes.tflite"
[versions.tflite.evaluation]
$tflite

[versions.onnx]
file = "shapes.onnx"
[versions.onnx.evaluation]
$onnx
"""

YOLO_MANIFEST = """description = "Circles, squares, stars and triangles; the file itself says how it is asked."
license = "Apache-2.0"

[versions.tflite]
file = "shapes-yolo.tflite"
[versions.tflite.evaluation]
$tflite
"""


def make_shapes(steps: int = 3500, pictures: int = 6000) -> None:
    network = Network()
    train("shapes", network, shapes_loss(network), shapes_data(pictures, SEED), steps)
    picture = tf.TensorSpec((1, SHAPES_SIZE[1], SHAPES_SIZE[0], 3), tf.float32, name="image")
    folder, yolo = emptied("shapes"), emptied("shapes-yolo")
    named = lambda x: dict(zip(("boxes", "scores"), shapes_layers(network, x)))  # noqa: E731
    to_tflite(folder / "shapes.tflite", network, named, picture)
    outputs = [("boxes", (1, len(anchors()), 4)), ("scores", (1, len(anchors()), len(drawings.SHAPES)))]
    to_onnx(folder / "shapes.onnx", network, shapes_layers, (1, 3, *SHAPES_SIZE[::-1]), outputs)
    (folder / "labels.txt").write_text("\n".join(drawings.SHAPES) + "\n")
    rows = lambda x: {"output0": yolo_rows(*shapes_layers(network, x))}  # noqa: E731
    to_tflite(yolo / "shapes-yolo.tflite", network, rows, picture)
    say_what_it_is(yolo / "shapes-yolo.tflite")
    found: dict[str, float] = {}
    for there, text, version in ((folder, SHAPES_MANIFEST, "tflite"), (folder, SHAPES_MANIFEST, "onnx"), (yolo, YOLO_MANIFEST, "tflite")):
        (there / "model.toml").write_text(Template(text).substitute(tflite="", onnx=""))
        found[f"{there.name}/{version}"] = measured_boxes(there, version)
    tables = {version: evaluation("mAP_0.5", found[f"shapes/{version}"]) for version in ("tflite", "onnx")}
    (folder / "model.toml").write_text(Template(SHAPES_MANIFEST).substitute(tables))
    table = evaluation("mAP_0.5", found["shapes-yolo/tflite"])
    (yolo / "model.toml").write_text(Template(YOLO_MANIFEST).substitute(tflite=table))
    limits = "It knows flat shapes in bright colours, with a diameter of about a quarter to a half of the picture's shorter side."
    card(
        folder,
        "Shapes, by anchors",
        f"Mean average precision at an overlap of 0.5 on {scores.HELD_OUT} held-out drawings: {found['shapes/tflite']:.3f} "
        f"(`onnx` {found['shapes/onnx']:.3f}). Anchors, suppression and letterbox are the server's.",
        limits,
    )
    card(
        yolo,
        "Shapes, in YOLO's layout",
        f"Mean average precision at an overlap of 0.5 on {scores.HELD_OUT} held-out drawings: {found['shapes-yolo/tflite']:.3f}. "
        "The network is that of `shapes`; the file has the outputs and the metadata of Ultralytics' exports, and needs no "
        "manifest.",
        limits,
    )


def say_what_it_is(path: Path) -> None:
    """Appends the archive with ``metadata.json`` that Ultralytics' exporter appends to a TFLite file."""
    names = {str(number): name for number, name in enumerate(drawings.SHAPES)}
    said = {"task": "detect", "stride": 32, "imgsz": list(SHAPES_SIZE[::-1]), "names": names, "batch": 1}
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo("metadata.json"), json.dumps(said))


def measured_boxes(folder: Path, version: str) -> float:
    """Mean average precision of the server's answers."""
    query = {"version": version, "threshold": "0.05"}
    return scores.mean_precision([(ask(folder, body, query), truth) for body, truth in scores.objects()])


# --- measuring and writing ---------------------------------------------------------------------------------------


def ask(folder: Path, body: bytes, query: dict[str, str]) -> list[dict]:
    """What the server's own task answers to a picture file."""
    if folder not in _SERVICES:
        _SERVICES[folder] = open_local(str(folder), None, threads=1)
    service, name, _ = _SERVICES[folder]
    asked = ApiRequest(path={"model": name}, query=query, body=memoryview(body))
    return predictions.document(predictions.ask(service, asked))["predictions"]


_SERVICES: dict = {}


def emptied(name: str) -> Path:
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder


def evaluation(metric: str, value: float) -> str:
    return f'dataset = "{scores.HELD_OUT} held-out drawings"\nmetric = "{metric}"\nvalue = {value:.3f}'


CARD = Template("""# $title

$quality

$limits

Trained on pictures that `models/recipes/drawings.py` draws, seed 0, by `models/recipes/figures.py`; Apache-2.0. The same
recipe writes this folder.
""")


def card(folder: Path, title: str, quality: str, limits: str) -> None:
    (folder / "README.md").write_text(CARD.substitute(title=title, quality=quality, limits=limits), encoding="utf-8")
    print(quality, flush=True)


if __name__ == "__main__":
    tf.keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    makers = {"poses": make_poses, "shapes": make_shapes}
    for wanted in sys.argv[1:] or makers:
        makers[wanted]()
