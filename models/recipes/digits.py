"""Trains the digits CNN in PyTorch, converts it to every other format, measures all versions, writes the folder.

Run from the repository root: python -m models.recipes.digits [--train]
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes import formats
from models.recipes.datasets import digits_split

import math
from pathlib import Path

import numpy as np
import tensorflow as tf
import torch
from PIL import Image
from torch.nn import functional

from models.digits.model import Digits, build

FOLDER = common.MODELS / "digits"
EPOCHS = 80
BATCH = 64
PEAK_RATE = 5e-3
WEIGHT_DECAY = 1e-2
LABEL_SMOOTHING = 0.05
CALIBRATION_EXAMPLES = 300
ROTATION, ZOOM, SHIFT = math.radians(10), 0.10, 1.0  # at most: angle, share of the size, pixels
WARPED_SHARE, GAIN, NOISE = 0.8, 0.15, 0.04
SAMPLE_SIDE = 64
DATASET = "scikit-learn digits, held-out 25 % (seed 0)"
TAKES = common.Tensor("image", "FP32", (-1, 8, 8, 1))
GIVES = common.Tensor("scores", "FP32", (-1, 10))
INT8 = common.Version("tflite-int8", "digits.int8.tflite", 5e-2)
VERSIONS = common.versions("digits", 1e-5)
VERSIONS.insert(1, INT8)


def augment(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Moves, turns and resizes most pictures a little; changes brightness and adds noise to all of them."""

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=random) * 2 - 1

    count = len(images)
    warped = (torch.rand(count, generator=random) < WARPED_SHARE).float()
    angle = uniform(count) * ROTATION * warped
    zoom = 1 + uniform(count) * ZOOM * warped
    move = uniform(2, count) * (2 * SHIFT / 8) * warped  # affine_grid counts the picture as 2 units wide
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    matrix = torch.stack([torch.stack([cos, -sin, move[0]], 1), torch.stack([sin, cos, move[1]], 1)], 1)
    grid = functional.affine_grid(matrix, [count, 1, 8, 8], align_corners=False)
    moved = functional.grid_sample(images.permute(0, 3, 1, 2), grid, align_corners=False).permute(0, 2, 3, 1)
    noise = torch.randn(moved.shape, generator=random) * NOISE
    return (moved * (1 + uniform(count, 1, 1, 1) * GAIN) + noise).clamp(0, 1)


def train(x: np.ndarray, y: np.ndarray) -> Digits:
    """A fixed number of epochs, last weights kept: nothing is chosen by looking at the test examples."""
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    random = torch.Generator().manual_seed(common.SEED)
    module = build()
    optimizer = torch.optim.AdamW(module.parameters(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=random).split(BATCH):
            loss = functional.cross_entropy(
                module.logits(augment(images[rows], random)), labels[rows], label_smoothing=LABEL_SMOOTHING
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1:3d}  loss {loss.item():.3f}")
    return module.eval()


def keras_twin(module: Digits, for_tflite: bool) -> tf.keras.Model:
    """The same network in Keras with the trained weights. Keras stores kernels as height, width, in, out."""
    layers = tf.keras.layers
    last = "dense" if for_tflite else GIVES.name
    image = tf.keras.Input((8, 8, 1), name=TAKES.name)
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1")(image)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(64, 3, padding="same", activation="relu", name="conv3")(x)
    x = layers.MaxPooling2D(2)(x)
    # In TFLite, Flatten would compute the shape in three more operators. TensorFlow.js has it, but not this reshape.
    x = tf.keras.ops.reshape(x, (-1, 2 * 2 * 64)) if for_tflite else layers.Flatten()(x)
    x = layers.Dense(10, activation="softmax", name=last)(x)
    twin = tf.keras.Model(image, x) if for_tflite else tf.keras.Model(image, x, name="digits")
    weights = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    for name in ("conv1", "conv2", "conv3"):
        kernel = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
        twin.get_layer(name).set_weights([kernel, weights[f"{name}.bias"]])
    twin.get_layer(last).set_weights([weights["dense.weight"].T, weights["dense.bias"]])
    return twin


def write_samples(x_test: np.ndarray, y_test: np.ndarray) -> None:
    """The first test example of every digit, right or wrong, as a 64 x 64 grey PNG."""
    folder = FOLDER / "samples"
    folder.mkdir(exist_ok=True)
    for digit in range(10):
        pixels = np.rint(x_test[np.argmax(y_test == digit), :, :, 0] * 255).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.NEAREST)
        picture.save(folder / f"{digit}.png", optimize=True)


