"""Fusion: batch norms, and sums and products with constants, become part of the layer before them."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from typing import Any

from pocketserve_lab.compress.recipe import CompressedModule, Recipe, TrainingData
from pocketserve_lab.convert.converter import ConversionError

FUSED = (
    "aten::batch_norm",
    "aten::add",
    "aten::add_",
    "aten::sub",
    "aten::mul",
    "aten::mul_",
    "aten::div",
)


def fuse(module: Any, data: TrainingData) -> CompressedModule:
    """Fold batch norms and constants into convolutions and linear layers; the data only serve as an example.

    Raises:
        ConversionError: there is nothing to fold.
    """
    import torch

    examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # TorchScript is what is served
        program = copy.deepcopy(module).eval()
        if not isinstance(program, torch.jit.ScriptModule):
            program = torch.jit.trace(program, examples, check_trace=False)
        before = operators_of(torch.jit.freeze(program, optimize_numerics=False))
        fused = torch.jit.freeze(program)
    folded = before - operators_of(fused)
    counts = {
        name.removeprefix("aten::"): folded[name] for name in FUSED if folded[name]
    }
    if not counts:
        raise ConversionError(
            "the model has no batch norm, sum or product that could be folded into the layer before it"
        )
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return CompressedModule(fused, (f"folded into the layers before: {listed}",))


def operators_of(program: Any) -> Counter[str]:
    """Return how often each operator stands in a program."""
    from pocketserve.runtimes.torch.graphs import nodes_of

    return Counter(node.kind() for node in nodes_of(program.inlined_graph))


RECIPE = Recipe(
    "fusion",
    "folds batch norms and constants into the layers before them, without training",
    fuse,
    sources=("torch", "torchscript"),
)
