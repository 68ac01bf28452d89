"""Drop neutral Keras 2 options that Keras 3 refuses, without Keras."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve.runtimes.tensorflow.keras_config import (
    NEUTRAL_OPTIONS,
    layers_with_neutral_options,
    without_neutral_options,
)

ROWS = [
    (layer, option, neutral)
    for option, (layers, neutral) in NEUTRAL_OPTIONS.items()
    for layer in layers
]


def model_config(layer: str, **options: Any) -> dict[str, Any]:
    """Return the configuration of a nested model, like Teachable Machine's."""
    inner = {
        "class_name": "Sequential",
        "config": {
            "layers": [{"class_name": layer, "config": {"name": "a", **options}}]
        },
    }
    return {"class_name": "Sequential", "config": {"layers": [inner]}}


@pytest.mark.parametrize(("layer", "option", "neutral"), ROWS)
def test_a_neutral_option_is_left_out(layer: str, option: str, neutral: object) -> None:
    assert without_neutral_options(layer, {"name": "a", option: neutral}) == {
        "name": "a"
    }
    assert layers_with_neutral_options(model_config(layer, **{option: neutral})) == {
        layer
    }


@pytest.mark.parametrize(("layer", "option", "neutral"), ROWS)
@pytest.mark.parametrize("value", [2, True, None, "1"])
def test_other_values_stay(
    layer: str, option: str, neutral: object, value: object
) -> None:
    """Keras refuses them by name."""
    assert without_neutral_options(layer, {option: value}) == {option: value}
    assert layers_with_neutral_options(model_config(layer, **{option: value})) == set()


def test_other_layers_keep_their_options() -> None:
    assert layers_with_neutral_options(model_config("Conv2D", groups=1)) == set()
    assert layers_with_neutral_options(model_config("Dense", groups=1)) == set()
