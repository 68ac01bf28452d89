"""Build the Keras networks of ``own_models.py``: ``python own_keras.py FOLDER``.

The random weights come from a seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from own_models import OWN_MODELS


def normalised() -> Any:
    """Build a network that normalises a table's columns."""
    features = keras.Input((6,), name="features")
    normalise = layers.Normalization()
    normalise.adapt(np.random.default_rng(0).normal(2.0, 3.0, (64, 6)))
    inner = layers.Dense(16, activation="relu")(normalise(features))
    return keras.Model(features, {"y": layers.Dense(3)(inner)})


def rescaled() -> Any:
    """Build a network that resizes and rescales pictures of any size."""
    picture = keras.Input((None, None, 3), name="picture")
    inner = layers.Rescaling(1 / 127.5, -1.0)(layers.Resizing(24, 24)(picture))
    inner = layers.Conv2D(8, 3, 2, activation="relu")(inner)
    inner = layers.GlobalAveragePooling2D()(inner)
    return keras.Model(picture, {"y": layers.Dense(4)(inner)})


def buckets() -> Any:
    """Build a network of categories and buckets."""
    features = keras.Input((6,), name="features")
    kind = keras.Input((1,), dtype="int32", name="kind")
    bucket = layers.Discretization([-1.0, 0.0, 1.0], output_mode="int")(features)
    words = layers.Flatten()(layers.Embedding(4, 3)(bucket))
    kinds = layers.CategoryEncoding(8, "multi_hot")(kind)
    inner = layers.Dense(16, activation="relu")(layers.Concatenate()([words, kinds]))
    return keras.Model([features, kind], {"y": layers.Dense(3)(inner)})


def lstm() -> Any:
    """Build a recurrent network for series of any length."""
    steps = keras.Input((None, 6), name="steps")
    inner = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(steps)
    return keras.Model(steps, {"y": layers.Dense(3)(layers.GRU(8)(inner))})


def conv() -> Any:
    """Build convolutions and attention over series of any length."""
    steps = keras.Input((None, 6), name="steps")
    inner = layers.Conv1D(16, 3, padding="causal", activation="gelu")(steps)
    inner = layers.Add()([inner, layers.MultiHeadAttention(2, 8)(inner, inner)])
    inner = layers.LayerNormalization()(inner)
    return keras.Model(steps, {"y": layers.Conv1DTranspose(4, 2, 2)(inner)})


NETWORKS: dict[str, Callable[[], Any]] = {
    "normalised": normalised,
    "rescaled": rescaled,
    "buckets": buckets,
    "keras-lstm": lstm,
    "keras-conv": conv,
}


def main(folder: Path) -> None:
    """Write each model's folder."""
    for name, network in NETWORKS.items():
        keras.utils.set_random_seed(7)
        home = folder / name
        OWN_MODELS[name].write_samples(home)
        network().save(home / f"{name}.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
