"""Trains the network of ``numbers`` on drawn pages.

A cell near the middle of a digit answers for it, on the grid that suits its size. Scores learn how well the box fits,
so that suppression keeps the best box of a digit.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from models.numbers.model import LARGEST, SIDE, STRIDES, Numbers
from models.recipes import number_pages

SEED = 0
GREY = 114
MOST_DIGITS = 128
LONGEST = (320, 640)  # longer side of a drawn page, pixels
FITTING = ((0, 40), (32, 88), (72, math.inf))
"""From and to which longer side, in pixels of the input, a digit belongs to each grid; what fits two is in both."""

NEAR, AROUND = 0.75, 1.3
"""Cells within so many strides of a digit's middle answer for it; those up to the second number count neither way."""

BATCH, PEAK_RATE, WEIGHT_DECAY = 16, 3e-3, 1e-3
WARM_UP, COOL_DOWN = 100, 600
"""Steps in which the rate rises from 0, and in which it falls to 0 again at the end."""

Pages = tuple[np.ndarray, np.ndarray]
"""Pictures uint8 [n, 256, 256, 3] and digits float32 [n, 128, (digit, left, top, right, bottom)]; digit -1 is none."""


def boxed(picture: Image.Image) -> tuple[np.ndarray, float, np.ndarray]:
    """Return a picture between grey bars, as the server sends it, its scale, and where its upper left corner went."""
    scale = SIDE / max(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    left, top = (SIDE - size[0]) // 2, (SIDE - size[1]) // 2
    pixels = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    pixels[top : top + size[1], left : left + size[0]] = np.asarray(picture.resize(size))
    return pixels, scale, np.array([left, top])


def draw_pages(count: int, seed: int) -> Pages:
    """Draw pages and put them into the network's input."""
    rng = np.random.default_rng(seed)
    pictures = np.empty((count, SIDE, SIDE, 3), np.uint8)
    digits = np.full((count, MOST_DIGITS, 5), -1, np.float32)
    for row in range(count):
        picture, truth = number_pages.page(rng, *number_pages.any_size(rng, int(rng.choice(LONGEST))))
        pictures[row], scale, corner = boxed(picture)
        for number, (digit, box) in enumerate(truth[:MOST_DIGITS]):
            digits[row, number] = (digit, *(np.array(box) * scale + np.tile(corner, 2)))
    return pictures, digits


# --- Batches -----------------------------------------------------------------------------------------------------


def batch(rng: np.random.Generator, pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures [16, 3, 256, 256] from 0 to 1 and their digits: other colours, contrasts, sizes and places."""
    chosen = rng.integers(0, len(pages[0]), BATCH)
    x = torch.from_numpy(pages[0][chosen]).permute(0, 3, 1, 2).float() / 255
    most = (pages[1][chosen, :, 0] >= 0).sum(axis=1).max()
    digits = torch.from_numpy(pages[1][chosen, : max(1, most)])
    for row in range(BATCH):
        x[row] = x[row][torch.from_numpy(rng.permutation(3))]
        if rng.random() < 0.3:
            x[row] = 1 - x[row]
        if rng.random() < 0.15:
            x[row] = x[row].mean(0, keepdim=True)
    contrast, light = _uniform(rng, 0.6, 1.2), _uniform(rng, -0.15, 0.15)
    x = ((x - 0.5) * contrast + 0.5 + light).clamp(0, 1)
    return _moved(rng, x, digits)


def _uniform(rng: np.random.Generator, low: float, high: float) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(low, high, (BATCH, 1, 1, 1)).astype(np.float32))


def _moved(rng: np.random.Generator, x: torch.Tensor, digits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zoom, wider = rng.uniform(0.8, 1.35, BATCH), rng.uniform(0.88, 1.13, BATCH)
    matrix = torch.zeros(BATCH, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = torch.from_numpy(1 / zoom / wider), torch.from_numpy(1 / zoom * wider)
    matrix[:, :, 2] = torch.from_numpy(rng.uniform(-0.15, 0.15, (BATCH, 2)))
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    x = functional.grid_sample(x - GREY / 255, grid, align_corners=False) + GREY / 255
    scale = torch.stack([matrix[:, 0, 0], matrix[:, 1, 1]] * 2, 1)[:, None]
    move = matrix[:, :, 2].repeat(1, 2)[:, None]
    boxes = (((digits[..., 1:] / SIDE * 2 - 1) - move) / scale + 1) / 2 * SIDE
    inside = boxes.clamp(0, SIDE)
    there = digits[..., 0] >= 0
    cut = there & (_areas(inside) < 0.7 * _areas(boxes))
    for row, number in cut.nonzero().tolist():  # half a digit is neither one nor none: it is covered
        left, top, right, bottom = (int(value) for value in inside[row, number])
        x[row, :, max(0, top - 1) : bottom + 2, max(0, left - 1) : right + 2] = GREY / 255
    kept = torch.where(there & ~cut, digits[..., 0], -1.0)
    return x.to(memory_format=torch.channels_last), torch.cat([kept[..., None], inside], 2)


def _areas(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


# --- Loss --------------------------------------------------------------------------------------------------------


def _cells() -> torch.Tensor:
    """Return (center x, center y, stride, number of the grid) of all cells, in the order of the network's columns."""
    rows = []
    for number, stride in enumerate(STRIDES):
        place = torch.arange((SIDE // stride) ** 2)
        x, y = (place % (SIDE // stride) + 0.5) * stride, (place // (SIDE // stride) + 0.5) * stride
        rows.append(torch.stack([x, y, torch.full_like(x, stride), torch.full_like(x, number)], 1))
    return torch.cat(rows)


CELLS = _cells()


def _assigned(digits: torch.Tensor) -> torch.Tensor:
    """Return the digit's number for each cell [n, 1344]: -1 is none, -2 counts neither way."""
    boxes, there = digits[..., 1:], digits[..., :1].transpose(1, 2) >= 0
    center, size = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    away = (CELLS[None, :, None, :2] - center[:, None]).abs()  # [n, cells, digits, (x, y)]
    inside = (away <= (size / 2).clamp(min=4)[:, None]).all(-1) & there
    low, high = torch.tensor(FITTING)[CELLS[:, 3].long()].T[..., None]
    longer = size.amax(-1)[:, None]
    fits = (longer >= low) & (longer < high)
    strides = away.amax(-1) / CELLS[None, :, 2:3]
    nearest, digit = torch.where(inside & fits, strides, math.inf).min(-1)
    undecided = (nearest < AROUND) | (torch.where(inside, strides, math.inf).min(-1)[0] < 1)
    digit[undecided & (nearest >= NEAR)] = -2
    digit[~undecided & (nearest >= NEAR)] = -1
    return digit


def loss_of(maps: list[torch.Tensor], digits: torch.Tensor) -> torch.Tensor:
    raw = torch.cat([part.flatten(2) for part in maps], 2).float().transpose(1, 2)  # [n, cells, 14]
    assigned = _assigned(digits)
    positive = assigned >= 0
    truth = torch.gather(digits, 1, assigned.clamp(min=0)[..., None].expand(-1, -1, 5))[positive]
    stride = CELLS[:, 2:3]
    center = (CELLS[:, :2] + raw[..., :2] * stride)[positive]
    size = (raw[..., 2:4].clamp(-4, 4).exp() * stride * LARGEST)[positive]
    fit, box_loss = _box_loss(torch.cat([center - size / 2, center + size / 2], 1), truth[:, 1:])
    logits = raw[..., 4:]
    wanted = torch.zeros_like(logits)
    wanted[positive] = functional.one_hot(truth[:, 0].long(), 10) * (0.3 + 0.7 * fit)[:, None]
    probability = logits.detach().sigmoid()
    # Focal: the many easy cells of the ground do not drown the few of digits. A wrong digit costs more than ground.
    weight = torch.where(positive[..., None], probability.clamp(min=0.25), 0.75 * probability.square())
    weight = torch.where(wanted > 0, 1.0, weight) * (assigned != -2)[..., None]
    crossed = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return ((crossed * weight).sum() + 1.5 * box_loss) / positive.sum().clamp(min=1)


def _box_loss(boxes: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the overlap of each pair, and the sum of what is wrong: overlap, distance of the middles and size."""
    shared = torch.cat([torch.maximum(boxes[:, :2], truth[:, :2]), torch.minimum(boxes[:, 2:], truth[:, 2:])], 1)
    both = torch.cat([torch.minimum(boxes[:, :2], truth[:, :2]), torch.maximum(boxes[:, 2:], truth[:, 2:])], 1)
    overlap = _areas(shared) / (_areas(boxes) + _areas(truth) - _areas(shared))
    apart = ((boxes[:, :2] + boxes[:, 2:] - truth[:, :2] - truth[:, 2:]) / 2).square().sum(1)
    apart = apart / ((both[:, 2:] - both[:, :2]).square().sum(1) + 1e-6)
    sizes = [(one[:, 2:] - one[:, :2]).clamp(min=1e-3).log() for one in (boxes, truth)]
    return overlap.detach(), (1 - overlap + apart + 0.15 * (sizes[0] - sizes[1]).abs().sum(1)).sum()


# --- Training ----------------------------------------------------------------------------------------------------


def train(pages: Pages, steps: int) -> Numbers:
    """Train with batch normalisation, which the convolutions take over at the end."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = _normalised(Numbers()).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), PEAK_RATE, weight_decay=WEIGHT_DECAY)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1, (step + 1) / WARM_UP, (steps - step) / COOL_DOWN)
        pictures, digits = batch(rng, pages)
        with torch.autocast("cpu", torch.bfloat16):
            maps = network.maps(pictures)
        loss = loss_of(maps, digits)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    return _folded(network.eval())


def _normalised(network: Numbers) -> Numbers:
    for name, child in list(network.named_children()):
        if name in ("fine", "middle", "coarse"):
            nn.init.normal_(child.weight, 0, 0.01)
            nn.init.zeros_(child.bias[:4])
            nn.init.constant_(child.bias[4:], -4.6)  # at first there is a digit in one cell of a hundred
        else:
            setattr(network, name, nn.Sequential(child, nn.BatchNorm2d(child.out_channels)))
    for name in "deghjln":  # what is added to its own input begins small
        nn.init.constant_(getattr(network, name)[1].weight, 0.5)
    return network


def _folded(network: Numbers) -> Numbers:
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Sequential):
            setattr(network, name, nn.utils.fusion.fuse_conv_bn_eval(*child))
    return network.to(memory_format=torch.contiguous_format)
