"""Requests with a compiled kind are answered from their own bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import MODELS
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.inference import compile as prepared
from pocketserve.service import Service
from pocketserve.tensors import to_tensor
from pocketserve_wire import DATATYPES, ApiError, ErrorCode
from pocketserve_wire.oip import InferResponse, encode_infer_response
from pocketserve_wire.tensor import to_raw
from queue_entries import respond

Array = npt.NDArray[Any]
SHAPE = (3, 8, 8, 1)
SCORES = 3 * 10 * 4


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {
        "models_dir": MODELS,
        "state_dir": tmp_path_factory.mktemp("state"),
        "quarantine": False,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


def picture(seed: int, shape: Sequence[int] = SHAPE) -> Array:
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def body_of(
    values: Array, shape: Sequence[int] = SHAPE, **more: Any
) -> tuple[bytes, int]:
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": list(shape),
        "parameters": {"binary_data_size": values.nbytes},
    }
    header = json.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [tensor],
            **more,
        }
    ).encode()
    return header + values.tobytes(), len(header)


def ask(
    service: Service, body: bytes, json_length: int, version: str = "tflite"
) -> bytes:
    path = {"model": "digits", "version": version}
    answer = respond(
        service, ApiRequest(path=path, body=memoryview(body), json_length=json_length)
    )
    return b"".join(answer.chunks)


def kept(service: Service, version: str = "tflite") -> dict[object, Any]:
    running = service.engine.running("digits", version)
    assert running is not None
    return running.compiled


@pytest.mark.parametrize(
    "version",
    [
        "tflite",
        "tflite-int8",
        pytest.param("onnx", marks=pytest.mark.onnx),
    ],
)
def test_each_answer_uses_its_own_bytes(service, version):
    alone = [
        ask(service, *body_of(picture(seed), id=f"fresh {seed}"), version)
        for seed in range(4)
    ]
    again = [
        ask(service, *body_of(picture(seed), id="the same"), version)
        for seed in range(4)
    ]
    scores = [answer[-SCORES:] for answer in again]
    assert scores == [answer[-SCORES:] for answer in alone]
    assert len(set(scores)) == 4


def test_a_viewed_buffer_cannot_be_reused(service):
    body, length = body_of(picture(0), id="looked at")
    ask(service, *body_of(picture(0)))
    kept(service).clear()
    for _ in range(2):
        ask(service, body, length)
    [one] = kept(service).values()
    received = bytearray(body)
    arrays = one.arrays(memoryview(received)[:])
    with pytest.raises(BufferError):
        received.append(0)
    del arrays
    received.append(0)


def test_a_compiled_request_does_not_apply_to_another_shape(service):
    values = picture(0)
    assert ask(service, *body_of(values))
    with pytest.raises(ApiError) as caught:
        ask(service, *body_of(values, (3, 1, 8, 8)))
    assert caught.value.code is ErrorCode.INVALID_TENSOR
    assert ask(service, *body_of(values))


def test_rows_are_counted(service):
    counted = service.engine.statistics("digits", "tflite")
    before = counted.inference_count, counted.execution_count, counted.runs.count
    for _ in range(2):
        ask(service, *body_of(picture(1), id="counted"))
    assert counted.inference_count == before[0] + 2 * SHAPE[0]
    assert counted.execution_count == before[1] + 2
    assert counted.runs.count == before[2] + 2


@pytest.mark.parametrize(
    "more",
    [
        {
            "outputs": [
                {
                    "name": "scores",
                    "parameters": {"classification": 2, "binary_data": True},
                }
            ]
        },
        {
            "parameters": {"sequence_id": 7, "sequence_start": True},
            "id": "not a model with state",
        },
    ],
)
def test_only_plain_runs_are_compiled(service, more):
    ask(service, *body_of(picture(2)))
    before = len(kept(service))
    for _ in range(2):
        ask(service, *body_of(picture(2), **more))
    assert len(kept(service)) == before


def test_requested_outputs(service):
    named = {"outputs": [{"name": "scores", "parameters": {"binary_data": True}}]}
    all_of_them = ask(service, *body_of(picture(3)))
    for _ in range(2):
        assert ask(service, *body_of(picture(3), **named)) == all_of_them


def test_the_number_of_compiled_requests_is_bounded(service):
    for number in range(prepared.MAX_COMPILED + 9):
        for _ in range(2):  # a single request is not compiled
            ask(service, *body_of(picture(4), id=f"kind {number}"))
        assert 0 < len(kept(service)) <= prepared.MAX_COMPILED


def test_compiled_requests_are_dropped_with_the_model(service):
    ask(service, *body_of(picture(5)))
    service.load("digits")
    assert not kept(service)


def test_an_answer_without_outputs_is_complete():
    answered = prepared.CompiledRequest(None, 1, [], [], InferResponse("m", "1", []))
    assert answered.respond({}) == encode_infer_response(
        InferResponse("m", "1", []), True
    )


@given(
    hnp.arrays(
        st.sampled_from(
            [
                kind.typestr
                for kind in DATATYPES.values()
                if kind.name not in ("BF16", "BYTES")
            ]
        ),
        hnp.array_shapes(
            min_dims=0,
            max_dims=3,
            min_side=0,
            max_side=3,
        ),
    ),
    st.booleans(),
    st.booleans(),
)
def test_arrays_of_any_layout_have_the_same_bytes(array, turned, swapped):
    if turned:
        array = array.T
    if swapped:
        array = array.astype(array.dtype.newbyteorder(">"))
    tensor = to_tensor("y", array)
    assert tensor.shape == array.shape
    assert (
        bytes(to_raw(tensor)) == array.astype(array.dtype.newbyteorder("<")).tobytes()
    )
