"""The contract of recipes, and their data.

Needs NumPy alone: recipes run in the environments of converters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.convert.converter import ConversionError, Converter

Number = float | int


class TrainingData(NamedTuple):
    """Labelled samples.

    Attributes:
        inputs: of the model, in the order of ``forward``; the first axis counts
            samples.
        labels: [samples], int64 classes; or int64 [samples, classes] of 0 and 1; or
            float32 [samples, …], the target numbers of a regression.
    """

    inputs: tuple[Array, ...]
    labels: Array


class CompressedModule(NamedTuple):
    """A recipe's result.

    Attributes:
        module: in evaluation mode; eager, or a TorchScript program.
        notes: sentences for the user about the work of the recipe.
    """

    module: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A way to make a model smaller.

    Attributes:
        name: as ``--recipe`` takes it; the new version is named after it.
        summary: completes "this recipe …".
        compress: takes a module, :class:`TrainingData` and the options by name; does
            not change the module.
        defaults: the options that it takes, of :data:`OPTIONS`.
        sources: the formats of models that it takes.
        packages: modules that the server's own environment needs to run it there.
        fallback: the environment to use if they are missing.
        quantize: the quantisation that it applies, as a conversion's mode, for the
            provenance.
        takes_student: whether it trains another module of the user's.
    """

    name: str
    summary: str
    compress: Callable[..., CompressedModule]
    defaults: Mapping[str, Number] = field(default_factory=dict)
    sources: tuple[str, ...] = ("torch",)
    packages: tuple[str, ...] = ("torch",)
    fallback: str = "pytorch"
    quantize: str = "none"
    takes_student: bool = False

    def converter(self) -> Converter:
        """Return the recipe as a converter, which is planned, run and limited."""
        module = "pocketserve_lab.compress.tool"
        return Converter(
            self.name,
            self.sources,
            "torchscript",
            module,
            packages=self.packages,
            fallback=self.fallback,
        )


class Option(NamedTuple):
    """An option of recipes, with its inclusive range."""

    type: type
    low: Number
    high: Number
    meaning: str


OPTIONS: Mapping[str, Option] = {
    "amount": Option(float, 0.01, 0.99, "the share of weights or channels to remove"),
    "epochs": Option(int, 0, 10_000, "how often training goes over the data"),
    "clusters": Option(int, 2, 256, "how many different weights a layer keeps"),
}


def checked_options(
    recipe: Recipe, options: Mapping[str, Number | None]
) -> dict[str, Number]:
    """Return a recipe's options: the user's, with its defaults for the others.

    Raises:
        ConversionError: the recipe does not take an option, or it is out of range.
    """
    checked = dict(recipe.defaults)
    for name, value in options.items():
        if value is not None:
            _check_option(recipe, name, value)
            checked[name] = value
    return checked


def _check_option(recipe: Recipe, name: str, value: Number) -> None:
    if name not in recipe.defaults:
        names = [f"--{option}" for option in recipe.defaults]
        takes = ", ".join(names) or "no options"
        raise ConversionError(f"{recipe.name} takes no --{name}; it takes {takes}")
    option = OPTIONS[name]
    if not option.low <= value <= option.high:
        raise ConversionError(
            f"--{name} must be between {option.low} and {option.high}, not {value}"
        )


def save_data(path: Path, inputs: Mapping[str, Array], labels: Array) -> None:
    """Write labelled samples: inputs by name as .npz, and the labels as .npy."""
    np.savez(path, **inputs)  # type: ignore[arg-type]  # NumPy's stubs take no arrays by name
    np.save(_labels_path(path), labels)


def load_labels(path: Path) -> Array:
    """Read the labels that :func:`save_data` wrote."""
    labels: Array = np.load(_labels_path(path), allow_pickle=False)
    return labels


def load_data(path: Path, order: tuple[str, ...]) -> TrainingData:
    """Read the samples that :func:`save_data` wrote.

    Args:
        order: of the inputs, by their names.
    """
    with np.load(path, allow_pickle=False) as arrays:
        inputs = tuple(arrays[name] for name in order)
    return TrainingData(inputs, load_labels(path))


def _labels_path(path: Path) -> Path:
    return path.with_suffix(".labels.npy")
