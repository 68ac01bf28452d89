"""Weight clustering: each layer keeps a few different weights.

They are the means of clusters, which are then trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.training import train, trainable_copy, weight_layers
from pocketserve_lab.convert.converter import ConversionError

MAX_ROUNDS = 50


def cluster_weights(
    module: Any, data: TrainingData, *, clusters: int, epochs: int
) -> CompressedModule:
    """Replace each layer's weights by a few values, and train these values.

    Convolutions and linear layers have weights.

    Args:
        clusters: number of values per layer; a layer with fewer weights is not changed.

    Raises:
        ConversionError: the module has no layer with more weights.
    """
    import torch
    from torch.nn.utils import parametrize

    clustered = trainable_copy(module)
    layers = _large_layers(torch, clustered, clusters)
    for layer in layers:
        shared = _shared_weights(torch, layer.weight, clusters)
        parametrize.register_parametrization(layer, "weight", shared)
    train(clustered, data, epochs=epochs)
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight")
    note = f"each of {len(layers)} layers has {clusters} different weights at most"
    return CompressedModule(clustered, (note,))


def _large_layers(torch: Any, module: Any, clusters: int) -> list[Any]:
    """Return the layers with more weights than clusters."""
    layers = []
    for layer in weight_layers(torch, module):
        if layer.weight.numel() > clusters:
            layers.append(layer)
    if not layers:
        raise ConversionError(
            f"clustering needs a layer with more than {clusters} weights, "
            "and the model has none"
        )
    return layers


def _shared_weights(torch: Any, weight: Any, clusters: int) -> Any:
    """Return a module that looks each weight up among a layer's few values.

    So each value is trained for all its weights.
    """
    values, index = nearest_means(weight.detach().numpy().reshape(-1), clusters)

    class SharedWeights(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.Parameter(torch.from_numpy(values))
            self.register_buffer("index", torch.from_numpy(index).reshape(weight.shape))

        def forward(self, weight: Any) -> Any:
            return self.values[self.index]

    return SharedWeights()


def nearest_means(weights: Array, clusters: int) -> tuple[Array, Array]:
    """Cluster numbers by k-means.

    It starts at equal distances, so the large weights, which matter most, keep means of
    their own.

    Args:
        weights: float32 [n].

    Returns:
        The means, float32 [clusters], rising; and the index of each weight's mean,
        int64 [n].
    """
    means = np.linspace(weights.min(), weights.max(), clusters, dtype=np.float64)
    for _ in range(MAX_ROUNDS):
        index = _nearest(means, weights)
        counts = np.bincount(index, minlength=clusters)
        sums = np.bincount(index, weights, minlength=clusters)
        moved = np.where(counts > 0, sums / np.maximum(counts, 1), means)
        if np.allclose(moved, means):
            break
        means = moved
    return means.astype(np.float32), _nearest(means, weights)


def _nearest(means: Array, weights: Array) -> Array:
    """Return the index of the nearest mean of each weight."""
    borders = (means[1:] + means[:-1]) / 2
    return np.asarray(np.searchsorted(borders, weights))


RECIPE = Recipe(
    "clustering",
    "leaves each layer a few different weights; the file becomes smaller if compressed",
    cluster_weights,
    {"clusters": 16, "epochs": 20},
)
