"""Fits a linear regression on the diabetes data in PyTorch, converts it to TFLite, measures both, writes the folder.

Run from the repository root: python -m models.recipes.diabetes
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes.datasets import diabetes_split

import numpy as np
import tensorflow as tf
import torch
from torch import nn

from models.diabetes.model import build

FOLDER = common.MODELS / "diabetes"
LBFGS_STEPS = 20


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


def keras_twin(module: nn.Linear) -> tf.keras.Model:
    features = tf.keras.Input((10,), name="features")
    dense = tf.keras.layers.Dense(1, name="progression")
    twin = tf.keras.Model(features, dense(features))
    dense.set_weights([module.weight.detach().numpy().T, module.bias.detach().numpy()])
    return twin


def main() -> None:
    common.make_reproducible()
    x_train, y_train, x_test, y_test = diabetes_split()
    module = train(x_train, y_train)
    distance = distance_to_least_squares(module, x_train, y_train)
    assert distance < 0.01, f"LBFGS has not converged: {distance}"
    common.save_torch(module, FOLDER / "weights.safetensors")
    (FOLDER / "diabetes.tflite").write_bytes(common.to_tflite(keras_twin(module), "progression"))

    predictors = {
        "torch": common.torch_predictor(FOLDER),
        "tflite": common.tflite_predictor(FOLDER / "diabetes.tflite"),
    }
    answers = {name: predict(x_test) for name, predict in predictors.items()}
    guess = np.full_like(y_test, y_train.mean())
    values = {
        "train_count": str(len(y_train)),
        "test_count": str(len(y_test)),
        "target_low": f"{y_train.min():.0f}",
        "target_high": f"{y_train.max():.0f}",
        "error_guess": f"{common.mean_absolute_error(guess, y_test):.4f}",
        "error_train": f"{common.mean_absolute_error(predictors['torch'](x_train), y_train):.4f}",
        "share_far": f"{(np.abs(answers['torch'] - y_test) > 50).mean() * 100:.0f}",
        "r2": f"{common.r_squared(answers['torch'], y_test):.3f}",
        "difference": common.largest_difference(answers["tflite"], answers["torch"], 1e-3),
        "example": " ".join(f"{value:g}" for value in x_test[0]),
        "example_answer": f"{answers['tflite'][0, 0]:.1f}",
        "example_truth": f"{y_test[0, 0]:.0f}",
        "size_torch": common.size(FOLDER / "weights.safetensors"),
        "size_tflite": common.size(FOLDER / "diabetes.tflite"),
    }
    values |= {f"error_{name}": f"{common.mean_absolute_error(a, y_test):.4f}" for name, a in answers.items()}
    common.write_texts(FOLDER, values)
    for name, value in {"distance to least squares": f"{distance:.1e}", **values}.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    main()
