"""List odd settings of image processors, and compare both sides' input tensors."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from families.reference import import_torchvision, open_picture
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Task
from pocketserve.tasks.selection import select_task
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError
from vision_models import facts

CONFIG = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "id2label": {"0": "a", "1": "b", "2": "c"},
}
OPEN = (-1, -1, -1, -1)
USUAL_SHAPE = (1, 3, 32, 32)
SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"size": 32},
    {"size": [32, 24]},
    {"size": {"shortest_edge": 32}},
    {"size": {"shortest_edge": 24, "longest_edge": 40}},
    {"size": {"longest_edge": 40}},
    {"size": {"height": 40, "width": 24}},
    {"size": {"height": 32, "width": 32}},
    {"size": {"max_height": 40, "max_width": 48}},
    {"size": {"min_pixels": 100, "max_pixels": 1600}},
    {"size": {"shortest_edge": 100}},
)
CROPS: tuple[dict[str, Any], ...] = (
    {},
    {"do_center_crop": True},
    {"do_center_crop": False},
    {"do_center_crop": True, "crop_size": 28},
    {"do_center_crop": True, "crop_size": {"height": 20, "width": 44}},
    {"crop_size": {"height": 24, "width": 24}},
    {"do_center_crop": True, "crop_size": {"shortest_edge": 24}},
)
EXTRAS: tuple[dict[str, Any], ...] = (
    {"do_resize": False},
    {"do_resize": True},
    {"do_rescale": False},
    {"do_rescale": True},
    {"do_rescale": False, "do_normalize": False},
    {"do_normalize": True},
    {"do_normalize": True, "image_mean": 0.5, "image_std": 0.25},
    {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.2, 0.1]},
    {"rescale_factor": 1 / 127.5},
    {"offset": True},
    {"rescale_offset": True},
    {"do_pad": False},
    {"do_pad": True},
    {"do_pad": True, "pad_size": {"height": 100, "width": 100}},
    {"do_pad": True, "size_divisor": 16},
    {"size_divisor": 16},
    {"resample": 0},
    {"resample": 1},
    {"resample": 3},
    {"resample": 4},
    {"resample": 5},
    {"crop_pct": 0.8},
    {"crop_pct": 1.0},
    {"max_size": 40},
    {"default_to_square": True},
    {"default_to_square": False},
    {"do_flip_channel_order": True},
    {"do_flip_channel_order": False},
    {"ensure_multiple_of": 16},
    {"keep_aspect_ratio": True},
    {"do_grayscale": True},
    {"do_thumbnail": True},
    {"do_reduce_labels": True},
    {"include_top": True},
)
USUAL: tuple[dict[str, Any], ...] = (
    {"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 28},
    {"size": {"shortest_edge": 32}, "do_center_crop": False},
    {"size": {"height": 40, "width": 24}, "do_center_crop": False},
    {"size": {"shortest_edge": 24, "longest_edge": 40}},
)
"""The sizes with which each other setting is tried."""

PICTURES = (
    (64, 48),
    (37, 91),
    (1, 40),
    (180, 7),
)
"""(width, height): usual ones, an edge of one pixel, and extreme proportions."""

CLOSE = 0.02
"""Largest difference as a share of the largest number: less than two of 255 steps."""


@dataclass(frozen=True)
class Difference:
    """An input tensor that isn't the reference's.

    Attributes:
        name: the processor's class.
        settings: the keys beside ``image_processor_type``.
        picture: (width, height).
        has_fixed_size: whether the model's input has the reference's size, or an open one.
        detail: the shapes or the largest difference.
    """

    name: str
    settings: Mapping[str, Any]
    picture: tuple[int, int]
    has_fixed_size: bool
    detail: str


@dataclass(frozen=True)
class Comparison:
    """The outcome of one class with one set of settings.

    Attributes:
        compared: the number of input tensors.
        refused: whether the model is served as tensors for each input.
        differences: of all pictures and inputs.
    """

    compared: int
    refused: bool
    differences: list[Difference]


def settings_of_cross() -> Iterator[dict[str, Any]]:
    """Yield each size with each crop, and with each other setting."""
    for size in SIZES:
        for crop in CROPS:
            yield {**size, **crop}
    for base in USUAL:
        for extra in EXTRAS:
            yield {**base, **extra}


def processor_classes() -> dict[str, type]:
    """Return all image processors of the installed transformers, by their class's name.

    The Pillow backend comes before torchvision's.
    """
    import_torchvision()
    import transformers.models

    found: dict[str, type] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = Path(transformers.models.__path__[0], package.name)
        for file in sorted(folder.glob("image_processing_*.py")):
            module = importlib.import_module(
                f"transformers.models.{package.name}.{file.stem}"
            )
            for name, value in vars(module).items():
                is_own = inspect.isclass(value) and value.__module__ == module.__name__
                if not is_own or "ImageProcessor" not in name or "Kwargs" in name:
                    continue
                plain = name.removesuffix("Fast").removesuffix("Pil")
                if plain not in found or name.endswith("Pil"):
                    found[plain] = value
    return dict(sorted(found.items()))


def picture_file(width: int, height: int) -> bytes:
    """Return a PNG file of smooth colours with noise."""
    import PIL.Image

    random = np.random.default_rng(width * height)
    x = np.linspace(0, 255, width)[None, :, None]
    y = np.linspace(0, 255, height)[:, None, None]
    colours = np.concatenate(
        [
            x + 0 * y,
            y + 0 * x,
            (x + y) / 2,
        ],
        axis=2,
    )
    noisy = colours + random.normal(0, 25, colours.shape)
    file = io.BytesIO()
    PIL.Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def reference_tensor(
    processor: type, settings: Mapping[str, Any], file: bytes
) -> Array | None:
    """Return the processor's own ``pixel_values``; None if it refuses the settings."""
    try:
        made = processor.from_dict(dict(settings))  # type: ignore[attr-defined]
        answer = made(images=open_picture(file), return_tensors="np")
        values = np.asarray(answer["pixel_values"])
    except Exception:  # whatever it raises, it gives no tensor
        return None
    return values


