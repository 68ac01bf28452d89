"""The digits classifier as an unconverted PyTorch module."""

import torch
from torch import nn


class Digits(nn.Module):
    """Three 3x3 convolutions and one dense layer; 8x8 grey pictures in, ten probabilities out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.dense = nn.Linear(2 * 2 * 64, 10)

    def logits(self, image: torch.Tensor) -> torch.Tensor:
        x = image.permute(0, 3, 1, 2)  # the tensor arrives as N, height, width, channel; torch wants the channel second
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv3(x)), 2)
        x = x.permute(0, 2, 3, 1)  # flattened in the order of Keras, so both share one dense matrix
        return self.dense(x.flatten(1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.logits(image), dim=1)


def build() -> Digits:
    return Digits()
