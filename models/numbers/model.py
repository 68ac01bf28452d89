"""The network of ``numbers``: where digits lie on a picture, and which."""

import torch
from torch import nn
from torch.nn import functional

SIDE = 256
STRIDES = (8, 16, 32)
LARGEST = 4.0
"""A box whose size comes out as 0 is that many strides wide and high."""


class Numbers(nn.Module):
    """Takes pictures FP32 [n, 256, 256, 3] from 0 to 1; gives FP32 [n, 14, 1344], a column for each cell of three grids.

    A column is the box (center x, center y, width, height) in pixels of the input, then a probability for each digit.
    """

    def __init__(self) -> None:
        super().__init__()

        def conv(taken: int, given: int, step: int = 1, size: int = 3) -> nn.Conv2d:
            return nn.Conv2d(taken, given, size, step, size // 2 if step == 1 else 0)

        self.a, self.b, self.c = conv(3, 16, 2), conv(16, 32, 2), conv(32, 48, 2)
        self.d, self.e = conv(48, 48), conv(48, 48)
        self.f, self.g, self.h = conv(48, 56, 2), conv(56, 56), conv(56, 56)
        self.i, self.j = conv(56, 64, 2), conv(64, 64)
        self.k, self.l = conv(64, 56, size=1), conv(56, 56)
        self.m, self.n = conv(56, 48, size=1), conv(48, 48)
        self.fine, self.middle, self.coarse = conv(48, 14, size=1), conv(56, 14, size=1), conv(64, 14, size=1)

    def maps(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The raw maps [n, 14, side, side] of the strides 8, 16 and 32, of pictures [n, 3, 256, 256]."""
        relu = functional.relu
        x = relu(self.c(_edged(relu(self.b(_edged(relu(self.a(_edged(x)))))))))
        x = x + relu(self.d(x))
        x = x + relu(self.e(x))
        y = relu(self.f(_edged(x)))
        y = y + relu(self.g(y))
        y = y + relu(self.h(y))
        z = relu(self.i(_edged(y)))
        z = z + relu(self.j(z))
        # What lies around, seen from far, helps to tell digits from letters close by.
        y = y + functional.interpolate(self.k(z), scale_factor=2.0, mode="nearest")
        y = y + relu(self.l(y))
        x = x + functional.interpolate(self.m(y), scale_factor=2.0, mode="nearest")
        x = x + relu(self.n(x))
        return [self.fine(x), self.middle(y), self.coarse(z)]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The columns of all three maps."""
        columns = []
        for stride, raw in zip(STRIDES, self.maps(image.permute(0, 3, 1, 2))):
            side = SIDE // stride
            at = (torch.arange(side, dtype=torch.float32) + 0.5) * stride
            center = torch.stack([at[None, :].expand(side, side), at[:, None].expand(side, side)])
            box = torch.cat([center + raw[:, :2] * stride, raw[:, 2:4].exp() * (stride * LARGEST)], 1)
            columns.append(torch.cat([box, raw[:, 4:].sigmoid()], 1).flatten(2))
        return torch.cat(columns, 2)


def _edged(x: torch.Tensor) -> torch.Tensor:
    """With what TensorFlow adds before a convolution of step 2: a row below and a column to the right."""
    return functional.pad(x, (0, 1, 0, 1))


def build() -> nn.Module:
    """Return the network with untrained weights."""
    return Numbers()
