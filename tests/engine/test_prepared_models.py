"""A compiled request never applies to another model, state or answer."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numbered_models import await_that
from places import ROOT
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.inference.compile import CompiledRequest
from pocketserve.service import Service
from pocketserve.tensors import to_tensor
from pocketserve_wire import DATATYPES, ApiError, ErrorCode
from pocketserve_wire.oip import (
    InferResponse,
    decode_infer_response,
    encode_infer_response,
)
from queue_entries import respond

DATA = ROOT / "tests" / "runtimes" / "data"
OLD = [3.5, 0.75]
NEW = [4.5, 0.75]
"""Answers of ``dynamic_batch`` to 1, 2, 3, with its first weight unchanged and set to
2.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of one model that each test may change."""
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "old.tflite").write_bytes((DATA / "dynamic_batch.tflite").read_bytes())
    (model / "new.tflite").write_bytes(
        other_weights((DATA / "dynamic_batch.tflite").read_bytes())
    )
    describe(model)
    return model


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Service]]:
    """Return a function that starts a service on that folder."""
    started: list[Service] = []

    def start() -> Service:
        settings = {
            "models_dir": tmp_path / "models",
            "state_dir": tmp_path / "state",
            "quarantine": False,
        }
        started.append(Service(load_config(settings, environ={})))
        return started[-1]

    yield start
    for service in started:
        service.close()


def other_weights(file: bytes) -> bytes:
    weights = struct.pack("<2f", 1, 2)  # the first weight and the one after it
    assert file.count(weights) == 1
    return file.replace(weights, struct.pack("<2f", 2, 2))


def describe(
    model: Path, default: str = "one", more: str = "", one: str = "old.tflite"
) -> None:
    versions = f'[versions.one]\nfile = "{one}"\n[versions.two]\nfile = "new.tflite"\n'
    (model / "model.toml").write_text(
        f'default_version = "{default}"\n{more}\n{versions}'
    )


def body_of(values: Any, name: str = "x") -> tuple[memoryview, int]:
    array = np.asarray(values, "<f4")
    tensor = {
        "name": name,
        "datatype": "FP32",
        "shape": list(array.shape),
    }
    tensor["parameters"] = {"binary_data_size": array.nbytes}
    head = json.dumps(
        {"parameters": {"binary_data_output": True}, "inputs": [tensor]}
    ).encode()
    return memoryview(head + array.tobytes()), len(head)


def ask(
    service: Service, values: Any = ((1, 2, 3),), name: str = "x", model: str = "m"
) -> InferResponse:
    body, length = body_of(values, name)
    answer = respond(
        service, ApiRequest(path={"model": model}, body=body, json_length=length)
    )
    return decode_infer_response(b"".join(answer.chunks), answer.json_length)


def numbers(answer: InferResponse) -> Any:
    return np.asarray(answer.outputs[0]).tolist()


def warm(service: Service, **how: Any) -> InferResponse:
    """Repeat a request until it is compiled."""
    return [ask(service, **how) for _ in range(3)][-1]


def test_changed_files_answer_once_loaded(folder, serve):
    service = serve()
    assert numbers(warm(service)) == [OLD]
    describe(folder, one="new.tflite")
    service.load("m")
    assert [numbers(ask(service)) for _ in range(3)] == [[NEW]] * 3


def test_a_new_default_version_answers_once_read(folder, serve):
    service = serve()
    assert warm(service).model_version == "one"
    describe(folder, default="two")
    service.statuses(rescan=True)
    await_that(lambda: ask(service).model_version == "two")
    answers = [ask(service) for _ in range(3)]
    assert [(one.model_version, numbers(one)) for one in answers] == [
        ("two", [NEW])
    ] * 3


def test_an_unloaded_model_does_not_answer_until_loaded(folder, serve):
    service = serve()
    warm(service)
    service.unload("m")
    with pytest.raises(ApiError) as caught:
        ask(service)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
    service.load("m")
    assert numbers(warm(service)) == [OLD]


def test_a_removed_model_does_not_answer(folder, serve):
    service = serve()
    warm(service)
    folder.rename(folder.parent.parent / "gone")
    service.statuses(rescan=True)
    with pytest.raises(ApiError) as caught:
        ask(service)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def test_changed_names_apply_once_loaded(folder, serve):
    service = serve()
    assert warm(service).outputs[0].name == "PartitionedCall:0"
    describe(folder, more='[[inputs]]\nname = "pixels"\ndatatype = "FP32"\nshape = [1, 3]\n'
             '[[outputs]]\nname = "scores"\ndatatype = "FP32"\nshape = [-1, 2]')  # fmt: skip
    service.load("m")
    assert warm(service, name="pixels").outputs[0].name == "scores"
    with pytest.raises(ApiError) as caught:  # one row, from now on
        ask(service, ((1, 2, 3), (4, 5, 6)), "pixels")
    assert caught.value.code is ErrorCode.INVALID_TENSOR


def test_the_same_request_on_two_models(folder, serve):
    other = folder.parent / "n"
    other.mkdir()
    (other / "n.tflite").write_bytes((folder / "new.tflite").read_bytes())
    service = serve()
    for _ in range(3):
        assert [numbers(ask(service)), numbers(ask(service, model="n"))] == [
            [OLD],
            [NEW],
        ]


def test_state_is_reset_before_each_request(folder, serve):
    (folder.parent / "counter.tflite").write_bytes(
        (DATA / "counter.tflite").read_bytes()
    )
    service = serve()
    assert [numbers(ask(service, (1, 2), model="counter")) for _ in range(4)] == [
        [1, 2]
    ] * 4


def test_an_output_shape_that_depends_on_values(folder, serve):
    (folder.parent / "where.tflite").write_bytes(
        (DATA / "undeclared_rank.tflite").read_bytes()
    )
    service = serve()
    for values in (
        (1, 0, 1, 0),
        (1, 1, 1, 1),
        (1, 1, 1, 1),
        (0, 0, 0, 0),
        (0, 0, 0, 0),
        (0, 1, 0, 1),
    ):
        [output] = ask(service, values, model="where").outputs
        assert output.shape == (sum(values), 1)
        assert (
            np.asarray(output).reshape(-1).tolist() == np.flatnonzero(values).tolist()
        )


def test_each_answer_during_a_reload_comes_from_one_model(folder, serve):
    """Each request keeps its model, so no answer mixes two models or lacks one."""
    service = serve()
    warm(service)
    over = threading.Event()
    faults = set()

    def keep_asking(first: int) -> int:
        asked = 0
        while not over.is_set():
            asked += 1
            second = asked % 100
            try:
                [answer] = numbers(ask(service, ((first, second, 1),)))
            except ApiError as error:
                faults.add(error.code)
                continue
            old = [first + 2 * second - 0.5, -first + 0.5 * second + 0.25]
            assert answer in (old, [old[0] + first, old[1]])
        return asked

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(keep_asking, first) for first in (1, 2, 3)]
        try:
            for turn in range(12):
                describe(folder, one=("old.tflite", "new.tflite")[turn % 2])
                service.load("m")
                if turn % 3 == 0:
                    service.unload("m")
                    service.load("m")
        finally:
            over.set()
        assert all(done.result(60) for done in asking)
    assert faults <= {ErrorCode.MODEL_NOT_FOUND}  # while it was unloaded
    assert numbers(ask(service)) == [NEW]


ARRAYS = st.one_of(
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
    st.lists(st.binary(max_size=3), max_size=3).map(
        lambda texts: np.array([*texts, None], object)[:-1]
    ),
)


@given(st.lists(st.tuples(ARRAYS, ARRAYS, st.booleans()), min_size=1, max_size=6))
def test_compiled_answers_equal_first_answers(several):
    kept = CompiledRequest(
        None,
        1,
        [],
        [("a", "own a", None), ("b", "own b", None)],
        InferResponse("m", "1", [], "id"),
    )
    for first, second, turned in several:
        results = {
            "own a": first.T if turned else first,
            "own b": second,
            "own c": first,
        }
        outputs = [to_tensor("a", results["own a"]), to_tensor("b", second)]
        fresh = encode_infer_response(InferResponse("m", "1", outputs, "id"), True)
        encoded = kept.respond(results)
        assert b"".join(encoded.chunks) == b"".join(fresh.chunks)
        assert encoded.json_length == fresh.json_length
