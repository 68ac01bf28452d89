"""The list of recipes: a new one is its file in ``recipes`` and a name here. No framework is imported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

from pocketserve.messages import did_you_mean
from pocketserve_lab.compress.recipe import Recipe
from pocketserve_lab.convert.converter import ConversionError

MODULES: tuple[str, ...] = (
    "magnitude_pruning",
    "structured_pruning",
    "clustering",
    "distillation",
    "fusion",
    "dynamic_quantization",
    "static_quantization",
    "qat",
)


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name."""
    loaded = (
        importlib.import_module(f"{__package__}.recipes.{name}").RECIPE
        for name in MODULES
    )
    return {recipe.name: recipe for recipe in loaded}


def recipe_named(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        ConversionError: there is none of that name.
    """
    if name not in recipes():
        listed = ", ".join(recipes())
        raise ConversionError(
            f"{name!r} is no recipe{did_you_mean(name, list(recipes()))}; there are {listed}"
        )
    return recipes()[name]
