"""Static quantisation: int8 with ranges measured on samples."""

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
"""Engine whose defaults are used.

It has 7 bits between layers, so that no processor's sums overflow. ARM's engine reads
the result, too."""

CALIBRATION_SAMPLES = 1024


def quantize_static(module: Any, data: TrainingData) -> CompressedModule:
    """Measure ranges on samples, and quantise to int8.

    Convolutions and linear layers are quantised.

    Raises:
        ConversionError: PyTorch cannot trace ``forward``, or finds nothing to quantise.
    """
    import torch
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    few = _first_samples(data, CALIBRATION_SAMPLES)
    with quantizing("static-quantization"):
        mapping = float_softmax(torch, get_default_qconfig_mapping(ENGINE))
        examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
        parts = as_parts(torch, copy.deepcopy(module)).eval()
        prepared = quantize_fx.prepare_fx(parts, mapping, examples)
        with torch.no_grad():
            for inputs, _ in batches(torch, few, shuffled=False):
                prepared(*inputs)
        return quantized(torch, quantize_fx.convert_fx(prepared))


def _first_samples(data: TrainingData, number: int) -> TrainingData:
    inputs = tuple(array[:number] for array in data.inputs)
    return TrainingData(inputs, data.labels[:number])


@contextmanager
def quantizing(recipe: str) -> Iterator[None]:
    """Turn errors of PyTorch's quantisation into one sentence.

    Its deprecation warnings do not concern the user.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ConversionError:
        raise
    # The model's own code is run symbolically, and may raise anything.
    except Exception as error:
        raise ConversionError(
            f"{recipe} follows forward without values, and this model's code does not "
            f"allow that: {excerpt(error)}",
            detail=str(error),
            nearest="--recipe dynamic-quantization, "
            "or pocketserve convert --to tflite --quantize int8",
        ) from error


def as_parts(torch: Any, module: Any) -> Any:
    """Return a module whose layers are parts that PyTorch can replace.

    A model may be a single layer itself.
    """
    has_parts = any(True for _ in module.children())
    return module if has_parts else torch.nn.Sequential(module)


def float_softmax(torch: Any, mapping: Any) -> Any:
    """Keep softmax in float32 in a quantisation mapping: int8 has 256 probabilities."""
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
    count = 0
    for layer in module.modules():
        is_quantized = type(layer).__module__.startswith("torch.ao.nn")
        if is_quantized and hasattr(layer, "weight"):
            count += 1
    if not count:
        raise ConversionError(
            "the model has no convolution or linear layer that PyTorch could quantise"
        )
    verb = "computes" if count == 1 else "compute"
    note = f"{plural(count, 'layer')} {verb} in int8"
    return CompressedModule(module.eval(), (note,))


RECIPE = Recipe(
    "static-quantization",
    "makes weights and activations int8, with ranges measured on the data",
    quantize_static,
    quantize="int8",
)
