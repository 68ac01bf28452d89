"""Build the zoo's architectures with random weights.

``tools/zoo.py`` starts it with the Python of the environment that has the library: torchvision, or keras.applications.
Nothing is downloaded. ``list LIBRARY`` prints a JSON list; ``build LIBRARY NAME FOLDER`` writes a model's folder as its
owner would: weights or a ``.keras`` file, ``model.py``, ``model.toml`` and ``samples``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0
SIDE = 96
"""Of the input pictures in pixels, where the architecture takes any; enough for each stride of 32, and soon run."""

SAMPLES = 4
ATTENTION = ("vit_", "swin", "maxvit")
"""Architectures whose windows or positions are made for one size."""


def main(arguments: list[str]) -> int:
    """List or build; returns the exit code."""
    action, library, *rest = arguments
    if action == "list":
        print(
            json.dumps(
                {"torchvision": list_torchvision, "keras": list_keras}[library]()
            )
        )
        return 0
    build: Callable[[str, Path], None] = {
        "torchvision": build_torchvision,
        "keras": build_keras,
    }[library]
    build(rest[0], Path(rest[1]))
    return 0


def list_torchvision() -> list[dict[str, Any]]:
    """List torchvision's classifiers, detectors and segmenters."""
    from zoo_torchvision import torchvision

    models = torchvision.models
    tasks = {
        "classification": models,
        "segmentation": models.segmentation,
        "detection": models.detection,
    }
    architectures = []
    for task, module in tasks.items():
        for name in models.list_models(module=module):
            meta = models.get_model_weights(name).DEFAULT.meta
            smallest = 224 if name.startswith(ATTENTION) else max(meta["min_size"])
            side = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}.get(
                name, max(SIDE, smallest)
            )
            architectures.append(
                {
                    "name": name,
                    "task": task,
                    "parameters": meta["num_params"],
                    "shape": [3, side, side],
                }
            )
    return architectures


def list_keras() -> list[dict[str, Any]]:
    """Return name, task, parameters and side of every architecture of keras.applications."""
    import keras

    architectures = []
    for name in dir(keras.applications):
        if not name[0].isupper():
            continue
        keras.backend.clear_session()
        model = _keras_model(keras, name)
        shape = list(model.input_shape[1:])
        architectures.append(
            {
                "name": name,
                "task": "classification",
                "parameters": model.count_params(),
                "shape": shape,
            }
        )
    return architectures


def build_torchvision(name: str, folder: Path) -> None:
    """Write a torchvision architecture as ``model.py`` and state dict."""
    import torch
    import zoo_torchvision

    torch.manual_seed(SEED)
    (architecture,) = (item for item in list_torchvision() if item["name"] == name)
    task = architecture["task"]
    shape = architecture["shape"]
    module = zoo_torchvision.build(name).eval()
    samples = _pictures(shape)
    with torch.no_grad():
        for parameter in module.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                parameter.copy_(torch.from_numpy(_varied(parameter.numpy())))
        _settle_norms(torch, module, torch.from_numpy(samples))
    folder.mkdir(parents=True)
    torch.save(module.state_dict(), folder / "weights.pt")
    shutil.copyfile(zoo_torchvision.__file__, folder / "model.py")
    table = f'file = "model.py"\nweights = "weights.pt"\narguments = {{ architecture = "{name}" }}\n'
    _write_model(folder, task, [-1, *shape], "torch", table, samples)


def _settle_norms(torch: Any, module: Any, samples: Any) -> None:
    """Set batch norms' statistics from samples, to keep numbers in range."""
    norms = []
    for inner in module.modules():
        if isinstance(inner, torch.nn.modules.batchnorm._BatchNorm):
            norms.append(inner)
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = None
    module(samples)
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval().momentum = momentum


def build_keras(name: str, folder: Path) -> None:
    """Write a Keras architecture as ``.keras``, with logits as outputs."""
    import keras

    keras.utils.set_random_seed(SEED)
    model = _keras_model(keras, name)
    pictures = _pictures([3, *model.input_shape[1:3]])
    samples = pictures.transpose(0, 2, 3, 1) * np.float32(255)
    _vary_weights(model)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            # Otherwise the new weights take effect only once the file is read.
            layer.finalize_state()
    _settle_keras_norms(keras, model, samples)
    folder.mkdir(parents=True)
    model.save(folder / "model.keras")
    shape = [-1, *model.input_shape[1:]]
    _write_model(
        folder, "classification", shape, "keras", 'file = "model.keras"\n', samples
    )


def _vary_weights(model: Any) -> None:
    """Replace weights that are all equal by random ones."""
    weights = []
    for array in model.get_weights():
        if array.size > 1 and np.ptp(array) == 0:
            array = _varied(array)
        weights.append(array)
    model.set_weights(weights)


def _settle_keras_norms(keras: Any, model: Any, samples: Any) -> None:
    """Set batch norms' statistics from samples."""
    norms = []
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            norms.append(layer)
    before = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    model(samples, training=True)
    for layer, momentum in zip(norms, before, strict=True):
        layer.momentum = momentum


def _keras_model(keras: Any, name: str) -> Any:
    shape = (SIDE, SIDE, 3)
    build = getattr(keras.applications, name)
    try:
        return build(weights=None, input_shape=shape, classifier_activation=None)
    except ValueError:  # it takes one size only
        return build(weights=None, classifier_activation=None)


def _pictures(shape: list[int]) -> np.ndarray[Any, Any]:
    """Return seeded pictures with different light, contrast and patterns."""
    random = np.random.default_rng(SEED)
    channels, height, width = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    pictures = []
    for _ in range(SAMPLES):
        waves = random.uniform(2, 30, (channels, 2, 1, 1))
        picture = np.sin(waves[:, 0] * x + waves[:, 1] * y) + random.normal(
            0, 0.3, shape
        )
        low, high = np.sort(random.uniform(0, 1, 2))
        pictures.append(
            low + (high - low) * (picture - picture.min()) / np.ptp(picture)
        )
    return np.stack(pictures).astype(np.float32)


def _varied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return random numbers in place of equal ones."""
    random = np.random.default_rng(array.size)
    zeros = not array.any()
    numbers = (
        random.normal(0, 0.1, array.shape)
        if zeros
        else random.uniform(0.5, 1.5, array.shape)
    )
    return numbers.astype(array.dtype)


def _write_model(
    folder: Path,
    task: str,
    shape: list[int],
    version: str,
    table: str,
    samples: np.ndarray[Any, Any],
) -> None:
    """Write the manifest and the samples."""
    kind = ""
    if task == "classification":
        kind = 'task = "image-classification"\n\n'
    image = f'[[inputs]]\nname = "image"\ndatatype = "FP32"\nshape = {shape}\n\n'
    (folder / "model.toml").write_text(f"{kind}{image}[versions.{version}]\n{table}")
    (folder / "samples").mkdir()
    for number, sample in enumerate(samples):
        np.savez(folder / "samples" / f"{number}.npz", image=sample[None])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
