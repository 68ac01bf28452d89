"""The list of recipes, which imports no framework.

A new recipe is its file in ``recipes`` and its name here.
"""

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
    loaded: dict[str, Recipe] = {}
    for name in MODULES:
        module = importlib.import_module(f"{__package__}.recipes.{name}")
        loaded[module.RECIPE.name] = module.RECIPE
    return loaded


def recipe_named(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        ConversionError: there is none of that name.
    """
    if name not in recipes():
        listed = ", ".join(recipes())
        hint = did_you_mean(name, list(recipes()))
        raise ConversionError(f"{name!r} is not a recipe{hint}; there are {listed}")
    return recipes()[name]
