"""Checked requests, kept for all that differ from them in nothing but their tensors' bytes.

An app sends the same request again and again: the same names, datatypes and shapes, only other pixels. The codec
recognises them by their ``RequestTemplate``; a loaded model adds the :class:`CompiledRequest`. To check names, shapes
and parameters again would take as long as everything else that Python does for such a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.inference.run import run_session
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array, TensorSpec, plain_memory, to_tensor
from pocketserve_wire import DATATYPES
from pocketserve_wire.oip import (
    EncodedBody,
    InferResponse,
    RequestedOutput,
    RequestTemplate,
    encode_infer_response,
)
from pocketserve_wire.tensor import element_count

MAX_COMPILED: Final = 64
"""Kept for one loaded version; then all are dropped, which costs a check each."""

TensorSignature = list[tuple[np.dtype[Any], tuple[int, ...]]]
"""Dtype and shape of each output."""


class CompiledRequest:
    """An operation for all requests of a kind on a loaded version: plain runs, without state, rows to split or
    quantisation.

    Args:
        inputs: the session's name, dtype, shape, elements, and first byte in the body of each.
        outputs: the caller's and the session's name of each that is asked for, and its datatype where the dtype does
            not tell it.
        response: the answer without its tensors.

    Attributes:
        signature: the entry point.
        rows: batch rows in each such request.
    """

    # No constants of the class: to look one up takes longer than a slot.
    __slots__ = (
        "_header", "_inputs", "_outputs", "_response", "executions", "prepare_ns", "rows", "signature", "step", "timed"
    )  # fmt: skip

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
        self.executions, self.step, self.timed, self.prepare_ns = 0, None, False, 0
        self._inputs = inputs
        self._outputs = outputs
        self._response = response
        self._header: tuple[TensorSignature | None, bytes] = (None, b"")

    def arrays(self, body: memoryview) -> dict[str, Array]:
        """Return the inputs by the session's names; they share the body's memory."""
        arrays = {}
        for own, dtype, shape, count, start in self._inputs:
            # Not np.ndarray(): it would keep the object below the memoryview only, not the memoryview, whose export
            # tells that this memory is in use.
            arrays[own] = np.frombuffer(body, dtype, count, start).reshape(shape)
        return arrays

    def run(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model."""
        return run_session(session, arrays, self.signature)

    def respond(self, results: Mapping[str, Array]) -> EncodedBody:
        """Return the answer; outputs of the same dtypes and shapes as the last have the same JSON part."""
        signature: TensorSignature = []
        chunks: list[bytes | memoryview] = [b""]
        for _, own, _ in self._outputs:
            array = results[own]
            memory = plain_memory(array)
            if memory is None:
                return self._encode(results)
            signature.append((array.dtype, array.shape))
            chunks.append(memory)
        last, chunks[0] = self._header
        if signature == last:
            return EncodedBody(chunks, len(chunks[0]))
        encoded = self._encode(results)
        self._header = signature, bytes(encoded.chunks[0])
        return encoded

    def _encode(self, results: Mapping[str, Array]) -> EncodedBody:
        outputs = [
            to_tensor(name, results[own], datatype)
            for name, own, datatype in self._outputs
        ]
        return encode_infer_response(self._response._replace(outputs=outputs), True)


def keep_compiled(
    handle: ModelHandle,
    template: RequestTemplate,
    signature: str | None,
    rows: int,
    inputs: Bindings,
    outputs: Sequence[tuple[RequestedOutput, tuple[TensorSpec, str]]],
) -> None:
    """Keep the checks of a request that was just answered, if the next of its kind can be spared them.

    Args:
        inputs: the entry point's.
        outputs: those that it was answered with, with the session's names.
    """
    # Not model.resettable: asking a protocol costs a third of a whole request.
    if not template.all_raw or hasattr(handle.model.sessions[0], "reset"):
        return
    tensors = [
        (
            inputs.by_name[name][1],
            np.dtype(DATATYPES[datatype].typestr),
            shape,
            element_count(shape),
            start,
        )
        for name, datatype, shape, start, _, _ in template.inputs
    ]
    names = [
        (output.name, own, "BF16" if spec.datatype == "BF16" else None)
        for output, (spec, own) in outputs
    ]
    response = InferResponse(
        handle.model.entry.name, handle.model.version.name, [], template.id
    )
    if len(handle.compiled) >= MAX_COMPILED:
        handle.compiled.clear()
    handle.compiled[template] = CompiledRequest(
        signature, rows, tensors, names, response
    )
