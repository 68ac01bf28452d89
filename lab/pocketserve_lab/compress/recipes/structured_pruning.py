"""Structured pruning: remove whole channels and train the rest."""

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
    """Remove the channels with the smallest weights, and train the others.

    The last layer keeps its channels.

    Args:
        amount: the share of each layer's channels to remove.

    Raises:
        ConversionError: the tool cannot trace the module, or no channel can be removed.
    """
    import torch
    import torch_pruning

    pruned = trainable_copy(module)
    examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
    last = _last_layer(torch, pruned, examples)
    before, shape = _size(pruned), first_answer(pruned(*examples)).shape
    try:
        _prune(torch_pruning, pruned, examples, last, amount)
        with torch.no_grad():
            after = first_answer(pruned(*examples)).shape
    # The tool traces the gradients of any module, and may raise anything.
    except Exception as error:
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
            "structured-pruning needs layers before the last one, "
            "and the model has none"
        )
    train(pruned, data, epochs=epochs)
    note = f"{_size(pruned):,} of {before:,} weights are left"
    return CompressedModule(pruned, (note,))


def _prune(
    torch_pruning: Any,
    module: Any,
    examples: tuple[Any, ...],
    last: Any,
    amount: float,
) -> None:
    importance = torch_pruning.importance.GroupMagnitudeImportance(p=2)
    pruner = torch_pruning.pruner.MetaPruner(
        module,
        examples,
        importance=importance,
        pruning_ratio=amount,
        ignored_layers=[last],
    )
    pruner.step()


def _last_layer(torch: Any, module: Any, examples: tuple[Any, ...]) -> Any:
    """Return the convolution or linear layer that runs last.

    Its channels are the answers.
    """
    layers_run: list[Any] = []

    def record(layer: Any, inputs: Any, output: Any) -> None:
        layers_run.append(layer)

    hooks = []
    for layer in weight_layers(torch, module):
        hooks.append(layer.register_forward_hook(record))
    try:
        with torch.no_grad():
            module(*examples)
    finally:
        for hook in hooks:
            hook.remove()
    if not layers_run:
        raise ConversionError(
            "structured-pruning needs convolutions or linear layers, "
            "and the model has none"
        )
    return layers_run[-1]


def _size(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


RECIPE = Recipe(
    "structured-pruning",
    "removes whole channels, so that the model is smaller and faster",
    prune_channels,
    {"amount": 0.3, "epochs": 40},
    packages=("torch", "torch_pruning"),
    fallback="torch-pruning",
)
