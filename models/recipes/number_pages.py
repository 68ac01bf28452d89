"""Draws pages with digits as a camera sees them, and tells where each digit lies.

Digits are printed in fonts that ship in packages, written by hand (scikit-learn's digits, enlarged) or made of seven
segments; letters and strokes stand between them. Needs numpy, Pillow and scikit-learn only, so that a test can draw
pages and measure the model again; fonts besides Pillow's own are taken where they are installed.
"""

from __future__ import annotations

import io
import os
import re
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy.ndimage import label
from sklearn.datasets import load_sample_images

from models.recipes.datasets import digits_split

HELD_OUT_FONTS = ("STIXGeneral", "oswald", "patrick-hand")
FONT = re.compile(r"(DejaVu(Sans|Serif|SansMono)|STIXGeneral(Bol)?(Ita(lic)?)?|cm(b|r|ss|ti|tt)10)(-\w+)?\.ttf|.*-latin-[47]00-normal\.woff")
"""Of matplotlib those that have digits of the usual kind, of ``@fontsource`` the Latin ones, regular and bold."""

LETTERS = [char for char in string.ascii_letters if char not in "OoIlSZB"]  # these are digits in many a font
MARKS = "+*/=%#?()<>&@$"

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""

Entry = dict[str, Any]
"""A digit as ``pocketserve compare`` has it: label, x, y, width and height."""

Stroke = tuple[Image.Image, float, float, int]
"""A mask cropped to its ink, where its upper left corner lies, and its digit; -1 is none."""

Glyph = Callable[[np.random.Generator, str, float], tuple[Image.Image, float, float, float]]
"""Mask of a character whose digits are that high, its left and top from the pen on the base line, and its advance."""


# --- Who writes --------------------------------------------------------------------------------------------------


@cache
def fonts(held_out: bool) -> list[str | None]:
    """Return paths of fonts below the folders that ``POCKETSERVE_FONTS`` lists; None is the one inside Pillow.

    Without that variable there is only the last, which is held out: every machine draws the same pages then.
    """
    folders = [Path(folder) for folder in os.environ.get("POCKETSERVE_FONTS", "").split(os.pathsep) if folder]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if FONT.fullmatch(path.name)]
    chosen = [str(path) for path in files if path.name.startswith(HELD_OUT_FONTS) == held_out]
    return [*chosen, None] if held_out else chosen


@cache
def _font(path: str | None, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size) if path is None else ImageFont.truetype(path, size)  # type: ignore[return-value]


def printed(rng: np.random.Generator, held_out: bool) -> Glyph:
    paths = fonts(held_out)
    path = paths[int(rng.integers(len(paths)))]
    bold = int(rng.integers(2)) if rng.random() < 0.3 else 0

    def glyph(_: np.random.Generator, char: str, height: float) -> tuple[Image.Image, float, float, float]:
        font = _font(path, 2 * max(4, round(height / 1.4)))
        left, top, right, bottom = font.getbbox(char, anchor="ls", stroke_width=bold)
        mask = Image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))))
        ImageDraw.Draw(mask).text((-left, -top), char, 255, font, anchor="ls", stroke_width=bold)
        return mask, left, top, font.getlength(char) + bold

    return glyph


@cache
def _written(held_out: bool) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """For each digit the pictures of it, 48 pixels high and float32 from 0 to 1: as they are, and their middle lines."""
    x_train, y_train, x_test, y_test = digits_split()
    pictures, truth = (x_test, y_test) if held_out else (x_train, y_train)
    large = np.stack([_enlarged(picture[..., 0]) for picture in pictures])
    lines = _thinned(large > 0.45)
    # 64 grey values do not always show a loop: a 6 without one would be no 6.
    whole = np.array([_loops(line) >= LOOPS[digit] for line, digit in zip(lines, truth)])
    return [(list(large[truth == digit]), list(lines[(truth == digit) & whole])) for digit in range(10)]


def _loops(line: np.ndarray) -> int:
    return int(label(line == 0)[1]) - 1


LOOPS = (1, 0, 0, 0, 0, 0, 1, 0, 2, 1)


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """48 x 48, in a frame of 4."""
    framed = Image.fromarray(np.pad(picture, 1)).resize((60, 60), Image.Resampling.BICUBIC)
    return np.asarray(framed, np.float32)[2:-2, 2:-2]