def read_sample(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        small = picture.convert("L").resize((8, 8), Image.Resampling.BOX)
    return np.asarray(small, np.float32)[np.newaxis, :, :, np.newaxis] / 255


def shifted(x: np.ndarray, down: int, right: int) -> np.ndarray:
    """Moves the pictures; what leaves the frame is lost, what enters is dark."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.ascontiguousarray(padded[:, 1 - down : 9 - down, 1 - right : 9 - right])


def shrunk(x: np.ndarray, side: int) -> np.ndarray:
    """Draws the digits smaller, in the middle of a dark frame."""
    result = np.zeros_like(x)
    start = (8 - side) // 2
    for image, target in zip(x, result, strict=True):
        small = Image.fromarray(image[:, :, 0]).resize((side, side), Image.Resampling.BILINEAR)
        target[start : start + side, start : start + side, 0] = np.asarray(small)
    return result


def measure(predict: common.Predict, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    moves = [(1, 0), (-1, 0), (0, 1), (0, -1)]
    return {
        "accuracy": common.accuracy(predict(x_test), y_test),
        "shifted": float(np.mean([common.accuracy(predict(shifted(x_test, *m)), y_test) for m in moves])),
        "shrunk": common.accuracy(predict(shrunk(x_test, 6)), y_test),
        "tiny": common.accuracy(predict(shrunk(x_test, 4)), y_test),
    }


def rows(predictors: dict[str, common.Predict], x_test: np.ndarray, y_test: np.ndarray) -> dict[str, list[str]]:
    """Every version's figures for the card: first the accuracy, which the manifest states too."""
    scores = {name: predict(x_test) for name, predict in predictors.items()}
    reference = scores["tflite"].argmax(1)
    differences = common.differences(scores, VERSIONS)
    table = {}
    for version in VERSIONS:
        answers = scores[version.name].argmax(1)
        measured = [f"{value:.4f}" for value in measure(predictors[version.name], x_test, y_test).values()]
        changed = str(int((answers != reference).sum()))
        mistakes = str(int((answers != y_test).sum()))
        distance = f"{differences[version.name]:.1e}" if version.tolerance else ""
        table[version.name] = [measured[0], mistakes, *measured[1:], changed, distance, common.show_tolerance(version)]
    return table


def describe_mistakes(scores: np.ndarray, y_test: np.ndarray) -> str:
    wrong = np.flatnonzero(scores.argmax(1) != y_test)
    return ", ".join(f"{y_test[i]} read as {scores[i].argmax()}" for i in wrong) or "none"


def describe_samples(predictors: dict[str, common.Predict]) -> str:
    """Says in one sentence which samples come out wrong."""
    pictures = np.concatenate([read_sample(FOLDER / "samples" / f"{digit}.png") for digit in range(10)])
    wrong = []
    for name, predict in predictors.items():
        answers = predict(pictures).argmax(axis=1)
        wrong += [f"`{digit}.png` as {answer} ({name})" for digit, answer in enumerate(answers) if digit != answer]
    if not wrong:
        return "All versions read all ten correctly."
    return f"Not all of them are read correctly: {', '.join(wrong)}."


def begin() -> None:
    """Trains, and writes the weights and the TFLite files."""
    x_train, y_train, x_test, y_test = digits_split()
    module = train(x_train, y_train)
    common.save_torch(module, FOLDER / "weights.safetensors")
    twin = keras_twin(module, for_tflite=True)
    (FOLDER / "digits.tflite").write_bytes(common.to_tflite(twin, GIVES.name))
    (FOLDER / INT8.file).write_bytes(common.to_tflite(twin, GIVES.name, x_train[:CALIBRATION_EXAMPLES]))
    (FOLDER / "labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)), encoding="utf-8")
    write_samples(x_test, y_test)


def convert() -> None:
    """Makes the other formats from the weights, measures all versions and writes manifest and card."""
    module = common.load_torch(build(), FOLDER)
    formats.write_torch_formats(module, FOLDER, TAKES, GIVES)
    twin = keras_twin(module, for_tflite=False)
    common.save_keras(twin, FOLDER / "digits.keras")
    formats.write_keras_formats(twin, FOLDER, TAKES, GIVES)

    _, y_train, x_test, y_test = digits_split()
    predictors = {version.name: common.predictor(FOLDER, version, TAKES, GIVES) for version in VERSIONS}
    scores = predictors["tflite"](x_test)
    table = rows(predictors, x_test, y_test)
    accuracies = {name: figures[0] for name, figures in table.items()}
    values = {
        "versions": common.version_tables(VERSIONS, DATASET, "accuracy", accuracies),
        "rows": common.card_rows(FOLDER, VERSIONS, table),
        "mistakes": describe_mistakes(scores, y_test),
        "samples": describe_samples(predictors),
        "test_count": str(len(y_test)),
        "train_count": str(len(y_train)),
        "parameters": f"{sum(p.numel() for p in module.parameters()):,}",
        "epochs": str(EPOCHS),
        "calibration": str(CALIBRATION_EXAMPLES),
        "score_empty": f"{predictors['tflite'](np.zeros_like(x_test)).max():.2f}",
        "score_median": f"{np.median(scores.max(axis=1)):.2f}",
        "most_rows": str(formats.MOST_ROWS),
    }
    common.write_texts(FOLDER, values)
    for name, value in values.items():
        print(f"{name:14} {value}")


if __name__ == "__main__":
    common.start(begin, convert)
