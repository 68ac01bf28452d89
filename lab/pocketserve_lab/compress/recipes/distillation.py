"""Distillation: a smaller module learns from the model's answers, or from the labels alone where that is better."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.scores import Score, score_answers
from pocketserve_lab.compress.training import (
    Loss,
    batches,
    first_answer,
    label_loss,
    log_probabilities,
    train,
    trainable_copy,
)

RATE = 5e-3
"""Of a student that begins untrained."""

TEMPERATURE = 3.0
"""Softens the teacher's probabilities, so that the student sees which wrong classes are nearly right."""

TEACHER_SHARE = 0.7
"""Of the loss; the rest is the labels'."""

TRIAL_SHARE = 0.25
"""Of the training samples: left out at first, to find out whether the teacher helps."""


def distil(
    module: Any, data: TrainingData, *, student: Any, epochs: int
) -> CompressedModule:
    """Train a student by the module's answers and by the labels alone, and return what is better, trained on all data.

    Args:
        student: takes and answers what the module does; it begins untrained.

    Raises:
        ConversionError: the student's answers do not fit the labels.
    """
    order = np.random.default_rng(0).permutation(len(data.labels))
    apart = max(1, round(TRIAL_SHARE * len(order)))
    learned, judged = _rows(data, order[apart:]), _rows(data, order[:apart])
    losses: dict[str, Loss | None] = {
        "the teacher": partial(_teacher_loss, module.eval()),
        "the labels alone": None,
    }
    scores: dict[str, Score] = {}
    for name, loss in losses.items():
        trial = train(
            trainable_copy(student), learned, epochs=epochs, loss=loss, rate=RATE
        )
        scores[name] = _score(trial, judged)
    taught, labelled = scores.values()
    best = "the labels alone" if taught.loss_since(labelled) > 0 else "the teacher"
    result = train(
        trainable_copy(student), data, epochs=epochs, loss=losses[best], rate=RATE
    )
    words = (
        f"{taught.metric} {taught} with the teacher, {labelled} with the labels alone"
    )
    size = sum(weight.numel() for weight in result.parameters())
    return CompressedModule(
        result,
        (
            f"on {taught.samples} training samples left out for it, a student has {words}: it learned from {best}",
            f"it has {size:,} weights; the model has {sum(weight.numel() for weight in module.parameters()):,}",
        ),
    )


def _teacher_loss(teacher: Any, inputs: Any, answers: Any, labels: Any) -> Any:
    """Return the loss of a student's answers: the distance from the teacher's, and the labels' loss."""
    import torch
    from torch.nn import functional

    with torch.no_grad():
        taught = first_answer(teacher(*inputs))
    if labels.is_floating_point():
        distance = functional.mse_loss(answers.reshape(taught.shape), taught)
    else:
        rows = (
            log_probabilities(each.reshape(len(labels), -1)) / TEMPERATURE
            for each in (answers, taught)
        )
        soft, target = (functional.log_softmax(each, dim=1) for each in rows)
        distance = (
            functional.kl_div(soft, target, log_target=True, reduction="batchmean")
            * TEMPERATURE**2
        )
    return TEACHER_SHARE * distance + (1 - TEACHER_SHARE) * label_loss(answers, labels)


def _rows(data: TrainingData, at: Any) -> TrainingData:
    return TrainingData(tuple(array[at] for array in data.inputs), data.labels[at])


def _score(module: Any, data: TrainingData) -> Score:
    import torch

    with torch.inference_mode():
        answers = [
            first_answer(module(*inputs))
            for inputs, _ in batches(torch, data, shuffled=False)
        ]
    rows = torch.cat(answers).numpy()
    return score_answers(rows, data.labels[: len(rows)])


RECIPE = Recipe(
    "distillation",
    "trains a smaller module of yours by the model's answers, or by the labels alone where that is better",
    distil,
    {"epochs": 60},
    takes_student=True,
)
