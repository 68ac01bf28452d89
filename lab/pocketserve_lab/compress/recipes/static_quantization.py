"""Static quantisation: weights and what passes between layers in int8, with ranges measured on samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pocketserve.messages import excerpt, plural
from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.compress.training import batches
from pocketserve_lab.convert.converter import ConversionError

ENGINE = "x86"
"""Whose defaults are used: 7 bits between layers, so that no processor's sums overflow; ARM's engine reads them too."""

CALIBRATION_SAMPLES = 1024


def quantize_static(module: Any, data: TrainingData) -> CompressedModule:
    """Measure the ranges of numbers on samples, and compute convolutions and linear layers in int8.

    Raises:
        ConversionError: PyTorch cannot follow ``forward``, or finds nothing to quantise.
    """
    import torch
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    few = TrainingData(
        tuple(array[:CALIBRATION_SAMPLES] for array in data.inputs),
        data.labels[:CALIBRATION_SAMPLES],
    )
    with quantizing("static-quantization"):
        mapping = float_softmax(torch, get_default_qconfig_mapping(ENGINE))
        examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
        prepared = quantize_fx.prepare_fx(
            as_parts(torch, copy.deepcopy(module)).eval(), mapping, examples
        )
        with torch.no_grad():
            for inputs, _ in batches(torch, few, shuffled=False):
                prepared(*inputs)
        return quantized(torch, quantize_fx.convert_fx(prepared))


@contextmanager
def quantizing(recipe: str) -> Iterator[None]:
    """Turn what PyTorch's quantisation raises into one sentence; its warnings on its future are not the user's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ConversionError:
        raise
    except Exception as error:  # code of the model's own is run symbolically
        raise ConversionError(
            f"{recipe} follows forward without values, and this model's code does not allow that: {excerpt(error)}",
            detail=str(error),
            nearest="--recipe dynamic-quantization, or pocketserve convert --to tflite --quantize int8",
        ) from error


def as_parts(torch: Any, module: Any) -> Any:
    """Return a module whose layers are parts of it, which PyTorch can replace; a model may be one layer itself."""
    return (
        module if any(True for _ in module.children()) else torch.nn.Sequential(module)
    )


def float_softmax(torch: Any, mapping: Any) -> Any:
    """Return a mapping of layers to their quantisation that leaves probabilities in float32: int8 has 256 of them."""
    for kind in (
        torch.softmax,
        torch.nn.functional.softmax,
        torch.nn.Softmax,
        "softmax",
    ):
        mapping.set_object_type(kind, None)
    return mapping


def quantized(torch: Any, module: Any) -> CompressedModule:
    """Return a result with the number of its int8 layers.

    Raises:
        ConversionError: there is none.
    """
    layers = [
        layer
        for layer in module.modules()
        if type(layer).__module__.startswith("torch.ao.nn")
    ]
    count = sum(hasattr(layer, "weight") for layer in layers)
    if not count:
        raise ConversionError(
            "the model has no convolution or linear layer that PyTorch could quantise"
        )
    note = f"{plural(count, 'layer')} {'computes' if count == 1 else 'compute'} in int8"
    return CompressedModule(module.eval(), (note,))


RECIPE = Recipe(
    "static-quantization",
    "makes weights, and what passes between layers, int8; ranges are measured on the data",
    quantize_static,
    quantize="int8",
)
