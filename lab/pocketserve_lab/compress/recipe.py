"""The contract of recipes, and what they are given. Needs NumPy alone: recipes run in converters' environments."""

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
        inputs: of the model, in the order of ``forward``; the first axis counts samples.
        labels: [samples], int64 classes; or float32 [samples, …], the numbers that a regression should answer.
    """

    inputs: tuple[Array, ...]
    labels: Array


class CompressedModule(NamedTuple):
    """A recipe's result.

    Attributes:
        module: in evaluation mode; eager, or a TorchScript program.
        notes: sentences for the user on what the recipe did.
    """

    module: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A way to make a model smaller.

    Attributes:
        name: as ``--recipe`` takes it; the new version is named after it.
        summary: completes "this recipe …".
        compress: takes a module, :class:`TrainingData` and the options by name; leaves the module as it is.
        defaults: the options that it takes, of :data:`OPTIONS`.
        sources: the formats of models that it takes.
        packages: what must be importable in the server's own environment to run there.
        fallback: the environment for where they are missing.
        quantize: what it does to digits, of a conversion's modes: for the provenance.
        takes_student: whether it trains a module of the user's beside the model.
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
        """Return it as a converter, by which it is planned, run and limited."""
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
    """An option of recipes: its type, the range it must lie in, both ends included, and its meaning."""

    type: type
    low: Number
    high: Number
    meaning: str


OPTIONS: Mapping[str, Option] = {
    "amount": Option(float, 0.01, 0.99, "the share of weights or channels that goes"),
    "epochs": Option(int, 0, 10_000, "how often training goes over the data"),
    "clusters": Option(int, 2, 256, "how many different weights a layer keeps"),
}


def checked_options(
    recipe: Recipe, options: Mapping[str, Number | None]
) -> dict[str, Number]:
    """Return a recipe's options: the user's, and its defaults where the user gave none.

    Raises:
        ConversionError: it does not take one, or one lies outside of its range.
    """
    overrides = {name: value for name, value in options.items() if value is not None}
    for name, value in overrides.items():
        if name not in recipe.defaults:
            takes = (
                ", ".join(f"--{option}" for option in recipe.defaults) or "no options"
            )
            raise ConversionError(f"{recipe.name} takes no --{name}; it takes {takes}")
        option = OPTIONS[name]
        if not option.low <= value <= option.high:
            raise ConversionError(
                f"--{name} must lie between {option.low} and {option.high}, not {value}"
            )
    return {**recipe.defaults, **overrides}


def save_data(path: Path, inputs: Mapping[str, Array], labels: Array) -> None:
    """Write labelled samples: an .npz with the inputs by name, and the labels beside it."""
    np.savez(path, **inputs)  # type: ignore[arg-type]  # NumPy's stubs take no arrays by name
    np.save(_labels_path(path), labels)


def load_labels(path: Path) -> Array:
    """Read the labels of what :func:`save_data` wrote."""
    labels: Array = np.load(_labels_path(path), allow_pickle=False)
    return labels


def load_data(path: Path, order: tuple[str, ...]) -> TrainingData:
    """Read what :func:`save_data` wrote, the inputs in this order of names."""
    with np.load(path, allow_pickle=False) as arrays:
        return TrainingData(tuple(arrays[name] for name in order), load_labels(path))


def _labels_path(path: Path) -> Path:
    return path.with_suffix(".labels.npy")
