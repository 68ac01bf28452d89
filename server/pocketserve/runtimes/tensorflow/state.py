"""State that a TensorFlow model keeps in variables from run to run: whether it does, and how to put it back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_WRITING = re.compile(r"Assign|Resource(?:Scatter|Apply|Sparse)")
"""In the names of all operators that write to a variable."""


def restorer(function: Any) -> Callable[[], None] | None:
    """Return what gives a concrete function's variables the values that they have now; None where no run changes them.

    State elsewhere, such as in a table that a run adds to, is not seen.
    """
    if not _writes(function.graph.as_graph_def()):
        return None
    # Reading costs no memory: TensorFlow makes a copy when it writes to a variable whose value is held elsewhere.
    before = [(variable, variable.read_value()) for variable in function.variables]

    def restore() -> None:
        for variable, value in before:
            variable.assign(value, read_value=False)

    return restore


def _writes(graph: Any) -> bool:
    bodies = (graph.node, *(function.node_def for function in graph.library.function))
    return any(_WRITING.search(node.op) for nodes in bodies for node in nodes)
