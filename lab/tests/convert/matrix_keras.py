"""Build the five networks of ``matrix_torch.py`` in Keras: ``python matrix_keras.py
FOLDER``.

The random weights come from a seed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def mobilenet() -> Any:
    """Build depthwise convolutions with squeeze and excitation.

    Pictures [n, 32, 32, 3] -> scores [n, 4], with hard-swish.
    """
    picture = keras.Input((32, 32, 3), name="picture")
    inner = layers.Activation("hard_silu")(
        _normal(layers.Conv2D(16, 3, 2, "same", use_bias=False)(picture))
    )
    wide = layers.Activation("hard_silu")(
        _normal(layers.Conv2D(48, 1, use_bias=False)(inner))
    )
    wide = _normal(layers.DepthwiseConv2D(5, 1, "same", use_bias=False)(wide))
    squeeze = layers.Conv2D(12, 1, activation="relu")(
        layers.GlobalAveragePooling2D(keepdims=True)(wide)
    )
    wide = layers.Multiply()(
        [wide, layers.Conv2D(48, 1, activation="hard_sigmoid")(squeeze)]
    )
    inner = layers.Add()([inner, _normal(layers.Conv2D(16, 1, use_bias=False)(wide))])
    hidden = layers.Dense(32, activation="hard_silu")(
        layers.GlobalAveragePooling2D()(inner)
    )
    return keras.Model(picture, {"scores": layers.Dense(4)(hidden)})


def unet() -> Any:
    """Build transposed convolutions and skips.

    Pictures [n, 32, 32, 3] -> masks [n, 32, 32, 2].
    """
    picture = keras.Input((32, 32, 3), name="picture")
    first = _block(8)(picture)
    second = _block(16)(layers.MaxPooling2D()(first))
    third = _block(32)(layers.MaxPooling2D()(second))
    back = _block(16)(
        layers.Concatenate()([layers.Conv2DTranspose(16, 2, 2)(third), second])
    )
    back = _block(8)(
        layers.Concatenate()([layers.Conv2DTranspose(8, 2, 2)(back), first])
    )
    return keras.Model(
        picture, {"masks": layers.Conv2D(2, 1, activation="sigmoid")(back)}
    )


def transformer() -> Any:
    """Build embeddings and attention: tokens [n, 16] -> scores [n, 4]."""
    tokens = keras.Input((16,), name="tokens", dtype="int32")
    inner = layers.Embedding(64, 32)(tokens)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 8)(inner, inner)
        inner = layers.LayerNormalization()(layers.Add()([inner, attended]))
        hidden = layers.Dense(32)(layers.Dense(64, activation="gelu")(inner))
        inner = layers.LayerNormalization()(layers.Add()([inner, hidden]))
    return keras.Model(
        tokens, {"scores": layers.Dense(4)(layers.GlobalAveragePooling1D()(inner))}
    )


def lstm() -> Any:
    """Build a recurrent layer: series [n, 12, 6] -> values [n, 3]."""
    series = keras.Input((12, 6), name="series")
    return keras.Model(series, {"values": layers.Dense(3)(layers.LSTM(24)(series))})


def detector() -> Any:
    """Build two inputs and two outputs.

    Pictures [n, 32, 32, 3], rows [n, 5] -> boxes [n, 64, 4], scores [n, 64, 3].
    """
    picture = keras.Input((32, 32, 3), name="picture")
    row = keras.Input((5,), name="row")
    inner = layers.MaxPooling2D()(
        _block(24)(layers.MaxPooling2D()(_block(16)(picture)))
    )
    inner = layers.Multiply()(
        [inner, layers.Reshape((1, 1, 24))(layers.Dense(24, activation="tanh")(row))]
    )
    boxes = layers.Reshape((64, 4))(layers.Conv2D(4, 3, padding="same")(inner))
    scores = layers.Softmax()(
        layers.Reshape((64, 3))(layers.Conv2D(3, 3, padding="same")(inner))
    )
    return keras.Model([picture, row], {"boxes": boxes, "scores": scores})


def _normal(inner: Any) -> Any:
    return layers.BatchNormalization()(inner)


def _block(channels: int) -> Callable[[Any], Any]:
    return lambda inner: layers.ReLU()(
        _normal(layers.Conv2D(channels, 3, padding="same")(inner))
    )


NETWORKS = {
    "mobilenet": mobilenet,
    "unet": unet,
    "transformer": transformer,
    "lstm": lstm,
    "detector": detector,
}


def main(folder: Path) -> None:
    """Write samples, Keras, SavedModel and TFLite files of each network."""
    random = np.random.default_rng(11)
    for network, build in NETWORKS.items():
        keras.utils.set_random_seed(7)
        model = build()
        samples = {tensor.name: _values(tensor, random) for tensor in model.inputs}
        for _ in range(40):
            model({name: array[:16] for name, array in samples.items()}, training=True)
        home = folder / f"{network}-keras"
        (home / "samples").mkdir(parents=True)
        np.savez(home / "samples" / "rows.npz", **samples)
        model.save(home / f"{network}.keras")
        model.export(home / "savedmodel", "tf_saved_model", verbose=False)
        (home / f"{network}.tflite").write_bytes(
            _tflite(model, 1 if network == "lstm" else None)
        )
        (home / "model.toml").write_text(_manifest(network, model), encoding="utf-8")


def _tflite(model: Any, rows: int | None) -> bytes:
    """Convert to TFLite with one row or any number; recurrent layers need it fixed."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    specs = {
        t.name: tf.TensorSpec((rows, *t.shape[1:]), t.dtype, name=t.name)
        for t in model.inputs
    }
    archive.add_endpoint(
        "serve",
        model.__call__,
        [specs if len(specs) > 1 else next(iter(specs.values()))],
    )
    with tempfile.TemporaryDirectory() as folder:
        archive.write_out(folder, verbose=False)
        content: bytes = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    return content


def _values(tensor: Any, random: np.random.Generator) -> Any:
    """Return 24 samples of an input."""
    shape = (24, *tensor.shape[1:])
    if tensor.dtype == "int32":
        return random.integers(0, 64, shape, np.int32)
    return (
        random.random(shape) if len(shape) == 4 else random.standard_normal(shape)
    ).astype(np.float32)


def _manifest(network: str, model: Any) -> str:
    outputs = dict(sorted(model.output.items()))
    tables = [
        f'[[{key}]]\nname = "{name}"\ndatatype = "{"INT32" if tensor.dtype == "int32" else "FP32"}"\n'
        f"shape = {[-1, *tensor.shape[1:]]}\n"
        for key, tensors in (
            ("inputs", {tensor.name: tensor for tensor in model.inputs}),
            ("outputs", outputs),
        )
        for name, tensor in tensors.items()
    ]
    files = {
        "tflite": f"{network}.tflite",
        "keras": f"{network}.keras",
        "savedmodel": "savedmodel",
    }
    tables += [
        f'[versions.{version}]\nfile = "{file}"\n' for version, file in files.items()
    ]
    return 'default_version = "tflite"\n\n' + "\n".join(tables)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
