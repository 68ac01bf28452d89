"""Trains the detector of digits in PyTorch, converts it, measures all versions, writes the folder.

Run from the repository root: python -m models.recipes.numbers [--train]
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes import formats

import io
from pathlib import Path

import numpy as np
import onnx
import tensorflow as tf
import torch
from PIL import Image
from pocketserve_lab.compare.detections import f1, precision_figures

from models.numbers.model import LARGEST, SIDE, STRIDES, Numbers, build
from models.recipes import number_pages, number_training
from models.recipes.figure_networks import Network, to_tflite
from models.recipes.figures import ask

FOLDER = common.MODELS / "numbers"
PAGES, STEPS = 12000, 5595
PAGE_SEEDS = (1, 2, 3, 4)
HELD_OUT, HELD_OUT_SEED = 300, 3
SIZES = (0, 12, 20, 40, 1000)
"""Heights of digits in pixels of the input, from and to which the card tells how many are found."""

SAMPLES = {"note": 115, "page": 109, "sign": 113}
DATASET = f"{HELD_OUT} generated pages, held-out fonts and handwriting (seed {HELD_OUT_SEED})"
TAKES = common.Tensor("image", "FP32", (1, SIDE, SIDE, 3))
GIVES = common.Tensor("rows", "FP32", (1, 14, sum((SIDE // stride) ** 2 for stride in STRIDES)))
WEIGHTS = {"weights": "weights.safetensors", "function": "build"}
VERSIONS = [
    common.Version("tflite", "numbers.tflite", None),
    common.Version("onnx", "numbers.onnx", 0.05),
    common.Version("torch", "model.py", 0.05, WEIGHTS, "weights.safetensors"),
]

Pages = list[tuple[bytes, list[number_pages.Entry]]]


def begin() -> None:
    """Trains, and writes the weights in half precision."""
    parts = [number_training.draw_pages(PAGES // len(PAGE_SEEDS), seed) for seed in PAGE_SEEDS]
    module = number_training.train(tuple(np.concatenate(part) for part in zip(*parts)), STEPS)
    common.save_torch(module.half(), FOLDER / "weights.safetensors")
    (FOLDER / "labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)), encoding="utf-8")


# --- The same network for TFLite ---------------------------------------------------------------------------------


def tflite_network(module: Numbers) -> Network:
    network = Network()
    for name, child in module.named_children():
        kernel = child.weight.detach().numpy().transpose(2, 3, 1, 0)
        network.weights[name] = (tf.Variable(kernel), tf.Variable(child.bias.detach().numpy()))
    return network


def tflite_rows(net: Network, image: tf.Tensor) -> tf.Tensor:
    """The network of ``models/numbers/model.py``, NHWC."""

    def conv(x: tf.Tensor, name: str, **options: int) -> tf.Tensor:
        return net.relu(net.conv(x, name, 0, **options))

    def doubled(x: tf.Tensor) -> tf.Tensor:
        return tf.image.resize(x, (x.shape[1] * 2, x.shape[2] * 2), "nearest")

    x = conv(conv(conv(image, "a", step=2), "b", step=2), "c", step=2)
    for name in "de":
        x = x + conv(x, name)
    y = conv(x, "f", step=2)
    for name in "gh":
        y = y + conv(y, name)
    z = conv(y, "i", step=2)
    z = z + conv(z, "j")
    y = y + doubled(net.conv(z, "k", 0))
    y = y + conv(y, "l")
    x = x + doubled(net.conv(y, "m", 0))
    x = x + conv(x, "n")
    columns = [_columns(net.conv(part, name, 0), stride) for part, name, stride in zip((x, y, z), HEADS, STRIDES)]
    return tf.transpose(tf.concat(columns, 1), (0, 2, 1))


HEADS = ("fine", "middle", "coarse")


def _columns(raw: tf.Tensor, stride: int) -> tf.Tensor:
    side = SIDE // stride
    at = (np.arange(side, dtype=np.float32) + 0.5) * stride
    center = np.stack(np.meshgrid(at, at), axis=-1).reshape(1, side * side, 2)
    rows = tf.reshape(raw, (1, side * side, 14))
    size = tf.exp(rows[..., 2:4]) * (stride * LARGEST)
    return tf.concat([center + rows[..., :2] * stride, size, tf.sigmoid(rows[..., 4:])], 2)


def halve_weights(path: Path) -> None:
    """Keeps an ONNX file's weights in half precision, which its runtime widens once, when it loads them."""
    model = onnx.load(path)
    casts = []
    for constant in model.graph.initializer:
        values = onnx.numpy_helper.to_array(constant)
        if values.dtype == np.float32 and np.array_equal(values, values.astype(np.float16)) and values.size > 64:
            name = constant.name
            constant.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
            casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


