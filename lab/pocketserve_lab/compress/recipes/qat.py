"""Quantisation-aware training: simulate int8 during training."""

from __future__ import annotations

from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.recipes.static_quantization import (
    ENGINE,
    as_parts,
    float_softmax,
    quantized,
    quantizing,
)
from pocketserve_lab.compress.training import train, trainable_copy


def train_quantized(
    module: Any, data: TrainingData, *, epochs: int
) -> CompressedModule:
    """Train with simulated int8 rounding, then quantise to int8.

    Convolutions and linear layers are quantised.

    Raises:
        ConversionError: PyTorch cannot trace ``forward``, or finds nothing to quantise.
    """
    import torch
    from torch.ao.quantization import get_default_qat_qconfig_mapping, quantize_fx

    with quantizing("qat"):
        mapping = float_softmax(torch, get_default_qat_qconfig_mapping(ENGINE))
        examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
        parts = as_parts(torch, trainable_copy(module)).train()
        prepared = quantize_fx.prepare_qat_fx(parts, mapping, examples)
        train(prepared, data, epochs=epochs)
        return quantized(torch, quantize_fx.convert_fx(prepared))


RECIPE = Recipe(
    "qat",
    "trains with simulated int8, and then makes weights and activations int8",
    train_quantized,
    {"epochs": 20},
    quantize="int8",
)
