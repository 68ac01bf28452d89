"""State that grows with each step, such as a text generator's keys and values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import STATE
from pocketserve.api.messages import ApiRequest
from pocketserve.config import Config
from pocketserve.inference.inputs import collect
from pocketserve.service import Service
from pocketserve_client.arrays import as_tensor
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import respond

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="onnx")

pytestmark = pytest.mark.onnx

Serve = Callable[[str], Service]

FEEDBACK = '[state.feedback]\n"past.0" = "present.0"\n'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve a model that appends its input to its state along the middle dimension."""
    helper = onnx.helper
    float32 = onnx.TensorProto.FLOAT
    taken = []
    for name, length in (("x", "new"), ("past.0", "before")):
        taken.append(helper.make_tensor_value_info(name, float32, ["batch", length, 2]))
    given = [helper.make_tensor_value_info("present.0", float32, ["batch", "after", 2])]
    node = helper.make_node("Concat", ["past.0", "x"], ["present.0"], axis=1)
    graph = helper.make_graph([node], "cache", taken, given)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    folder = tmp_path / "models" / "cache"
    folder.mkdir(parents=True)
    (folder / "cache.onnx").write_bytes(model.SerializeToString())
    services = []

    def make(manifest: str) -> Service:
        (folder / "model.toml").write_text(manifest)
        services.append(
            Service(Config(models_dir=tmp_path / "models", state_dir=STATE))
        )
        return services[-1]

    yield make
    for service in services:
        service.close()


def state_after_step(service: Service, value: float, **parameters: Any) -> list[float]:
    """Return the state after a step of one row."""
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 1, 2],
        "data": [value, value],
    }
    document = {"inputs": [tensor], "parameters": parameters}
    request = ApiRequest(
        path={"model": "cache"}, body=memoryview(json.dumps(document).encode())
    )
    answer = json.loads(b"".join(respond(service, request).chunks))
    found: list[float] = answer["outputs"][0]["data"]
    return found


def test_a_cache_begins_empty_and_grows(serve: Serve) -> None:
    service = serve(FEEDBACK + '[state.start]\n"past.0" = [1, 0, 2]\n')
    assert state_after_step(service, 1, sequence_id=7, sequence_start=True) == [1, 1]
    assert state_after_step(service, 2, sequence_id=7) == [1, 1, 2, 2]
    assert state_after_step(service, 3, sequence_id=7, sequence_end=True) == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert state_after_step(service, 4, sequence_id=7, sequence_start=True) == [4, 4]
    assert state_after_step(service, 5) == [5, 5]


def test_free_sizes_default_to_one(serve: Serve) -> None:
    assert state_after_step(serve(FEEDBACK), 1, sequence_id=7, sequence_start=True) == [
        0,
        0,
        1,
        1,
    ]


def test_a_model_may_overwrite_its_initial_state(serve: Serve) -> None:
    """Unconverted PyTorch does so with ``state.add_(x)``.

    The next request must start with zeros.
    """
    with serve(FEEDBACK).running("cache", None) as (_, running):
        model = running.model
        x = as_tensor("x", np.ones((1, 1, 2), np.float32))
        for _ in range(2):
            state = collect([x], model.inputs, False, model.first_state).state["past.0"]
            np.testing.assert_array_equal(state, np.zeros((1, 1, 2)))
            state += 1


@pytest.mark.parametrize("shape", ["[1, 0]", "[1, 0, 3]"])
def test_an_incompatible_initial_shape_is_rejected(serve: Serve, shape: str) -> None:
    service = serve(FEEDBACK + f'[state.start]\n"past.0" = {shape}\n')
    with pytest.raises(
        ApiError,
        match=r"state\.start\.past\.0 is \[1, 0.*but the input's shape is \[-1, -1, 2\]",
    ) as caught:
        state_after_step(service, 1)
    assert caught.value.code is ErrorCode.MODEL_FAILED
