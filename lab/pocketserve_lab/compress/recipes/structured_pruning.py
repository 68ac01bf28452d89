"""Structured pruning: whole channels go, with all that depends on them, and what is left is trained on."""

from __future__ import annotations

from typing import Any

from pocketserve.messages import excerpt
from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.training import (
    first_answer,
    train,
    trainable_copy,
    weight_layers,
)
from pocketserve_lab.convert.converter import ConversionError


def prune_channels(
    module: Any, data: TrainingData, *, amount: float, epochs: int
) -> CompressedModule:
    """Remove the channels with the smallest weights from all layers but the last, and train the others.

    Args:
        amount: the share of each layer's channels that goes.

    Raises:
        ConversionError: the tool cannot follow the module, or there is no channel that could go.
    """
    import torch
    import torch_pruning

    pruned = trainable_copy(module)
    examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
    last = _last_layer(torch, pruned, examples)
    before, shape = _size(pruned), first_answer(pruned(*examples)).shape
    try:
        pruner = torch_pruning.pruner.MetaPruner(
            pruned,
            examples,
            importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=amount,
            ignored_layers=[last],
        )
        pruner.step()
        with torch.no_grad():
            after = first_answer(pruned(*examples)).shape
    except Exception as error:  # it follows any module's gradients
        raise ConversionError(
            f"structured-pruning cannot follow this model: {excerpt(error)}",
            detail=str(error),
            nearest="--recipe magnitude-pruning",
        ) from error
    if after != shape:
        raise ConversionError(
            "structured-pruning would remove channels that the model answers with"
        )
    if _size(pruned) == before:
        raise ConversionError(
            "structured-pruning needs layers before the last one, and the model has none"
        )
    train(pruned, data, epochs=epochs)
    return CompressedModule(
        pruned, (f"{_size(pruned):,} of {before:,} weights are left",)
    )


def _last_layer(torch: Any, module: Any, examples: tuple[Any, ...]) -> Any:
    """Return the convolution or linear layer that runs last: its channels are the answers."""
    ran: list[Any] = []
    layers = weight_layers(torch, module)
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: ran.append(layer))
        for layer in layers
    ]
    try:
        with torch.no_grad():
            module(*examples)
    finally:
        for hook in hooks:
            hook.remove()
    if not ran:
        raise ConversionError(
            "structured-pruning needs convolutions or linear layers, and the model has none"
        )
    return ran[-1]


def _size(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


RECIPE = Recipe(
    "structured-pruning",
    "removes whole channels, so that the model becomes smaller and has less to compute",
    prune_channels,
    {"amount": 0.3, "epochs": 40},
    packages=("torch", "torch_pruning"),
    fallback="torch-pruning",
)
