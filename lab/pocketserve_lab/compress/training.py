"""Training that recipes share.

Adam with a falling rate and a fixed seed, and the loss that fits the model's answers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from pocketserve_lab.compress.recipe import TrainingData
from pocketserve_lab.compress.scores import answer_rule
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.decisions import DecisionRule

BATCH = 64
RULE_BATCHES = 64
"""Whose answers tell whether a module answers probabilities."""

RATE = 1e-3
SMALLEST = 1e-8
"""Least probability of which a logarithm is taken."""

Loss = Callable[[Any, Any, Any, DecisionRule], Any]
"""Takes a batch of inputs, the module's answers, the labels and the module's rule.

It returns a scalar."""


def trainable_copy(module: Any) -> Any:
    """Return a copy with trainable weights.

    A server maps weights from a file, so they can't be trained in place.

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
        loss: of a batch; by default that of the labels.
        rate: of Adam, at first; it falls to 0 along a cosine.
        after_step: called after each step.

    Raises:
        ConversionError: the loss is no longer a finite number.
    """
    import torch

    torch.manual_seed(0)
    if loss is None:
        loss = _loss_of_labels
    rule = find_rule(torch, module, data)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=rate)
    steps = max(1, epochs * -(-len(data.labels) // BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    module.train()
    for _ in range(epochs):
        for inputs, labels in batches(torch, data):
            value = loss(inputs, first_answer(module(*inputs)), labels, rule)
            if not torch.isfinite(value):
                raise ConversionError(
                    "training diverged: the loss is not a finite number any more; "
                    "give fewer --epochs"
                )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            after_step()
    return module.eval()


def _loss_of_labels(inputs: Any, answers: Any, labels: Any, rule: DecisionRule) -> Any:
    return label_loss(answers, labels, rule)


def find_rule(torch: Any, module: Any, data: TrainingData) -> DecisionRule:
    """Return the decision rule of a module by its answers to the data."""
    was_training = module.training
    module.eval()
    answers = []
    with torch.no_grad():
        for inputs, labels in itertools.islice(
            batches(torch, data, shuffled=False), RULE_BATCHES
        ):
            answer = first_answer(module(*inputs))
            answers.append(answer.reshape(len(labels), -1).double())
    module.train(was_training)
    rows = torch.cat(answers).numpy()
    return answer_rule(rows, data.labels[: len(rows)])


def batches(
    torch: Any, data: TrainingData, *, shuffled: bool = True
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the inputs and labels of each batch, as tensors.

    A last batch of one row is left out: batch norms cannot train on it.
    """
    count = len(data.labels)
    order = torch.randperm(count) if shuffled else torch.arange(count)
    for rows in order.split(BATCH):
        if len(rows) == 1 and count > 1:
            continue
        indices = rows.numpy()
        inputs = tuple(torch.from_numpy(array[indices]) for array in data.inputs)
        yield inputs, torch.from_numpy(data.labels[indices])


def first_answer(answers: Any) -> Any:
    """Return the output that the labels belong to: the only one, or the first."""
    while isinstance(answers, tuple | list | dict):
        if isinstance(answers, dict):
            answers = answers.values()
        answers = next(iter(answers))
    return answers


def label_loss(answers: Any, labels: Any, rule: DecisionRule) -> Any:
    """Return the mean square of numbers, or the cross-entropy of classes.

    Args:
        rule: the module's.

    Raises:
        ConversionError: the answers do not fit the labels.
    """
    from torch.nn import functional

    if labels.is_floating_point():
        _check_numbers(answers, labels)
        return functional.mse_loss(answers.reshape(labels.shape), labels)
    rows = answers.reshape(len(labels), -1)
    if rule.by_column:
        return decision_loss(answers, labels, rule)
    _check_classes(rows, labels)
    return functional.nll_loss(log_probabilities(rows), labels)


def decision_loss(answers: Any, expected: Any, rule: DecisionRule) -> Any:
    """Return the cross-entropy of scores that are decisions of their own.

    Args:
        expected: 0, 1 or probabilities.
    """
    from torch.nn import functional

    rows = answers.reshape(len(expected), -1)
    targets = expected.reshape(len(expected), -1).to(rows.dtype)
    _check_numbers(rows, targets)
    if rule.takes_logits:
        return functional.binary_cross_entropy_with_logits(rows, targets)
    probabilities = rows.clamp(SMALLEST, 1 - SMALLEST)
    return functional.binary_cross_entropy(probabilities, targets)


def _check_classes(rows: Any, labels: Any) -> None:
    largest, classes = int(labels.max()), rows.shape[1]
    if largest >= classes:
        raise ConversionError(
            f"the labels name class {largest}, and the model has {classes} classes"
        )


def _check_numbers(answers: Any, labels: Any) -> None:
    if answers.numel() != labels.numel():
        answered = answers.numel() // len(labels)
        expected = labels.numel() // len(labels)
        raise ConversionError(
            f"the model answers {answered} numbers a sample, "
            f"and the labels have {expected}"
        )


def log_probabilities(rows: Any) -> Any:
    """Return the logarithms of probabilities [samples, classes].

    A model answers either probabilities or logits.
    """
    import torch

    values = rows.detach()
    sums_to_one = ((values.sum(dim=1) - 1).abs() < 1e-3).all()
    if bool(sums_to_one and (values >= 0).all()):
        return rows.clamp_min(SMALLEST).log()
    return torch.log_softmax(rows, dim=1)
