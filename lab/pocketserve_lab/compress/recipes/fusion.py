"""Fusion: fold batch norms, and operations with constants, into the layer before."""

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
    """Fold batch norms and constants into convolutions and linear layers.

    The data only serves as an example.

    Raises:
        ConversionError: there is nothing to fold.
    """
    import torch

    examples = tuple(torch.from_numpy(array[:2]) for array in data.inputs)
    with torch.no_grad(), warnings.catch_warnings():
        # PyTorch deprecates TorchScript, but it is the format that is served.
        warnings.simplefilter("ignore", DeprecationWarning)
        program = copy.deepcopy(module).eval()
        if not isinstance(program, torch.jit.ScriptModule):
            program = torch.jit.trace(program, examples, check_trace=False)
        before = operators_of(torch.jit.freeze(program, optimize_numerics=False))
        fused = torch.jit.freeze(program)
    note = _note(before - operators_of(fused))
    return CompressedModule(fused, (note,))


def _note(folded: Counter[str]) -> str:
    """Return a sentence on the folded operators; ConversionError without any."""
    counts = []
    for name in FUSED:
        if folded[name]:
            counts.append(f"{folded[name]} {name.removeprefix('aten::')}")
    if not counts:
        raise ConversionError(
            "the model has no batch norm, sum or product that could be folded into the "
            "layer before it"
        )
    return f"folded into the layers before: {', '.join(counts)}"


def operators_of(program: Any) -> Counter[str]:
    """Count the operators of a program."""
    from pocketserve.runtimes.torch.graphs import nodes_of

    return Counter(node.kind() for node in nodes_of(program.inlined_graph))


RECIPE = Recipe(
    "fusion",
    "folds batch norms and constants into the layers before them, without training",
    fuse,
    sources=("torch", "torchscript"),
)
