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
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.tensors import Array, TensorSpec, plain_memory, to_tensor
from pocketserve_wire import DATATYPES
from pocketserve_wire.oip import EncodedBody, InferResponse, RequestedOutput, RequestTemplate, encode_infer_response
from pocketserve_wire.tensor import element_count

MAX: Final = 64
"""Kept for one loaded version; then all are forgotten, which costs a check each."""

TensorSignature = list[tuple[np.dtype[Any], tuple[int, ...]]]
"""Dtype and shape of each output."""


class CompiledRequest:
    """One kind of request on one loaded version: plain runs only, without state, rows to split or quantising.

    Args:
        inputs: the session's name, dtype, shape, elements, and first byte in the body of each.
        outputs: the caller's and the session's name of each that is asked for, and its datatype where the dtype does
            not tell it.
        response: the answer without its tensors.

    Attributes:
        signature: the entry point.
        rows: batch rows in each such request.
    """

    __slots__ = ("_header", "_inputs", "_outputs", "_response", "rows", "signature")

    def __init__(
        self,
        signature: str | None,
        rows: int,
        inputs: Sequence[tuple[str, np.dtype[Any], tuple[int, ...], int, int]],
        outputs: Sequence[tuple[str, str, str | None]],
        response: InferResponse,
    ) -> None:
        self.signature = signature
        self.rows = rows
        self._inputs = inputs
        self._outputs = outputs
        self._response = response
        self._header: tuple[TensorSignature | None, bytes] = (None, b"")

    def arrays(self, body: memoryview) -> dict[str, Array]:
        """The inputs by the session's names; they share the body's memory."""
        found = {}
        for own, dtype, shape, count, start in self._inputs:
            # Not np.ndarray(): it would keep the object below the memoryview only, and nobody would see that its
            # memory is looked at.
            found[own] = np.frombuffer(body, dtype, count, start).reshape(shape)
        return found

    def encode(self, results: Mapping[str, Array]) -> EncodedBody:
        """The answer: outputs of the same looks as in the last one have the same JSON part."""
        looks: TensorSignature = []
        chunks: list[bytes | memoryview] = [b""]
        for _, own, _ in self._outputs:
            array = results[own]
            memory = plain_memory(array)
            if memory is None:
                return self._encode_anew(results)
            looks.append((array.dtype, array.shape))
            chunks.append(memory)
        known, chunks[0] = self._header
        if looks == known:
            return EncodedBody(chunks, len(chunks[0]))
        encoded = self._encode_anew(results)
        self._header = looks, bytes(encoded.chunks[0])
        return encoded

    def _encode_anew(self, results: Mapping[str, Array]) -> EncodedBody:
        outputs = [to_tensor(name, results[own], datatype) for name, own, datatype in self._outputs]
        return encode_infer_response(self._response._replace(outputs=outputs), True)


def remember(
    running: ModelHandle,
    plan: RequestTemplate,
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
    # Not model.resettable: asking a protocol costs a third of a whole request.
    if not plan.all_raw or hasattr(running.model.sessions[0], "reset"):
        return
    inputs = [
        (bound.by_name[name][1], np.dtype(DATATYPES[datatype].typestr), shape, element_count(shape), start)
        for name, datatype, shape, start, _, _ in plan.inputs
    ]
    outputs = [(asked.name, own, "BF16" if spec.datatype == "BF16" else None) for asked, (spec, own) in wanted]
    response = InferResponse(running.model.entry.name, running.model.version.name, [], plan.id)
    if len(running.prepared) >= MAX:
        running.prepared.clear()
    running.prepared[plan] = CompiledRequest(signature, rows, inputs, outputs, response)
