"""Magnitude pruning: set the smallest weights to zero and train the others."""

from __future__ import annotations

from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.training import train, trainable_copy, weight_layers
from pocketserve_lab.convert.converter import ConversionError


def prune_weights(
    module: Any, data: TrainingData, *, amount: float, epochs: int
) -> CompressedModule:
    """Set the smallest weights to zero, and train the others.

    Convolutions and linear layers are pruned.

    Args:
        amount: the share of their weights that becomes zero, over all layers together.

    Raises:
        ConversionError: the module has no such layer.
    """
    import torch
    from torch.nn.utils import prune

    pruned = trainable_copy(module)
    layers = weight_layers(torch, pruned)
    if not layers:
        raise ConversionError(
            "magnitude-pruning needs convolutions or linear layers, "
            "and the model has none"
        )
    prune.global_unstructured(
        [(layer, "weight") for layer in layers],
        pruning_method=prune.L1Unstructured,
        amount=amount,
    )
    train(pruned, data, epochs=epochs)
    for layer in layers:
        prune.remove(layer, "weight")
    return CompressedModule(pruned, (_note(layers),))


def _note(layers: list[Any]) -> str:
    """Return a sentence on the number of weights that are zero."""
    total = zeros = 0
    for layer in layers:
        total += layer.weight.numel()
        zeros += int((layer.weight == 0).sum())
    verb = "is" if zeros == 1 else "are"
    return f"{zeros:,} of the {total:,} weights {verb} zero"


RECIPE = Recipe(
    "magnitude-pruning",
    "sets the smallest weights to zero; the file becomes smaller if compressed",
    prune_weights,
    {"amount": 0.5, "epochs": 20},
)
