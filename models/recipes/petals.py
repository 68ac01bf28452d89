"""Fits a linear regression on the iris data in Keras, converts it to TFLite, measures both, writes the folder.

Run from the repository root: python -m models.recipes.petals
"""

from models.recipes import common  # first: it prepares the frameworks
from models.recipes.datasets import petals_split

import numpy as np
import tensorflow as tf

FOLDER = common.MODELS / "petals"
EPOCHS = 600
RATE, MOMENTUM = 0.05, 0.9


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


def main() -> None:
    common.make_reproducible()
    x_train, y_train, x_test, y_test = petals_split()
    model = train(x_train, y_train)
    distance = distance_to_least_squares(model, x_train, y_train)
    assert distance < 1e-3, f"the descent has not converged: {distance}"
    common.save_keras(model, FOLDER / "petals.keras")
    (FOLDER / "petals.tflite").write_bytes(common.to_tflite(model, "petal_width"))

    predictors = {
        "keras": common.keras_predictor(FOLDER / "petals.keras"),
        "tflite": common.tflite_predictor(FOLDER / "petals.tflite"),
    }
    answers = {name: predict(x_test) for name, predict in predictors.items()}
    guess = np.full_like(y_test, y_train.mean())
    values = {
        "train_count": str(len(y_train)),
        "test_count": str(len(y_test)),
        "error_guess": f"{common.mean_absolute_error(guess, y_test):.4f}",
        "error_train": f"{common.mean_absolute_error(predictors['keras'](x_train), y_train):.4f}",
        "error_worst": f"{np.abs(answers['keras'] - y_test).max():.2f}",
        "r2": f"{common.r_squared(answers['keras'], y_test):.3f}",
        "lowest": f"{answers['keras'].min():.2f}",
        "difference": common.largest_difference(answers["tflite"], answers["keras"], 1e-5),
        "example": " ".join(f"{value:g}" for value in x_test[0]),
        "example_answer": f"{answers['tflite'][0, 0]:.2f}",
        "example_truth": f"{y_test[0, 0]:g}",
        "size_keras": common.size(FOLDER / "petals.keras"),
        "size_tflite": common.size(FOLDER / "petals.tflite"),
    }
    values |= {f"error_{name}": f"{common.mean_absolute_error(a, y_test):.4f}" for name, a in answers.items()}
    common.write_texts(FOLDER, values)
    for name, value in {"distance to least squares": f"{distance:.1e}", **values}.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    main()
