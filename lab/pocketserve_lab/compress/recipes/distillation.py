"""Distillation: a smaller module learns from the model's answers.

It learns from the labels alone if that is better.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.scores import Score, score_answers
from pocketserve_lab.compress.training import (
    Loss,
    batches,
    decision_loss,
    find_rule,
    first_answer,
    label_loss,
    log_probabilities,
    train,
    trainable_copy,
)
from pocketserve_lab.decisions import DecisionRule

RATE = 5e-3
"""Learning rate of a student that starts untrained."""

TEMPERATURE = 3.0
"""Softens the teacher's probabilities, to show near misses."""

TEACHER_SHARE = 0.7
"""Weight of the teacher in the loss; the rest is that of the labels."""

TRIAL_SHARE = 0.25
"""Share of the training samples that decides whether the teacher helps."""


def distil(
    module: Any, data: TrainingData, *, student: Any, epochs: int
) -> CompressedModule:
    """Train a student by the module's answers or by the labels alone.

    Both are tried on a part of the data. The better one is trained on all of it.

    Args:
        student: has the module's inputs and outputs; it starts untrained.

    Raises:
        ConversionError: the student's answers do not fit the labels.
    """
    import torch

    order = np.random.default_rng(0).permutation(len(data.labels))
    number = max(1, round(TRIAL_SHARE * len(order)))
    learned, judged = _rows(data, order[number:]), _rows(data, order[:number])
    teacher_rule = find_rule(torch, module, data)
    teacher: Loss = partial(_teacher_loss, module.eval(), teacher_rule)

    def train_student(rows: TrainingData, loss: Loss | None) -> Any:
        copy = trainable_copy(student)
        return train(copy, rows, epochs=epochs, loss=loss, rate=RATE)

    with_teacher = _score(train_student(learned, teacher), judged)
    with_labels = _score(train_student(learned, None), judged)
    if with_teacher.loss_since(with_labels) > 0:
        best = "the labels alone"
        result = train_student(data, None)
    else:
        best = "the teacher"
        result = train_student(data, teacher)
    return CompressedModule(
        result,
        (
            f"on {with_teacher.samples} training samples left out for it, a student "
            f"has {with_teacher.metric} {with_teacher} with the teacher, {with_labels} "
            f"with the labels alone: it learned from {best}",
            f"it has {_size(result):,} weights; the model has {_size(module):,}",
        ),
    )


def _size(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _teacher_loss(
    teacher: Any,
    teacher_rule: DecisionRule,
    inputs: Any,
    answers: Any,
    labels: Any,
    rule: DecisionRule,
) -> Any:
    """Return a student's distance from the teacher, mixed with the labels' loss."""
    import torch
    from torch.nn import functional

    with torch.no_grad():
        target = first_answer(teacher(*inputs))
    if labels.is_floating_point():
        distance = functional.mse_loss(answers.reshape(target.shape), target)
    elif rule.by_column:
        rows = target.reshape(len(labels), -1)
        probabilities = torch.sigmoid(rows) if teacher_rule.takes_logits else rows
        distance = decision_loss(answers, probabilities, rule)
    else:
        distance = _divergence(answers, target, len(labels))
    loss = label_loss(answers, labels, rule)
    return TEACHER_SHARE * distance + (1 - TEACHER_SHARE) * loss


def _divergence(answers: Any, target: Any, samples: int) -> Any:
    """Return the divergence of softened answers from the teacher's."""
    from torch.nn import functional

    divergence = functional.kl_div(
        _softened(functional, answers, samples),
        _softened(functional, target, samples),
        log_target=True,
        reduction="batchmean",
    )
    return divergence * TEMPERATURE**2


def _softened(functional: Any, answers: Any, samples: int) -> Any:
    """Return log-probabilities at the temperature."""
    rows = log_probabilities(answers.reshape(samples, -1)) / TEMPERATURE
    return functional.log_softmax(rows, dim=1)


def _rows(data: TrainingData, at: Any) -> TrainingData:
    return TrainingData(tuple(array[at] for array in data.inputs), data.labels[at])


def _score(module: Any, data: TrainingData) -> Score:
    import torch

    answers = []
    with torch.inference_mode():
        for inputs, _ in batches(torch, data, shuffled=False):
            answers.append(first_answer(module(*inputs)))
    rows = torch.cat(answers).numpy()
    return score_answers(rows, data.labels[: len(rows)])


RECIPE = Recipe(
    "distillation",
    "trains a smaller module of yours by the model's answers, or by the labels alone "
    "if that is better",
    distil,
    {"epochs": 60},
    takes_student=True,
)
