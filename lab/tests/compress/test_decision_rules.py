"""Score and train classifiers by the decision that their answers mean."""

from __future__ import annotations

import numpy as np
import pytest

from pocketserve_lab.compress.recipe import TrainingData
from pocketserve_lab.compress.scores import answer_rule, score_answers
from pocketserve_lab.convert.verify import compare_outputs
from pocketserve_lab.decisions import rule_of

LOGITS = np.array(
    [
        [-3.0],
        [-0.2],
        [0.3],
        [4.0],
    ]
)
CLASSES = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("answers", "labels"),
    [
        (LOGITS, CLASSES),
        (1 / (1 + np.exp(-LOGITS)), CLASSES),
        (np.hstack([-LOGITS, LOGITS]), CLASSES),
        (np.hstack([LOGITS, -LOGITS]), np.array([[0, 1], [0, 1], [1, 0], [1, 0]])),
    ],
    ids=["one logit", "one probability", "two classes", "several labels"],
)
def test_right_answers_score_one(answers: np.ndarray, labels: np.ndarray) -> None:
    """Each kind of answers has its own decision."""
    score = score_answers(answers, labels)
    assert (score.metric, score.value) == ("accuracy", 1.0)


def test_the_rule_is_that_of_the_original() -> None:
    """A result's logits may all lie between 0 and 1."""
    rule = answer_rule(LOGITS, CLASSES)
    result = np.array(
        [
            [0.1],
            [0.2],
            [0.3],
            [0.4],
        ]
    )
    assert score_answers(result, CLASSES, rule).value == 0.5


def test_conversions_compare_logits_by_their_sign() -> None:
    """0.3 and 0.6 are the same decision."""
    agreement = compare_outputs(
        {"y": LOGITS},
        {"y": LOGITS * [[1], [1], [2], [1]]},
        "tabular-classification",
        4,
        random=False,
    )
    assert agreement.same_class == 1.0
    assert rule_of(LOGITS).takes_logits


@pytest.mark.torch
@pytest.mark.parametrize("labels_of_a_sample", [1, 3])
def test_training_on_logits_learns(labels_of_a_sample: int) -> None:
    """Clamped to (0, 1), most logits would have no gradient."""
    import torch

    from pocketserve_lab.compress.training import train

    torch.manual_seed(0)
    module = torch.nn.Linear(4, labels_of_a_sample)
    with torch.no_grad():
        module.bias.fill_(-4.0)
    inputs = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)
    labels = (inputs[:, :labels_of_a_sample] > 0).astype(np.int64)
    if labels_of_a_sample == 1:
        labels = labels[:, 0]
    data = TrainingData((inputs,), labels)
    trained = train(module, data, epochs=60, rate=0.1)
    answers = trained(torch.from_numpy(inputs)).detach().numpy()
    assert score_answers(answers, labels).value > 0.97