def _thinned(ink: np.ndarray) -> np.ndarray:
    """The middle lines of strokes [n, height, width], float32 (Zhang and Suen, 1984)."""
    ink = ink.astype(np.uint8)
    while True:
        before = int(ink.sum())
        for odd in (False, True):
            padded = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
            n, ne, e, se, s, sw, w, nw = (
                padded[:, 1 + down : padded.shape[1] - 1 + down, 1 + right : padded.shape[2] - 1 + right]
                for down, right in ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
            )
            around = [n, ne, e, se, s, sw, w, nw]
            count = sum(part.astype(np.int8) for part in around)
            turns = sum(((a == 0) & (b == 1)).astype(np.int8) for a, b in zip(around, [*around[1:], n]))
            open_sides = ((n & e & w) | (n & s & w)) if odd else ((n & e & s) | (e & s & w))
            ink = ink * ~((count >= 2) & (count <= 6) & (turns == 1) & (open_sides == 0))
        if int(ink.sum()) == before:
            return ink.astype(np.float32)


def handwritten(rng: np.random.Generator, held_out: bool) -> Glyph:
    """One person's hand as far as pen, slant and width go; each digit is another picture of scikit-learn's."""
    thin, width, slant, pen = rng.random() < 0.7, rng.uniform(0.6, 1.1), rng.normal(0, 0.12), rng.uniform(0.8, 1.8)
    level = rng.uniform(0.35, 0.6)
    other = printed(rng, held_out)

    def glyph(rng: np.random.Generator, char: str, height: float) -> tuple[Image.Image, float, float, float]:
        if char not in string.digits:
            return other(rng, char, height)
        pictures = _written(held_out)[int(char)][int(thin)]
        picture = Image.fromarray(pictures[int(rng.integers(len(pictures)))] * 255).convert("L")
        angle, scale = rng.normal(0, 0.06), 56 / (height * rng.uniform(1.05, 1.3))
        side = max(6, round(height * 1.4))
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        matrix = np.array([[cos / width, sin / width + slant * scale], [-sin, cos]])
        moved = 28 - matrix @ [side / 2, side / 2]
        if thin:
            picture = picture.filter(ImageFilter.GaussianBlur(pen))
            level_here = 255 * 0.3 / (pen * 2.5)
        else:
            level_here = 255 * level
        turned = picture.transform(
            (side, side), Image.Transform.AFFINE, (*matrix[0], moved[0], *matrix[1], moved[1]), Image.Resampling.BICUBIC
        )
        soft = np.clip((np.asarray(turned, np.float32) / level_here - 1) * 2 * max(1, 8 / height * 4) + 0.5, 0, 1)
        mask = Image.fromarray((soft * 255).astype(np.uint8))
        box = mask.point(lambda value: 255 * (value > 90)).getbbox() or (0, 0, side, side)
        mask = mask.crop(box)
        gap = height * rng.uniform(0.08, 0.25)
        return mask, 0, -mask.height + rng.normal(0, 0.03) * height, mask.width + gap

    return glyph


SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgecd", "abc", "abcdefg", "abcdfg")
CORNERS = {"a": (0, 0, 1, 0), "b": (1, 0, 1, 1), "c": (1, 1, 1, 2), "d": (0, 2, 1, 2), "e": (0, 1, 0, 2), "f": (0, 0, 0, 1)}
CORNERS["g"] = (0, 1, 1, 1)


