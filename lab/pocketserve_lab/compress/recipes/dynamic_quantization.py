"""Dynamic quantisation: int8 weights in linear and recurrent layers.

Ranges are measured anew for each request.
"""

from __future__ import annotations

from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.recipes.static_quantization import (
    as_parts,
    quantized,
    quantizing,
)


def quantize_dynamic(module: Any, data: TrainingData) -> CompressedModule:
    """Quantise the weights of linear and recurrent layers to int8.

    The data is not needed.

    Raises:
        ConversionError: the module has no such layer.
    """
    import torch
    from torch.ao.quantization import quantize_dynamic as with_int8_weights

    kinds = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    with quantizing("dynamic-quantization"):
        parts = as_parts(torch, module)
        result = with_int8_weights(parts, kinds, dtype=torch.qint8)
        return quantized(torch, result)


RECIPE = Recipe(
    "dynamic-quantization",
    "makes the weights of linear and recurrent layers int8, without training",
    quantize_dynamic,
    quantize="dynamic",
)
