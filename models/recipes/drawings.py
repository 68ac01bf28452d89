"""Pictures to learn from and to be measured by: drawn people in random poses, and shapes, on busy grounds.

Needs numpy and Pillow only, and imports nothing from this project: a test can load this file by its path and draw
pictures that no model has seen.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "star", "triangle")

LIMBS = ((5, 7), (7, 9), (6, 8), (8, 10), (11, 13), (13, 15), (12, 14), (14, 16))
"""Pairs of COCO's points that are drawn as arms and legs."""

SKINS = ((255, 219, 172), (241, 194, 125), (198, 134, 66), (141, 85, 36), (92, 58, 30))
FINER = 2
"""Pictures are drawn at this multiple and reduced, which smooths their edges."""

Points = np.ndarray


def person(rng: np.random.Generator, width: int, height: int) -> tuple[Image.Image, Points]:
    """Somebody who faces the viewer, whole, anywhere on the picture.

    Returns:
        The picture, and the 17 points of COCO, [17, (x, y)] in pixels. The person's left is the picture's right.
    """
    points = _pose(rng)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.array([0.09, 0.12])  # a head is higher than its points
    low, high = low - margin, high + margin
    tall = min(np.array([width, height]) / (high - low)) * rng.uniform(0.55, 1.0)
    room = np.array([width, height]) - (high - low) * tall
    points = (points - low) * tall + rng.uniform(0, 1, 2) * room
    picture = _ground(rng, width, height)
    _draw_person(rng, ImageDraw.Draw(picture), points * FINER, tall * FINER)
    return _reduced(rng, picture, width, height), points