def served_task(
    folder: Path, settings: Mapping[str, Any], shape: tuple[int, ...]
) -> Task | None:
    """Return the server's task; None if the model is served as tensors."""
    image = TensorSpec("pixel_values", "FP32", shape)
    files = {"config.json": CONFIG, "preprocessor_config.json": dict(settings)}
    try:
        task = select_task(facts(folder, {"logits": (-1, 3)}, files=files, image=image))
    except ModelLoadError:
        return None
    return None if task.name == "tensors" else task


def our_tensor(task: Task, file: bytes) -> Array | None:
    """Return the task's input tensor for a picture; None if it refuses the picture."""
    try:
        (run,) = task.prepare(memoryview(file), NO_HINTS).runs
    except ApiError:
        return None
    return np.asarray(run["pixel_values"])


def difference(ours: Array, theirs: Array) -> str:
    """Return what differs; empty if nothing does."""
    if ours.shape != theirs.shape:
        return f"shape {ours.shape} instead of {theirs.shape}"
    largest = float(np.abs(ours - theirs).max())
    limit = CLOSE * max(float(np.abs(theirs).max()), 1e-3)
    return "" if largest <= limit else f"difference {largest:.3g}, limit {limit:.3g}"


def compare(
    folder: Path,
    name: str,
    processor: type,
    settings: Mapping[str, Any],
    files: Mapping[tuple[int, int], bytes],
) -> Comparison:
    """Compare a class and its settings with the server, for each picture and input."""
    full = {"image_processor_type": name, **settings}
    tasks = {OPEN: served_task(folder, full, OPEN)}
    if tasks[OPEN] is None and served_task(folder, full, USUAL_SHAPE) is None:
        return Comparison(0, True, [])
    compared = 0
    differences = []
    for size, file in files.items():
        theirs = reference_tensor(processor, settings, file)
        if theirs is None or theirs.ndim != len(OPEN):
            continue
        for shape in (theirs.shape, OPEN):
            if shape not in tasks:
                tasks[shape] = served_task(folder, full, shape)
            task = tasks[shape]
            if task is None:
                continue
            ours = our_tensor(task, file)
            if ours is None:
                continue
            compared += 1
            detail = difference(ours, theirs)
            if detail:
                is_fixed = shape != OPEN
                row = Difference(name, settings, size, is_fixed, detail)
                differences.append(row)
    return Comparison(compared, False, differences)
