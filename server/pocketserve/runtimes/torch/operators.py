"""List the operators and classes that a TorchScript program may use.

Others write and read any file (``aten::save``, ``aten::from_file``), talk to other processes, or believe the caller
about where memory ends. A list of bad names would miss those of the next version.
"""

from __future__ import annotations

import functools

from pocketserve.runtimes.name_lists import read_names

NATIVE = (
    "__torch__.torch.classes."  # what the names of classes written in C++ begin with
)

_QUANTIZED = (
    f"quantized.{kind}PackedParamsBase"
    for kind in ("Linear", "Conv2d", "Conv3d", "Embedding")
)
CLASSES = frozenset(NATIVE + name for name in (*_QUANTIZED, "rnn.CellParamsBase"))
"""Classes of PyTorch's own that a program may hold: packed weights."""


@functools.cache
def allowed_operators() -> frozenset[str]:
    """Return the operators that only compute, such as ``aten::add``."""
    namespaces = read_names(__package__, "operators.txt").items()
    return frozenset(
        f"{namespace}::{name}" for namespace, names in namespaces for name in names
    )
