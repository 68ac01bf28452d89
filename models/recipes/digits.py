"""Trains the digits CNN in PyTorch, converts it to TFLite (float and int8), measures all three, writes the folder.

Run from the repository root: python -m models.recipes.digits
"""

from models.recipes import common  # first: it prepares the frameworks
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
LIMITS = {"torch": 1e-6, "tflite": 1e-5, "int8": 0.2}  # how far a score may be from the trained module's


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


def keras_twin(module: Digits) -> tf.keras.Model:
    """The same network in Keras with the trained weights. Keras stores kernels as height, width, in, out."""
    layers = tf.keras.layers
    image = tf.keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1")(image)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(64, 3, padding="same", activation="relu", name="conv3")(x)
    x = layers.MaxPooling2D(2)(x)
    x = tf.keras.ops.reshape(x, (-1, 2 * 2 * 64))  # Flatten computes the shape in three more operators
    x = layers.Dense(10, activation="softmax", name="dense")(x)
    twin = tf.keras.Model(image, x)
    weights = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    for name in ("conv1", "conv2", "conv3"):
        kernel = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
        twin.get_layer(name).set_weights([kernel, weights[f"{name}.bias"]])
    twin.get_layer("dense").set_weights([weights["dense.weight"].T, weights["dense.bias"]])
    return twin


def write_samples(x_test: np.ndarray, y_test: np.ndarray) -> list[Path]:
    """The first test example of every digit, right or wrong, as a 64 x 64 grey PNG."""
    folder = FOLDER / "samples"
    folder.mkdir(exist_ok=True)
    paths = []
    for digit in range(10):
        pixels = np.rint(x_test[np.argmax(y_test == digit), :, :, 0] * 255).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.NEAREST)
        paths.append(folder / f"{digit}.png")
        picture.save(paths[-1], optimize=True)
    return paths


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


def report(predictors: dict[str, common.Predict], x_test: np.ndarray, y_test: np.ndarray) -> dict[str, str]:
    """Every figure of the manifest and of the card, as text."""
    values = {"test_count": str(len(y_test))}
    reference = predictors["torch"](x_test)
    for name, predict in predictors.items():
        scores = predict(x_test)
        for key, value in measure(predict, x_test, y_test).items():
            values[f"{key}_{name}"] = f"{value:.4f}"
        values[f"errors_{name}"] = str(int((scores.argmax(1) != y_test).sum()))
        values[f"difference_{name}"] = common.largest_difference(scores, reference, LIMITS[name])
        values[f"changed_{name}"] = str(int((scores.argmax(1) != reference.argmax(1)).sum()))
    wrong = np.flatnonzero(reference.argmax(1) != y_test)
    values["mistakes"] = ", ".join(f"{y_test[i]} read as {reference[i].argmax()}" for i in wrong) or "none"
    return values


def describe_samples(predictors: dict[str, common.Predict], paths: list[Path]) -> str:
    """Says in one sentence which samples come out wrong."""
    pictures = np.concatenate([read_sample(path) for path in paths])
    wrong = []
    for name, predict in predictors.items():
        answers = predict(pictures).argmax(axis=1)
        wrong += [f"`{digit}.png` as {answer} ({name})" for digit, answer in enumerate(answers) if digit != answer]
    if not wrong:
        return "All versions read all ten correctly."
    return f"Not all of them are read correctly: {', '.join(wrong)}."


def main() -> None:
    common.make_reproducible()
    x_train, y_train, x_test, y_test = digits_split()
    module = train(x_train, y_train)
    common.save_torch(module, FOLDER / "weights.safetensors")
    twin = keras_twin(module)
    calibration = x_train[:CALIBRATION_EXAMPLES]
    (FOLDER / "digits.tflite").write_bytes(common.to_tflite(twin, "scores"))
    (FOLDER / "digits.int8.tflite").write_bytes(common.to_tflite(twin, "scores", calibration))
    (FOLDER / "labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)), encoding="utf-8")
    samples = write_samples(x_test, y_test)

    predictors = {
        "torch": common.torch_predictor(FOLDER),
        "tflite": common.tflite_predictor(FOLDER / "digits.tflite"),
        "int8": common.tflite_predictor(FOLDER / "digits.int8.tflite"),
    }
    values = report(predictors, x_test, y_test)
    values |= {
        "train_count": str(len(y_train)),
        "parameters": f"{sum(p.numel() for p in module.parameters()):,}",
        "epochs": str(EPOCHS),
        "calibration": str(CALIBRATION_EXAMPLES),
        "score_empty": f"{predictors['tflite'](np.zeros_like(x_test)).max():.2f}",
        "score_median": f"{np.median(predictors['tflite'](x_test).max(axis=1)):.2f}",
        "samples": describe_samples(predictors, samples),
        "size_torch": common.size(FOLDER / "weights.safetensors"),
        "size_tflite": common.size(FOLDER / "digits.tflite"),
        "size_int8": common.size(FOLDER / "digits.int8.tflite"),
    }
    common.write_texts(FOLDER, values)
    for name, value in values.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
