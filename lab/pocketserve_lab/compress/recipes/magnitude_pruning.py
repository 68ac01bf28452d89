"""Magnitude pruning: the weights nearest to zero become zero, and the others are trained on."""

from __future__ import annotations

from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.training import train, trainable_copy, weight_layers
from pocketserve_lab.convert.converter import ConversionError


def prune_weights(
    module: Any, data: TrainingData, *, amount: float, epochs: int
) -> CompressedModule:
    """Set the smallest weights of all convolutions and linear layers to zero, and train the others.

    Args:
        amount: the share of these weights that becomes zero, over all layers together.

    Raises:
        ConversionError: the module has no such layer.
    """
    import torch
    from torch.nn.utils import prune

    pruned = trainable_copy(module)
    layers = [(layer, "weight") for layer in weight_layers(torch, pruned)]
    if not layers:
        raise ConversionError(
            "magnitude-pruning needs convolutions or linear layers, and the model has none"
        )
    prune.global_unstructured(
        layers, pruning_method=prune.L1Unstructured, amount=amount
    )
    train(pruned, data, epochs=epochs)
    for layer, name in layers:
        prune.remove(layer, name)
    total = sum(layer.weight.numel() for layer, _ in layers)
    zeros = sum(int((layer.weight == 0).sum()) for layer, _ in layers)
    return CompressedModule(
        pruned,
        (f"{zeros:,} of the {total:,} weights {'is' if zeros == 1 else 'are'} zero",),
    )


RECIPE = Recipe(
    "magnitude-pruning",
    "sets the smallest weights to zero; the file becomes smaller where it is compressed",
    prune_weights,
    {"amount": 0.5, "epochs": 20},
)
