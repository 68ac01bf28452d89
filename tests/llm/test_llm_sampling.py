"""The choice of a token is finite at each number that a request may have."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve.runtimes.hugging_face.fields import Sampling
from pocketserve.runtimes.hugging_face.sampling import Sampler

pytestmark = pytest.mark.llm

SCORES = (1.0, 30.0, -20.0, float("-inf"), 29.0)
BEST = 1


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": value} for value in (1e-40, 1e-310, 5e-324, 1e-6)),
        *({"temperature": 2, "top_p": value} for value in (0, 1e-40, 5e-324)),
        *({"temperature": 2, "min_p": value} for value in (1, 1 - 1e-12)),
        {"temperature": 2, "top_k": 1},
        {"temperature": 1e-40, "top_k": 0, "top_p": 1, "min_p": 0},
        {"temperature": 1e-40, "repeat_penalty": 0.1, "biases": {1: 100.0}},
        {"temperature": 0, "top_p": 0, "min_p": 1},
    ],
)
def test_extreme_settings_choose_the_best_token(settings: dict[str, Any]) -> None:
    import torch

    sampler = Sampler(torch, Sampling(**{"seed": 1, **settings}))
    choices = {sampler.choose(torch.tensor(SCORES), [0, 2]) for _ in range(20)}
    assert choices == {BEST}


def test_every_token_but_barred_ones_may_be_chosen() -> None:
    import torch

    settings = Sampling(
        temperature=2.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=1,
    )
    sampler = Sampler(torch, settings)
    scores = torch.zeros(5)
    choices = {sampler.choose(scores, [], barred=[0]) for _ in range(200)}
    assert choices == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers_are_an_error(
    value: float, temperature: float
) -> None:
    import torch

    sampler = Sampler(torch, Sampling(temperature=temperature, seed=1))
    with pytest.raises(ValueError, match="scores are not numbers"):
        sampler.choose(torch.tensor([0.0, value, 1.0]), [])
