"""Fits a linear regression on the diabetes data in PyTorch, converts it to every other format, writes the folder.

Run from the repository root: python -m models.recipes.diabetes [--train]
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes import formats
from models.recipes.datasets import diabetes_split

import numpy as np
import tensorflow as tf
import torch
from torch import nn

from models.diabetes.model import build

FOLDER = common.MODELS / "diabetes"
LBFGS_STEPS = 20
DATASET = "scikit-learn diabetes, held-out 25 % (seed 0)"
TAKES = common.Tensor("features", "FP32", (-1, 10))
GIVES = common.Tensor("progression", "FP32", (-1, 1))
VERSIONS = common.versions("diabetes", 1e-3)


def train(x: np.ndarray, y: np.ndarray) -> nn.Linear:
    """Minimises the squared error with LBFGS on all training rows at once.

    The columns differ in size by a factor of 40 (cholesterol against its logarithm), which slows any descent, so it
    works on standardised columns, in double precision, and the standardisation is folded into the weights afterwards.
    """
    features, target = torch.from_numpy(x).double(), torch.from_numpy(y).double()
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    standard = (features - mean) / deviation
    linear = nn.Linear(10, 1, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(linear.parameters(), line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(linear(standard), target)
        loss.backward()
        return loss

    for _ in range(LBFGS_STEPS):
        loss = optimizer.step(closure)
    print(f"training mean squared error {loss.item():.3f}")
    return fold(linear, mean, deviation)


@torch.no_grad()
def fold(linear: nn.Linear, mean: torch.Tensor, deviation: torch.Tensor) -> nn.Linear:
    """w . (x - mean) / deviation + b  =  (w / deviation) . x  +  (b - w . mean / deviation)"""
    raw = build()
    weight = linear.weight / deviation
    raw.weight.copy_(weight)
    raw.bias.copy_(linear.bias - weight @ mean)
    return raw


def distance_to_least_squares(module: nn.Linear, x: np.ndarray, y: np.ndarray) -> float:
    """How far the fit is from the exact solution: the largest difference between two answers to a training row."""
    table = np.column_stack([x.astype(np.float64), np.ones(len(x))])
    exact = table @ np.linalg.lstsq(table, y.astype(np.float64), rcond=None)[0]
    with torch.inference_mode():
        return float(np.abs(module(torch.from_numpy(x)).numpy() - exact).max())


def keras_twin(module: nn.Linear, name: str | None = None) -> tf.keras.Model:
    features = tf.keras.Input((10,), name=TAKES.name)
    dense = tf.keras.layers.Dense(1, name=GIVES.name)
    twin = tf.keras.Model(features, dense(features), name=name)
    dense.set_weights([module.weight.detach().numpy().T, module.bias.detach().numpy()])
    return twin


def begin() -> None:
    """Trains, and writes the weights and the TFLite files."""
    x_train, y_train, _, _ = diabetes_split()
    module = train(x_train, y_train)
    common.save_torch(module, FOLDER / "weights.safetensors")
    (FOLDER / "diabetes.tflite").write_bytes(common.to_tflite(keras_twin(module), GIVES.name))


def convert() -> None:
    """Makes the other formats from the weights, measures all versions and writes manifest and card."""
    x_train, y_train, x_test, y_test = diabetes_split()
    module = common.load_torch(build(), FOLDER)
    distance = distance_to_least_squares(module, x_train, y_train)
    assert distance < 0.01, f"LBFGS has not converged: {distance}"
    formats.write_torch_formats(module, FOLDER, TAKES, GIVES)
    twin = keras_twin(module, "diabetes")
    common.save_keras(twin, FOLDER / "diabetes.keras")
    formats.write_keras_formats(twin, FOLDER, TAKES, GIVES)

    predictors = {version.name: common.predictor(FOLDER, version, TAKES, GIVES) for version in VERSIONS}
    answers = {name: predict(x_test) for name, predict in predictors.items()}
    guess = np.full_like(y_test, y_train.mean())
    values = {
        **common.regression_texts(FOLDER, VERSIONS, DATASET, answers, y_test),
        "train_count": str(len(y_train)),
        "test_count": str(len(y_test)),
        "target_low": f"{y_train.min():.0f}",
        "target_high": f"{y_train.max():.0f}",
        "error_guess": f"{common.mean_absolute_error(guess, y_test):.4f}",
        "error_train": f"{common.mean_absolute_error(predictors['torch'](x_train), y_train):.4f}",
        "share_far": f"{(np.abs(answers['torch'] - y_test) > 50).mean() * 100:.0f}",
        "r2": f"{common.r_squared(answers['torch'], y_test):.3f}",
        "example": " ".join(f"{value:g}" for value in x_test[0]),
        "example_answer": f"{answers['tflite'][0, 0]:.1f}",
        "example_truth": f"{y_test[0, 0]:.0f}",
        "most_rows": str(formats.MOST_ROWS),
    }
    common.write_texts(FOLDER, values)
    for name, value in {"distance to least squares": f"{distance:.1e}", **values}.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    common.start(begin, convert)
