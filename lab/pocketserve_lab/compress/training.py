"""Training as recipes share it: Adam, a falling rate, a fixed seed, and the loss that fits the model's answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from pocketserve_lab.compress.recipe import TrainingData
from pocketserve_lab.convert.converter import ConversionError

BATCH = 64
RATE = 1e-3
SMALLEST = 1e-8
"""Of a probability, before its logarithm is taken."""

Loss = Callable[[Any, Any, Any], Any]
"""Takes a batch of inputs, the module's answers and the labels; returns a scalar."""


def trainable_copy(module: Any) -> Any:
    """Return a copy whose weights can be trained; those of a server are mapped from a file.

    Raises:
        ConversionError: it has no weights.
    """
    trained = copy.deepcopy(module)
    weights = [weight for weight in trained.parameters() if weight.is_floating_point()]
    if not weights:
        raise ConversionError("the model has no weights that could be trained")
    for weight in weights:
        weight.requires_grad_(True)
    return trained


def weight_layers(torch: Any, module: Any) -> list[Any]:
    """Return the convolutions and linear layers of a module."""
    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    return [layer for layer in module.modules() if isinstance(layer, kinds)]


def train(
    module: Any,
    data: TrainingData,
    *,
    epochs: int,
    loss: Loss | None = None,
    rate: float = RATE,
    after_step: Callable[[], None] = lambda: None,
) -> Any:
    """Train a module in place, and return it in evaluation mode.

    Args:
        loss: of a batch; by default the labels' alone.
        rate: of Adam, at first; it falls to 0 along a cosine.
        after_step: called after each step, as by pruning, which keeps zeros at zero.

    Raises:
        ConversionError: the loss is no finite number any more.
    """
    import torch

    torch.manual_seed(0)
    loss = loss or (lambda inputs, answers, labels: label_loss(answers, labels))
    optimizer = torch.optim.Adam(
        [weight for weight in module.parameters() if weight.requires_grad], lr=rate
    )
    steps = max(1, epochs * -(-len(data.labels) // BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    module.train()
    for _ in range(epochs):
        for inputs, labels in batches(torch, data):
            value = loss(inputs, first_answer(module(*inputs)), labels)
            if not torch.isfinite(value):
                raise ConversionError(
                    "training diverged: the loss is no finite number any more; give fewer --epochs"
                )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            after_step()
    return module.eval()


def batches(
    torch: Any, data: TrainingData, *, shuffled: bool = True
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield inputs and labels of a batch each, as tensors; a rest of one row is left out, which batch norms refuse."""
    count = len(data.labels)
    order = torch.randperm(count) if shuffled else torch.arange(count)
    for rows in order.split(BATCH):
        if len(rows) > 1 or count == 1:
            at = rows.numpy()
            inputs = tuple(torch.from_numpy(array[at]) for array in data.inputs)
            yield inputs, torch.from_numpy(data.labels[at])


def first_answer(answers: Any) -> Any:
    """Return the output that the labels are about: the only one, or the first."""
    while isinstance(answers, tuple | list | dict):
        answers = next(iter(answers.values() if isinstance(answers, dict) else answers))
    return answers


def label_loss(answers: Any, labels: Any) -> Any:
    """Return the loss of answers: the mean square for numbers; for classes the cross-entropy of their probabilities.

    Raises:
        ConversionError: the answers do not fit the labels.
    """
    from torch.nn import functional

    if labels.is_floating_point():
        if answers.numel() != labels.numel():
            raise ConversionError(
                f"the model answers {answers.numel() // len(labels)} numbers a sample, and the labels have "
                f"{labels.numel() // len(labels)}"
            )
        return functional.mse_loss(answers.reshape(labels.shape), labels)
    rows = answers.reshape(len(labels), -1)
    if rows.shape[1] == 1:
        return functional.binary_cross_entropy(
            rows[:, 0].clamp(SMALLEST, 1 - SMALLEST), labels.to(rows.dtype)
        )
    if int(labels.max()) >= rows.shape[1]:
        raise ConversionError(
            f"the labels name class {int(labels.max())}, and the model has {rows.shape[1]} classes"
        )
    return functional.nll_loss(log_probabilities(rows), labels)


def log_probabilities(rows: Any) -> Any:
    """Return the logarithms of the probabilities [samples, classes] that a model answers as such, or as logits."""
    import torch

    are_probabilities = bool(
        (rows.detach() >= 0).all()
        and ((rows.detach().sum(dim=1) - 1).abs() < 1e-3).all()
    )
    return (
        rows.clamp_min(SMALLEST).log()
        if are_probabilities
        else torch.log_softmax(rows, dim=1)
    )
