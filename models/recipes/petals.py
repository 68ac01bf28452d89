"""Fits a linear regression on the iris data in Keras, converts it to every other format, writes the folder.

Run from the repository root: python -m models.recipes.petals [--train]
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes import formats
from models.recipes.datasets import petals_split

import numpy as np
import tensorflow as tf
import torch

from models.petals.model import build as build_module

FOLDER = common.MODELS / "petals"
EPOCHS = 600
RATE, MOMENTUM = 0.05, 0.9
DATASET = "scikit-learn iris, held-out 25 % (seed 0)"
TAKES = common.Tensor("features", "FP32", (-1, 3))
GIVES = common.Tensor("petal_width", "FP32", (-1, 1))
VERSIONS = common.versions("petals", 1e-5)


def build(name: str) -> tf.keras.Model:
    features = tf.keras.Input((3,), name="features")
    return tf.keras.Model(features, tf.keras.layers.Dense(1, name="petal_width")(features), name=name)


def train(x: np.ndarray, y: np.ndarray) -> tf.keras.Model:
    """Gradient descent with momentum on standardised columns; the standardisation is then folded into the weights."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    standard = build("standardised")
    standard.compile(tf.keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss="mse")
    history = standard.fit((x - mean) / deviation, y, batch_size=len(x), epochs=EPOCHS, shuffle=False, verbose=0)
    print(f"training mean squared error {history.history['loss'][-1]:.6f}")

    kernel, bias = standard.get_weights()
    raw_kernel = kernel / deviation[:, np.newaxis]
    raw = build("petals")
    raw.set_weights([raw_kernel, bias - mean @ raw_kernel])
    return raw


def distance_to_least_squares(model: tf.keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """How far the fit is from the exact solution: the largest difference between two answers to a training row."""
    table = np.column_stack([x.astype(np.float64), np.ones(len(x))])
    exact = table @ np.linalg.lstsq(table, y.astype(np.float64), rcond=None)[0]
    return float(np.abs(model(x).numpy() - exact).max())


def torch_twin(model: tf.keras.Model) -> torch.nn.Linear:
    """The same layer in PyTorch, which stores its matrix the other way round."""
    kernel, bias = model.get_weights()
    module = build_module()
    module.load_state_dict({"weight": torch.from_numpy(kernel.T.copy()), "bias": torch.from_numpy(bias)})
    return module.eval()


def begin() -> None:
    """Trains, and writes the weights and the TFLite files."""
    x_train, y_train, _, _ = petals_split()
    model = train(x_train, y_train)
    common.save_keras(model, FOLDER / "petals.keras")
    (FOLDER / "petals.tflite").write_bytes(common.to_tflite(model, GIVES.name))


def convert() -> None:
    """Makes the other formats from the weights, measures all versions and writes manifest and card."""
    x_train, y_train, x_test, y_test = petals_split()
    model = tf.keras.models.load_model(FOLDER / "petals.keras")
    distance = distance_to_least_squares(model, x_train, y_train)
    assert distance < 1e-3, f"the descent has not converged: {distance}"
    module = torch_twin(model)
    common.save_torch(module, FOLDER / "weights.safetensors")
    formats.write_torch_formats(module, FOLDER, TAKES, GIVES)
    formats.write_keras_formats(model, FOLDER, TAKES, GIVES)

    predictors = {version.name: common.predictor(FOLDER, version, TAKES, GIVES) for version in VERSIONS}
    answers = {name: predict(x_test) for name, predict in predictors.items()}
    guess = np.full_like(y_test, y_train.mean())
    values = {
        **common.regression_texts(FOLDER, VERSIONS, DATASET, answers, y_test),
        "train_count": str(len(y_train)),
        "test_count": str(len(y_test)),
        "error_guess": f"{common.mean_absolute_error(guess, y_test):.4f}",
        "error_train": f"{common.mean_absolute_error(predictors['keras'](x_train), y_train):.4f}",
        "error_worst": f"{np.abs(answers['keras'] - y_test).max():.2f}",
        "r2": f"{common.r_squared(answers['keras'], y_test):.3f}",
        "example": " ".join(f"{value:g}" for value in x_test[0]),
        "example_answer": f"{answers['tflite'][0, 0]:.2f}",
        "example_truth": f"{y_test[0, 0]:g}",
        "most_rows": str(formats.MOST_ROWS),
    }
    common.write_texts(FOLDER, values)
    for name, value in {"distance to least squares": f"{distance:.1e}", **values}.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    common.start(begin, convert)
