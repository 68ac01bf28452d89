"""What was found out of a request once, for all that differ from it in nothing but their tensors' bytes.

An app asks the same thing again and again: the same names, datatypes and shapes, only other pixels. The codec tells
such requests by their ``plan``; here is what a loaded model adds to that. Checking names, shapes and parameters anew
would take as long as everything else that Python does for such a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.running import Running
from pocketserve.tensors import Array, TensorSpec, to_tensor
from pocketserve_wire import DATATYPES, Tensor
from pocketserve_wire.oip import InferRequest, RequestedOutput

MOST: Final = 64
"""Kept for one loaded version; then all are forgotten, which costs a check each."""


class Prepared:
    """One kind of request on one loaded version: plain runs only, without sequences, rows to split or quantising.

    Attributes:
        signature: the entry point.
        rows: batch rows in each such request.
    """

    __slots__ = ("_inputs", "_outputs", "rows", "signature")

    def __init__(
        self,
        signature: str | None,
        rows: int,
        inputs: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]],
        outputs: Sequence[tuple[str, str, str | None]],
    ) -> None:
        self.signature = signature
        self.rows = rows
        self._inputs = inputs
        self._outputs = outputs

    def arrays(self, tensors: Sequence[Tensor]) -> dict[str, Array]:
        """The inputs by the session's names; they share the tensors' memory."""
        found = {}
        for (own, dtype, shape), tensor in zip(self._inputs, tensors, strict=True):
            found[own] = np.ndarray(shape, dtype, tensor.data)  # type: ignore[arg-type]  # raw, or it had no plan
        return found

    def tensors(self, results: Mapping[str, Array]) -> list[Tensor]:
        """The outputs that were asked for."""
        found = []
        for name, own, datatype in self._outputs:
            found.append(to_tensor(name, results[own], datatype))
        return found


def remember(
    running: Running,
    request: InferRequest,
    signature: str | None,
    rows: int,
    bound: Bindings,
    wanted: Sequence[tuple[RequestedOutput, tuple[TensorSpec, str]]],
) -> None:
    """Keep what is known of a request that was just answered, if the next of its kind can be spared the checks.

    Args:
        bound: the entry point's inputs.
        wanted: the outputs that it was answered with, and the session's names of them.
    """
    if any(asked.classification for asked, _ in wanted):
        return
    inputs = [
        (bound.by_name[tensor.name][1], np.dtype(DATATYPES[tensor.datatype].typestr), tensor.shape)
        for tensor in request.inputs
    ]
    outputs = [(asked.name, own, "BF16" if spec.datatype == "BF16" else None) for asked, (spec, own) in wanted]
    if len(running.prepared) >= MOST:
        running.prepared.clear()
    running.prepared[request.plan] = Prepared(signature, rows, inputs, outputs)