# --- Measuring ---------------------------------------------------------------------------------------------------


def measured(version: str, pages: Pages) -> dict[str, float]:
    """Return mean average precision, by the server's own task and the measure of ``pocketserve compare``."""
    answers = [number_pages.flat(ask(FOLDER, body, {"version": version, "threshold": "0.02"})) for body, _ in pages]
    return precision_figures(answers, [truth for _, truth in pages])


def found_by_size(pages: Pages) -> list[str]:
    """Return rows of the card: heights on the input, digits of that height, and the share found with its label."""
    counts = np.zeros((len(SIZES) - 1, 2), int)
    for body, truth in pages:
        answer = number_pages.flat(ask(FOLDER, body, {}))
        with Image.open(io.BytesIO(body)) as picture:
            scale = SIDE / max(picture.size)
        for entry in truth:
            place = np.searchsorted(SIZES, entry["height"] * scale) - 1
            counts[place] += 1, f1([one for one in answer if one["label"] == entry["label"]], [entry]) > 0
    names = [f"{low} to {high}" for low, high in zip(SIZES, SIZES[1:])]
    names[0], names[-1] = f"below {SIZES[1]}", f"above {SIZES[-2]}"
    return [f"| {name} | {total} | {found / max(1, total):.3f} |" for name, (total, found) in zip(names, counts)]


def write_samples() -> None:
    folder = FOLDER / "samples"
    folder.mkdir(exist_ok=True)
    for name, seed in SAMPLES.items():
        picture, _ = number_pages.page(np.random.default_rng(seed), 640, 480, held_out=True)
        (folder / f"{name}.jpg").write_bytes(number_pages.as_jpeg(picture))


def convert() -> None:
    """Makes the other formats from the weights, measures all versions and writes manifest and card."""
    module = common.load_torch(build(), FOLDER)
    write_samples()
    network = tflite_network(module)
    picture = tf.TensorSpec(TAKES.shape, tf.float32, name=TAKES.name)
    to_tflite(FOLDER / "numbers.tflite", network, lambda image: {GIVES.name: tflite_rows(network, image)}, picture)
    formats.write_onnx(module, FOLDER / "numbers.onnx", (torch.zeros(TAKES.shape),), TAKES.name, GIVES.name)
    halve_weights(FOLDER / "numbers.onnx")

    pages = number_pages.photos(HELD_OUT, HELD_OUT_SEED)
    x = np.stack([number_training.boxed(Image.open(io.BytesIO(body)))[0] for body, _ in pages[:20]]).astype(np.float32)
    answers = {}
    for version in VERSIONS:
        run = common.opened(FOLDER, version, TAKES, GIVES)
        answers[version.name] = np.concatenate([run(row[None] / 255) for row in x])
    differences = common.differences(answers, VERSIONS)
    unmeasured = common.version_tables(VERSIONS, DATASET, "mAP_0.5", dict.fromkeys(answers, "0"))
    common.write_text(FOLDER, "model.toml", {"versions": unmeasured})
    figures = {version.name: measured(version.name, pages) for version in VERSIONS}
    rows = {
        name: [
            f"**{figure['mAP at 0.5']:.3f}**",
            f"{figure['mAP']:.3f}",
            f"{differences[name]:.1e}" if name != "tflite" else "",
        ]
        for name, figure in figures.items()
    }
    named = {name: f"{figure['mAP at 0.5']:.3f}" for name, figure in figures.items()}
    values = {
        "versions": common.version_tables(VERSIONS, DATASET, "mAP_0.5", named),
        "rows": common.card_rows(FOLDER, VERSIONS, rows),
        "sizes": "\n".join(found_by_size(pages)),
        "test_count": str(HELD_OUT),
        "digit_count": f"{sum(len(truth) for _, truth in pages):,}",
        "pages": f"{PAGES:,}",
        "steps": f"{STEPS:,}",
        "batch": str(number_training.BATCH),
        "parameters": f"{sum(p.numel() for p in module.parameters()):,}",
    }
    common.write_texts(FOLDER, values)
    for name, value in values.items():
        print(f"{name:14} {value}")


if __name__ == "__main__":
    common.start(begin, convert)
