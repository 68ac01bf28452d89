"""Dynamic quantisation: the weights of linear and recurrent layers in int8, ranges measured anew for each request."""

from __future__ import annotations

from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.recipes.static_quantization import (
    as_parts,
    quantized,
    quantizing,
)


def quantize_dynamic(module: Any, data: TrainingData) -> CompressedModule:
    """Compute linear and recurrent layers with int8 weights; the data are not needed.

    Raises:
        ConversionError: the module has no such layer.
    """
    import torch
    from torch.ao.quantization import quantize_dynamic as with_int8_weights

    kinds = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    with quantizing("dynamic-quantization"):
        return quantized(
            torch, with_int8_weights(as_parts(torch, module), kinds, dtype=torch.qint8)
        )


RECIPE = Recipe(
    "dynamic-quantization",
    "makes the weights of linear and recurrent layers int8, without training",
    quantize_dynamic,
    quantize="dynamic",
)