def nobody(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A ground without anybody."""
    return _reduced(rng, _ground(rng, width, height), width, height)


def objects(rng: np.random.Generator, width: int, height: int) -> tuple[Image.Image, list[tuple[int, tuple]]]:
    """One to five shapes that hardly cover each other.

    Returns:
        The picture, and a list of (class, (left, top, right, bottom)) in pixels.
    """
    picture = _ground(rng, width, height, lines_only=True)
    draw = ImageDraw.Draw(picture)
    placed: list[tuple[int, tuple]] = []
    for _ in range(int(rng.integers(1, 6))):
        kind = int(rng.integers(len(SHAPES)))
        outline = _outline(rng, kind) * min(width, height) * rng.uniform(0.11, 0.28)
        low, high = outline.min(axis=0), outline.max(axis=0)
        spot = rng.uniform(-low, np.array([width, height]) - high)
        outline = outline + spot
        box = (*outline.min(axis=0), *outline.max(axis=0))
        if any(_shared(box, other) > 0.1 for _, other in placed):
            continue
        placed.append((kind, tuple(float(value) for value in box)))
        rim = _colour(rng) if rng.random() < 0.4 else None
        draw.polygon([tuple(point) for point in outline * FINER], _bright(rng), rim, width=FINER)
    return _reduced(rng, picture, width, height), placed


def _pose(rng: np.random.Generator) -> Points:
    """The 17 points in units of about a body's height, the hips' middle at 0, 0, y downwards."""
    points = np.zeros((17, 2))
    shoulder, hip = rng.uniform(0.10, 0.14), rng.uniform(0.06, 0.09)
    neck = np.array([rng.normal(0, 0.01), -rng.uniform(0.27, 0.32)])
    head = neck + np.array([rng.normal(0, 0.015), -rng.uniform(0.12, 0.14)])
    turn = rng.normal(0, 0.012)
    offsets = {0: (turn, 0.012), 1: (0.028 + turn, -0.02), 2: (-0.028 + turn, -0.02), 3: (0.068, 0.0), 4: (-0.068, 0.0)}
    for index, offset in offsets.items():
        points[index] = head + offset
    for side, first in ((1, 5), (-1, 6)):
        points[first] = neck + (side * shoulder, 0.02)
        points[first + 6] = (side * hip, 0)
        _limb(rng, points, (first, first + 2, first + 4), side, (rng.uniform(0.15, 0.18), (-10, 165), (-30, 110)))
        _limb(rng, points, (first + 6, first + 8, first + 10), side, (rng.uniform(0.22, 0.25), (-8, 60), (-60, 20)))
    angle = np.deg2rad(rng.uniform(-20, 20))
    turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return points @ turned * (rng.uniform(0.92, 1.08), 1)


def _limb(
    rng: np.random.Generator, points: Points, joints: tuple[int, int, int], side: int, shape: tuple
) -> None:
    """Two equal bones, the first at an angle outwards from straight down, the second at one from the first."""
    length, first, second = shape
    angle = np.deg2rad(rng.uniform(*first))
    for start, end, more in ((*joints[:2], 0.0), (*joints[1:], np.deg2rad(rng.uniform(*second)))):
        angle += more
        points[end] = points[start] + length * np.array([side * np.sin(angle), np.cos(angle)])


def _draw_person(rng: np.random.Generator, draw: ImageDraw.ImageDraw, points: Points, tall: float) -> None:
    skin = SKINS[int(rng.integers(len(SKINS)))]
    shirt, trousers = _colour(rng), _colour(rng)
    thick = rng.uniform(0.045, 0.065) * tall
    for first, second in LIMBS[4:]:
        _bone(draw, points[first], points[second], trousers, thick * 1.15)
    for index in (15, 16):
        _dot(draw, points[index], thick * 0.62, _dark(rng))
    draw.polygon([tuple(points[index]) for index in (5, 6, 12, 11)], shirt)
    for ends in ((5, 6), (11, 12), (5, 11), (6, 12)):
        _bone(draw, points[ends[0]], points[ends[1]], shirt, thick)
    sleeves = shirt if rng.random() < 0.5 else skin
    for first, second in LIMBS[:4]:
        _bone(draw, points[first], points[second], shirt if first in (5, 6) else sleeves, thick)
    for index in (9, 10):
        _dot(draw, points[index], thick * 0.6, skin)
    middle, neck = points[3:5].mean(axis=0), points[5:7].mean(axis=0)
    _bone(draw, middle, neck, skin, thick)
    for index in (3, 4):
        _dot(draw, points[index], tall * 0.016, skin)
    _dot(draw, middle, tall * 0.066, skin)
    hair = np.array([middle[0], middle[1] - tall * 0.02])
    box = [*(hair - tall * 0.07), *(hair + tall * 0.07)]
    draw.pieslice(box, 195, 345, fill=_dark(rng))
    for index in (1, 2):
        _dot(draw, points[index], tall * 0.011, (20, 20, 30))
    _dot(draw, points[0], tall * 0.010, tuple(value * 2 // 3 for value in skin))


def _bone(draw: ImageDraw.ImageDraw, start: Points, end: Points, colour: tuple, width: float) -> None:
    draw.line([tuple(start), tuple(end)], colour, max(1, round(width)))
    for spot in (start, end):
        _dot(draw, spot, width / 2, colour)


def _dot(draw: ImageDraw.ImageDraw, spot: Points, radius: float, colour: tuple) -> None:
    draw.ellipse([*(spot - radius), *(spot + radius)], colour)


def _outline(rng: np.random.Generator, kind: int) -> Points:
    """A polygon around 0, 0 with a radius of 1."""
    if SHAPES[kind] == "circle":
        angles, radii = np.linspace(0, 2 * np.pi, 48, endpoint=False), np.ones(48)
    else:
        corners = {"square": 4, "triangle": 3, "star": 10}[SHAPES[kind]]
        angles = np.linspace(0, 2 * np.pi, corners, endpoint=False) - np.pi / 2
        angles = angles + (np.pi / 4 if corners == 4 else 0) + np.deg2rad(rng.uniform(-20, 20))
        radii = np.where(np.arange(corners) % 2, 0.42, 1.0) if corners == 10 else np.ones(corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None] * (rng.uniform(0.75, 1.25), 1)


def _shared(one: tuple, other: tuple) -> float:
    """Intersection over the smaller of two boxes."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    sizes = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / min(sizes)


def _ground(rng: np.random.Generator, width: int, height: int, lines_only: bool = False) -> Image.Image:
    """A gradient between two muted colours with some clutter, at FINER times the size."""
    corners = np.array([[_muted(rng), _muted(rng)], [_muted(rng), _muted(rng)]], np.uint8)
    picture = Image.fromarray(corners).resize((width * FINER, height * FINER), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(picture)
    size = np.array(picture.size)
    for _ in range(int(rng.integers(0, 8))):
        kind = 0 if lines_only else int(rng.integers(3))
        start = rng.uniform(0, 1, 2) * size
        end = start + rng.normal(0, 0.25, 2) * size.min()
        if kind == 0:
            draw.line([tuple(start), tuple(end)], _muted(rng), max(1, round(rng.uniform(0.002, 0.02) * size.min())))
        else:
            low, high = np.minimum(start, end), np.maximum(start, end)
            (draw.rectangle if kind == 1 else draw.ellipse)([*low, *high], _muted(rng))
    return picture


def _reduced(rng: np.random.Generator, picture: Image.Image, width: int, height: int) -> Image.Image:
    """At the wanted size, with some noise of a sensor."""
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BOX), np.float32)
    noise = rng.normal(0, rng.uniform(0, 6), (height, width, 1)).astype(np.float32)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    return tuple(int(value) for value in rng.integers(0, 256, 3))


def _muted(rng: np.random.Generator) -> tuple[int, int, int]:
    """Neither bright nor colourful."""
    grey = rng.uniform(50, 200)
    return tuple(int(value) for value in np.clip(grey + rng.normal(0, 15, 3), 0, 255))


def _bright(rng: np.random.Generator) -> tuple[int, int, int]:
    """Colourful: one channel high and one low."""
    values = np.array([rng.uniform(190, 255), rng.uniform(0, 70), rng.uniform(0, 255)])
    return tuple(int(value) for value in rng.permutation(values))


def _dark(rng: np.random.Generator) -> tuple[int, int, int]:
    return tuple(int(value) for value in rng.integers(0, 90, 3))
