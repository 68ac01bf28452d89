"""The train/test splits of the embedded models, as exactly the tensors the models take.

Needs numpy and scikit-learn only, and imports nothing from this project: a test can load this file by its path
and measure a model again without torch or TensorFlow. Nothing is downloaded, the data are part of scikit-learn.
"""

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.model_selection import train_test_split

SEED = 0
TEST_SHARE = 0.25

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def digits_split() -> Split:
    """x: FP32 [n, 8, 8, 1] in 0..1, bright ink on a dark ground; y: int64 [n], the digit. Stratified by digit."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[..., np.newaxis]
    return _split(images, data.target.astype(np.int64), stratify=data.target)


def diabetes_split() -> Split:
    """x: FP32 [n, 10] in raw units; y: FP32 [n, 1], the disease progression."""
    data = load_diabetes(scaled=False)
    return _split(data.data.astype(np.float32), data.target.astype(np.float32)[:, np.newaxis])


def petals_split() -> Split:
    """x: FP32 [n, 3], sepal length, sepal width, petal length in cm; y: FP32 [n, 1], petal width in cm.

    Stratified by species, so that all three are in both halves; the models never see the species.
    """
    data = load_iris()
    table = data.data.astype(np.float32)
    return _split(table[:, :3], table[:, 3:], stratify=data.target)


def _split(x: np.ndarray, y: np.ndarray, stratify: np.ndarray | None = None) -> Split:
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_SHARE, random_state=SEED, stratify=stratify
    )
    return x_train, y_train, x_test, y_test
