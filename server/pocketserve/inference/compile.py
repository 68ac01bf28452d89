"""Checks of repeated requests, cached for all that differ in tensor bytes only.

Apps send the same names, datatypes and shapes over and over. The codec recognizes such
requests by their ``RequestTemplate``; a loaded model adds the
:class:`CompiledRequest`. Repeating the checks would take as long as all other Python
code that such a request runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.inference.inputs import BoundOutput, run_session
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import Arrays
from pocketserve.tensors import Array, plain_memory, to_tensor
from pocketserve_wire import DATATYPES, Tensor
from pocketserve_wire.oip import (
    EncodedBody,
    InferResponse,
    RequestTemplate,
    encode_infer_response,
)
from pocketserve_wire.tensor import element_count

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep

MAX_COMPILED: Final = 64
"""Compiled requests of one loaded version; when exceeded, all are dropped."""

OutputForm = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of an output."""


class CompiledInput(NamedTuple):
    """An input of a compiled request.

    Attributes:
        session_name: the session's name for it.
        elements: their number.
        start: offset of its first byte in the body.
    """

    session_name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    elements: int
    start: int


class CompiledOutput(NamedTuple):
    """An output of a compiled request.

    Attributes:
        name: the client's name for it.
        session_name: the session's name for it.
        datatype: its datatype if the dtype is ambiguous.
    """

    name: str
    session_name: str
    datatype: str | None


class KnownHeader(NamedTuple):
    """A response's JSON part, for outputs of these forms."""

    forms: list[OutputForm] | None
    text: bytes


class CompiledRequest:
    """An operation for all requests of one template on a loaded version.

    It covers plain runs only: no state, rows to split or quantization.

    Args:
        response: the response without its tensors.

    Attributes:
        signature: the entry point.
        rows: batch rows in each request.
    """

    # Slots instead of class constants, whose lookup is slower.
    __slots__ = (
        "_header",
        "_inputs",
        "_outputs",
        "_response",
        "executions",
        "prepare_ns",
        "rows",
        "sequence",
        "signature",
        "step",
        "timed",
    )

    def __init__(
        self,
        signature: str | None,
        rows: int,
        inputs: Sequence[CompiledInput],
        outputs: Sequence[CompiledOutput],
        response: InferResponse,
    ) -> None:
        self.signature = signature
        self.rows = rows
        self.executions = 0
        self.step: SequenceStep | None = None
        self.sequence: OpenSequence | None = None
        self.timed = False
        self.prepare_ns = 0
        self._inputs = inputs
        self._outputs = outputs
        self._response = response
        # One attribute: other threads replace it.
        self._header = KnownHeader(None, b"")

    def arrays(self, body: memoryview) -> dict[str, Array]:
        """Return the inputs by the session's names, sharing the body's memory."""
        arrays = {}
        for session_name, dtype, shape, count, start in self._inputs:
            # np.ndarray() would reference the object below the memoryview only. The
            # memoryview's export shows that this memory is in use.
            flat = np.frombuffer(body, dtype, count, start)
            arrays[session_name] = flat.reshape(shape)
        return arrays

    def run(self, session: Session, arrays: Arrays | None) -> dict[str, Array]:
        """Run the model."""
        assert arrays is not None
        return run_session(session, arrays, self.signature)

    def respond(self, result: Mapping[str, Array]) -> EncodedBody:
        """Return the response; reuse the last JSON part for the same output forms."""
        forms: list[OutputForm] = []
        arrays: list[Array] = []
        is_contiguous = True
        for _, session_name, _ in self._outputs:
            array = result[session_name]
            arrays.append(array)
            forms.append((array.dtype, array.shape))
            is_contiguous = is_contiguous and array.flags.c_contiguous
        known_forms, text = self._header
        if forms != known_forms:
            return self._encode_first(result, forms)
        if not is_contiguous:
            return self._encode(result)
        # Arrays of these forms had plain memory before, see _encode_first.
        chunks: list[bytes | memoryview] = [text]
        for array in arrays:
            chunks.append(array.data.cast("B"))
        return EncodedBody(chunks, len(text))

    def _encode_first(
        self, result: Mapping[str, Array], forms: list[OutputForm]
    ) -> EncodedBody:
        """Return the response; keep its JSON part if all outputs have plain memory."""
        encoded = self._encode(result)
        for _, session_name, _ in self._outputs:
            if plain_memory(result[session_name]) is None:
                return encoded
        self._header = KnownHeader(forms, bytes(encoded.chunks[0]))
        return encoded

    def _encode(self, result: Mapping[str, Array]) -> EncodedBody:
        outputs: list[Tensor] = []
        for name, session_name, datatype in self._outputs:
            outputs.append(to_tensor(name, result[session_name], datatype))
        return encode_infer_response(self._response._replace(outputs=outputs), True)


def keep_compiled(
    handle: ModelHandle,
    template: RequestTemplate,
    signature: str | None,
    rows: int,
    bindings: Bindings,
    bound_outputs: Sequence[BoundOutput],
) -> None:
    """Cache the checks of an answered request, if possible.

    Args:
        bindings: the entry point's inputs.
        bound_outputs: the outputs that were sent.
    """
    # model.resettable is slow: it checks a protocol.
    if not template.all_raw or hasattr(handle.model.sessions[0], "reset"):
        return
    inputs = _compile_inputs(template, bindings)
    outputs = _compile_outputs(bound_outputs)
    model = handle.model
    response = InferResponse(model.entry.name, model.version.name, [], template.id)
    compiled = CompiledRequest(signature, rows, inputs, outputs, response)
    if len(handle.compiled) >= MAX_COMPILED:
        handle.compiled.clear()
    handle.compiled[template] = compiled


def _compile_inputs(
    template: RequestTemplate, bindings: Bindings
) -> list[CompiledInput]:
    inputs = []
    for place in template.inputs:
        _, session_name = bindings.by_name[place.name]
        dtype = np.dtype(DATATYPES[place.datatype].typestr)
        count = element_count(place.shape)
        inputs.append(
            CompiledInput(session_name, dtype, place.shape, count, place.start)
        )
    return inputs


def _compile_outputs(bound_outputs: Sequence[BoundOutput]) -> list[CompiledOutput]:
    outputs = []
    for bound in bound_outputs:
        datatype = "BF16" if bound.spec.datatype == "BF16" else None
        name = bound.requested.name
        outputs.append(CompiledOutput(name, bound.session_name, datatype))
    return outputs
