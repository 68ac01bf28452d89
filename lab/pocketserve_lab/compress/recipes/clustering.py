"""Weight clustering: each layer keeps a few different weights, the means of clusters, which are trained on."""

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
    """Replace the weights of each convolution and linear layer by a few values, and train these values.

    Args:
        clusters: how many values a layer keeps; one with fewer weights stays as it is.

    Raises:
        ConversionError: the module has no layer with more weights.
    """
    import torch
    from torch.nn.utils import parametrize

    clustered = trainable_copy(module)
    layers = [
        layer
        for layer in weight_layers(torch, clustered)
        if layer.weight.numel() > clusters
    ]
    if not layers:
        raise ConversionError(
            f"clustering needs a layer with more than {clusters} weights, and the model has none"
        )

    class Shared(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        """Looks every weight up among the layer's few values, so that each value is trained for all its weights."""

        def __init__(self, weight: Any) -> None:
            super().__init__()
            values, index = nearest_means(weight.detach().numpy().reshape(-1), clusters)
            self.values = torch.nn.Parameter(torch.from_numpy(values))
            self.register_buffer("index", torch.from_numpy(index).reshape(weight.shape))

        def forward(self, weight: Any) -> Any:
            return self.values[self.index]

    for layer in layers:
        parametrize.register_parametrization(layer, "weight", Shared(layer.weight))
    train(clustered, data, epochs=epochs)
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight")
    return CompressedModule(
        clustered,
        (f"each of {len(layers)} layers has {clusters} different weights at most",),
    )


def nearest_means(weights: Array, clusters: int) -> tuple[Array, Array]:
    """Cluster numbers by k-means, which begins at equal distances: the large weights, which matter most, keep means.

    Args:
        weights: float32 [n].

    Returns:
        The means, float32 [clusters], rising; and the index of each weight's mean, int64 [n].
    """
    means = np.linspace(weights.min(), weights.max(), clusters, dtype=np.float64)
    for _ in range(MAX_ROUNDS):
        index = np.searchsorted((means[1:] + means[:-1]) / 2, weights)
        counts = np.bincount(index, minlength=clusters)
        sums = np.bincount(index, weights, minlength=clusters)
        moved = np.where(counts > 0, sums / np.maximum(counts, 1), means)
        if np.allclose(moved, means):
            break
        means = moved
    return means.astype(np.float32), np.searchsorted(
        (means[1:] + means[:-1]) / 2, weights
    )


RECIPE = Recipe(
    "clustering",
    "leaves each layer a few different weights; the file becomes smaller where it is compressed",
    cluster_weights,
    {"clusters": 16, "epochs": 20},
)