def segmented(rng: np.random.Generator, held_out: bool) -> Glyph:
    """Of a clock or a meter."""
    width, pen, slant = rng.uniform(0.42, 0.6), rng.uniform(0.07, 0.16), rng.choice([0, 0, 0.12])
    other = printed(rng, held_out)

    def glyph(rng: np.random.Generator, char: str, height: float) -> tuple[Image.Image, float, float, float]:
        if char not in string.digits:
            return other(rng, char, height)
        thick, cell = pen * height, np.array([height * (width - pen), height * (1 - pen) / 2])
        mask = Image.new("L", (2 * round(height * (width + slant)), 2 * round(height)))
        draw = ImageDraw.Draw(mask)
        for name in SEGMENTS[int(char)]:
            ends = np.array(CORNERS[name], float).reshape(2, 2) * cell + thick / 2
            along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
            ends += along * [[0.3 * thick], [-0.3 * thick]]  # a gap between segments
            ends[:, 0] += slant * (height - ends[:, 1])
            draw.line([tuple(point * 2) for point in ends], 255, max(2, round(2 * thick)))
        mask = mask.resize((mask.width // 2, mask.height // 2), Image.Resampling.BOX)
        box = mask.getbbox() or (0, 0, *mask.size)
        return mask.crop(box), box[0], box[1] - mask.height, height * (width + 0.15)

    return glyph


# --- What is written ---------------------------------------------------------------------------------------------


def _line(rng: np.random.Generator, glyph: Glyph, text: str, height: float) -> list[Stroke]:
    """The characters of a line whose base is at 0."""
    pen, line, spacing = 0.0, [], rng.uniform(-0.02, 0.15) * height
    for char in text:
        if char == " ":
            pen += 0.4 * height
            continue
        mask, left, top, advance = glyph(rng, char, height)
        line.append((mask, pen + left, top, int(char) if char in string.digits else -1))
        pen += advance + spacing
    return line


def _number(rng: np.random.Generator, longest: int) -> str:
    digits = "".join(str(digit) for digit in rng.integers(0, 10, int(rng.integers(1, longest + 1))))
    if len(digits) > 2 and rng.random() < 0.35:
        place = int(rng.integers(1, len(digits)))
        digits = digits[:place] + str(rng.choice(list(".,:-/ "))) + digits[place:]
    return digits


def _word(rng: np.random.Generator) -> str:
    word = "".join(rng.choice(LETTERS, int(rng.integers(1, 7))))
    return word + str(rng.choice(list(MARKS))) if rng.random() < 0.2 else word


def _group(rng: np.random.Generator, height: float, room: float, held_out: bool) -> list[Stroke]:
    """Some lines of one hand or font, its digits ``height`` pixels high and at most ``room`` pixels wide."""
    makers = (printed, handwritten, segmented)
    glyph = makers[int(rng.choice(3, p=(0.5, 0.42, 0.08)))](rng, held_out)
    longest = int(np.clip(room / (0.75 * height), 1, 10))
    kind = rng.random()
    group: list[Stroke] = []
    for number in range(int(rng.integers(2, 6)) if kind < 0.2 else 1):
        text = _number(rng, longest)
        if kind > 0.75:
            text = " ".join(rng.permutation([text[: max(1, longest - 4)], _word(rng)])) if kind < 0.9 else _word(rng)
        down = number * height * rng.uniform(1.35, 1.6)
        group += [(mask, left, top + down, digit) for mask, left, top, digit in _line(rng, glyph, text, height)]
    return group


def _colour(rng: np.random.Generator) -> np.ndarray:
    if rng.random() < 0.5:
        return np.clip(rng.choice([25, 60, 200, 235]) + rng.normal(0, 14, 3), 0, 255)
    return rng.uniform(0, 255, 3)


def _ink(rng: np.random.Generator, ground: np.ndarray) -> tuple[int, int, int]:
    """A colour that can be told from the ground."""
    weights = np.array([0.299, 0.587, 0.114])
    least = rng.uniform(60, 130)
    for _ in range(50):
        colour = _colour(rng)
        if abs(float((colour - ground) @ weights)) > least:
            return _rgb(colour)
    return (15, 15, 15) if float(ground @ weights) > 127 else (240, 240, 240)


def _rgb(colour: np.ndarray) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in np.clip(colour, 0, 255))
    return red, green, blue


# --- What it is written on ---------------------------------------------------------------------------------------


@cache
def _photos(held_out: bool) -> list[Image.Image]:
    """Return scikit-learn's two photos, for training also those in ``POCKETSERVE_PHOTOS``."""
    photos = [Image.fromarray(picture) for picture in load_sample_images().images]
    folder = os.environ.get("POCKETSERVE_PHOTOS")
    if folder and not held_out:
        photos += [Image.open(path).convert("RGB") for path in sorted(Path(folder).iterdir())]
    return photos


def _photo(rng: np.random.Generator, size: tuple[int, int], held_out: bool) -> Image.Image:
    """A part of one, in other colours and perhaps mirrored."""
    photos = _photos(held_out)
    photo = photos[int(rng.integers(len(photos)))]
    scale = rng.uniform(0.35, 1.0) * min(photo.width / size[0], photo.height / size[1])
    part = (int(size[0] * scale), int(size[1] * scale))
    left, top = int(rng.integers(photo.width - part[0] + 1)), int(rng.integers(photo.height - part[1] + 1))
    piece = photo.crop((left, top, left + part[0], top + part[1])).resize(size)
    pixels = np.asarray(piece, np.float32)[:, :: int(rng.choice([-1, 1])), rng.permutation(3)]
    return Image.fromarray(np.clip(pixels * rng.uniform(0.5, 1.3) + rng.uniform(-30, 30), 0, 255).astype(np.uint8))


def _gradient(rng: np.random.Generator, size: tuple[int, int], base: np.ndarray, spread: float) -> Image.Image:
    corners = np.clip(base + rng.normal(0, spread, (2, 2, 1)) + rng.normal(0, spread / 4, (2, 2, 3)), 0, 255)
    return Image.fromarray(corners.astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)


def _clutter(rng: np.random.Generator, picture: Image.Image, count: int) -> None:
    """Lines, boxes, ellipses and scribbles."""
    draw, size = ImageDraw.Draw(picture), np.array(picture.size)
    for _ in range(count):
        start, colour = rng.uniform(0, 1, 2) * size, _rgb(_colour(rng))
        width = max(1, round(float(rng.uniform(0.003, 0.02)) * size.max()))
        points = start + np.cumsum(rng.normal(0, 0.09, (int(rng.integers(2, 7)), 2)), axis=0) * size.max()
        low, high = points.min(axis=0), points.max(axis=0)
        kind = int(rng.integers(4))
        if kind == 0:
            draw.line([tuple(point) for point in points], colour, width, joint="curve")
        elif kind == 1:
            draw.rectangle([*low, *high], colour if rng.random() < 0.5 else None, colour, width)
        elif kind == 2 and (high - low).max() > 0.2 * size.max():  # a smaller ring would be a zero
            draw.ellipse([*low, *high], colour if rng.random() < 0.5 else None, colour, width)
        else:
            draw.arc([*low, *high], *rng.uniform(0, 360, 2), colour, width)


def _scene(rng: np.random.Generator, size: tuple[int, int], held_out: bool) -> Image.Image:
    scene = _photo(rng, size, held_out) if rng.random() < 0.5 else _gradient(rng, size, _colour(rng), 40)
    _clutter(rng, scene, int(rng.integers(0, 10)))
    if rng.random() < 0.3:
        _grain(rng, scene)
    return scene


def _grain(rng: np.random.Generator, picture: Image.Image) -> None:
    """Cloth, wood or plaster: noise of some size, longer one way than the other."""
    cells = tuple(max(2, int(side / rng.choice([2, 3, 6, 20]))) for side in picture.size)
    noise = rng.normal(0, 1, cells[::-1]).astype(np.float32)
    rough = np.asarray(Image.fromarray(noise).resize(picture.size, Image.Resampling.BILINEAR))[..., None]
    pixels = np.asarray(picture, np.float32) + rough * rng.uniform(4, 22)
    picture.paste(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)))


