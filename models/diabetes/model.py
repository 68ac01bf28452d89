"""Disease progression from ten measurements, as an unconverted PyTorch module: one linear layer on raw units."""

from torch import nn


def build() -> nn.Linear:
    return nn.Linear(10, 1)