def _paper(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    base = _colour(rng) if rng.random() < 0.5 else np.clip(235 + rng.normal(0, 12, 3), 0, 255)
    paper = _gradient(rng, size, base, 8)
    if rng.random() < 0.3:
        _grain(rng, paper)
    draw, colour = ImageDraw.Draw(paper), _rgb(base + rng.normal(0, 35))
    step = float(rng.uniform(0.05, 0.15)) * max(size)
    if rng.random() < 0.3:
        for place in np.arange(step, size[1], step):
            draw.line([0, place, size[0], place], colour, 1)
        if rng.random() < 0.5:
            for place in np.arange(step, size[0], step):
                draw.line([place, 0, place, size[1]], colour, 1)
    return paper


EMPTY_SHARE = 0.125

# --- A page and its photo ----------------------------------------------------------------------------------------


def page(rng: np.random.Generator, width: int, height: int, held_out: bool = False) -> tuple[Image.Image, list[tuple[int, Box]]]:
    """Draw a photo of a page; return it with its digits and their boxes, which lie inside.

    ``held_out`` takes fonts and handwriting that no training page has. One training page of eight is a photo
    without digits.
    """
    if not held_out and rng.random() < EMPTY_SHARE:
        return _photographed(rng, _photo(rng, (width, height), held_out)), []
    while True:
        size = (width, height)
        on_paper = rng.random() < 0.8
        sheet = _paper(rng, size) if on_paper else _scene(rng, size, held_out)
        outlines = _fill(rng, sheet, held_out)
        matrix = _perspective(rng, size, on_paper)
        digits = [(digit, _bounds(outline, matrix)) for digit, outline in outlines]
        # Half a digit at the edge is neither one nor none: such a page is drawn anew.
        if all(box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height for _, box in digits):
            break
    scene = _scene(rng, size, held_out)
    back = np.linalg.inv(matrix)
    flat = tuple((back / back[2, 2]).ravel()[:8])
    covered = Image.new("L", size, 255).transform(size, Image.Transform.PERSPECTIVE, flat, Image.Resampling.BILINEAR)
    scene.paste(sheet.transform(size, Image.Transform.PERSPECTIVE, flat, Image.Resampling.BICUBIC), mask=covered)
    return _photographed(rng, scene), digits


def any_size(rng: np.random.Generator, longest: int) -> tuple[int, int]:
    """Return width and height of a picture, upright or wide up to 5 : 3, whose longer side is ``longest``."""
    shorter = round(longest * rng.uniform(0.6, 1.0))
    return (longest, shorter) if rng.random() < 0.5 else (shorter, longest)


def photos(count: int, seed: int, longest: int = 640) -> list[tuple[bytes, list[Entry]]]:
    """Draw held-out pages; return JPEG files and what an answer without fault says of them."""
    rng = np.random.default_rng(seed)
    pages = [page(rng, *any_size(rng, longest), held_out=True) for _ in range(count)]
    return [(as_jpeg(picture), [_entry(digit, box) for digit, box in digits]) for picture, digits in pages]


def as_jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()


def _entry(digit: int, box: Box) -> Entry:
    left, top, right, bottom = box
    return {"label": str(digit), "x": left, "y": top, "width": right - left, "height": bottom - top}


def flat(entries: list[Entry]) -> list[Entry]:
    """Return the entries of an answer as ``pocketserve compare`` measures them: the box's numbers beside the label."""
    return [{**entry["box"], **entry} for entry in entries]


def _fill(rng: np.random.Generator, sheet: Image.Image, held_out: bool) -> list[tuple[int, np.ndarray]]:
    """Write groups where there is room; return each digit with points [k, (x, y)] around it."""
    taken: list[Box] = []
    outlines = []
    longest = max(sheet.size)
    _clutter(rng, sheet, int(rng.integers(0, 3)) if rng.random() < 0.4 else 0)
    one_size = rng.uniform(0.055, 0.14) if rng.random() < 0.5 else None
    for _ in range(int(rng.integers(1, 9))):
        share = one_size or float(np.exp(rng.uniform(np.log(0.055), np.log(0.5))))
        group = _group(rng, share * longest, sheet.width * 0.9, held_out)
        left, top = min(part[1] for part in group), min(part[2] for part in group)
        size = (
            max(part[1] + part[0].width for part in group) - left,
            max(part[2] + part[0].height for part in group) - top,
        )
        spare = (sheet.width - size[0], sheet.height - size[1])
        if min(spare) <= 2:
            continue
        for _ in range(8):
            x, y = rng.uniform(0.0, 1, 2) * spare
            box = (x, y, x + size[0], y + size[1])
            if not any(_touch(box, other, share * longest * 0.25) for other in taken):
                taken.append(box)
                outlines += _write(rng, sheet, group, (x - left, y - top), box)
                break
    return outlines


def _touch(one: Box, other: Box, margin: float) -> bool:
    return (
        one[0] < other[2] + margin and other[0] < one[2] + margin and one[1] < other[3] + margin and other[1] < one[3] + margin
    )


def _write(
    rng: np.random.Generator, sheet: Image.Image, group: list[Stroke], move: tuple[float, float], box: Box
) -> list[tuple[int, np.ndarray]]:
    edges = [round(value) for value in box]
    plate = rng.random()
    if plate < 0.2:
        margin = round(float(rng.uniform(0.1, 0.3)) * min(box[2] - box[0], box[3] - box[1])) + 2
        around = [edges[0] - margin, edges[1] - margin, edges[2] + margin, edges[3] + margin]
        drawing = ImageDraw.Draw(sheet)
        colour = _rgb(_colour(rng))
        drawing.rounded_rectangle(around, margin * int(rng.integers(2)), colour if plate < 0.12 else None, colour, 2)
    ground = np.asarray(sheet.crop(tuple(edges)), np.float32).reshape(-1, 3).mean(axis=0)  # type: ignore[arg-type]
    ink, strength = _ink(rng, ground), rng.uniform(0.8, 1.0)
    outlines = []
    for mask, left, top, digit in group:
        place = (round(left + move[0]), round(top + move[1]))
        sheet.paste(ink, place, mask.point(lambda value: int(value * strength)))
        if digit >= 0:
            outlines.append((digit, _outline(mask) + place))
    return outlines


DIRECTIONS = np.stack([np.cos(np.linspace(0, 2 * np.pi, 24, False)), np.sin(np.linspace(0, 2 * np.pi, 24, False))])


def _outline(mask: Image.Image) -> np.ndarray:
    """The points of the ink that lie farthest out, [24, (x, y)]."""
    points = np.argwhere(np.asarray(mask) > 90)[:, ::-1] + 0.5
    if not len(points):
        points = np.array([[0.5, 0.5], [mask.width - 0.5, mask.height - 0.5]])
    return points[(points @ DIRECTIONS).argmax(axis=0)] + 0.5 * np.sign(np.round(DIRECTIONS.T, 6))


def _perspective(rng: np.random.Generator, size: tuple[int, int], on_paper: bool) -> np.ndarray:
    """The matrix [3, 3] from the sheet to the photo."""
    angle = np.deg2rad(np.clip(rng.normal(0, 8), -20, 20))
    scale = rng.uniform(0.78, 1.0) if on_paper else rng.uniform(1.0, 1.08)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * scale
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * size
    middle = np.array(size) / 2
    moved = (corners - middle) @ turn.T + middle + rng.normal(0, 0.03, 2) * size
    moved += rng.uniform(-0.07, 0.07, (4, 2)) * max(size) * rng.random()
    rows, right = [], []
    for (x, y), (u, v) in zip(corners, moved):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    return np.append(np.linalg.solve(np.array(rows), np.array(right)), 1).reshape(3, 3)


def _bounds(points: np.ndarray, matrix: np.ndarray) -> Box:
    moved = np.c_[points, np.ones(len(points))] @ matrix.T
    moved = moved[:, :2] / moved[:, 2:]
    (left, top), (right, bottom) = moved.min(axis=0), moved.max(axis=0)
    return float(left), float(top), float(right), float(bottom)


def _photographed(rng: np.random.Generator, scene: Image.Image) -> Image.Image:
    """Uneven light, a shadow, blur, noise of a sensor and JPEG."""
    size, longest = scene.size, max(scene.size)
    light = rng.uniform(0.75, 1.1, (2, 2)).astype(np.float32)
    field = np.asarray(Image.fromarray(light).resize(size, Image.Resampling.BILINEAR))
    if rng.random() < 0.35:
        shadow = Image.new("L", size, 255)
        start = rng.uniform(-0.3, 1.3, (5, 2)) * size
        ImageDraw.Draw(shadow).polygon([tuple(point) for point in start], int(rng.uniform(110, 220)))
        soft = shadow.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.002, 0.03)) * longest))
        field = field * (np.asarray(soft, np.float32) / 255)
    if rng.random() < 0.6:
        scene = scene.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0008, 0.0045)) * longest))
    pixels = np.asarray(scene, np.float32) * field[..., None] * rng.uniform(0.92, 1.08, 3)
    pixels = 255 * np.clip(pixels / 255, 0, 1) ** rng.uniform(0.75, 1.3)
    if rng.random() < 0.7:
        pixels = pixels + rng.normal(0, rng.uniform(1, 11), (*pixels.shape[:2], 1 if rng.random() < 0.5 else 3))
    noisy = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if rng.random() < 0.2:
        return noisy
    file = io.BytesIO()
    noisy.save(file, "JPEG", quality=int(rng.integers(30, 96)))
    return Image.open(file).convert("RGB")
