"""Deadlines, cancellation, priority and streams, through the interface of every
transport.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import MODELS, ROOT, STATE
from pocketserve.api import predictions, tfserving
from pocketserve.api.messages import ApiRequest, ApiResponse, Handler
from pocketserve.config import Config
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import respond

ROW = [5.8, 3.0, 4.3]
TENSOR = {
    "name": "features",
    "datatype": "FP32",
    "shape": [1, 3],
    "data": ROW,
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Create a service without a transport."""
    one = Service(Config(models_dir=MODELS, state_dir=STATE))
    yield one
    one.close()


def infer(
    service: Service, parameters: dict[str, object] | None = None, **more: object
) -> ApiResponse:
    body = json.dumps({"inputs": [TENSOR], "parameters": parameters or {}}).encode()
    return respond(
        service, ApiRequest(path={"model": "petals"}, body=memoryview(body), **more)
    )


def predict(
    service: Service, parameters: dict[str, object] | None = None, **more: object
) -> ApiResponse:
    request = ApiRequest(
        path={"model": "petals"}, body=memoryview(json.dumps(ROW).encode()), **more
    )
    request.query = in_query(parameters)
    return respond(service, request, predictions.predict)


def predict_v1(
    service: Service, parameters: dict[str, object] | None = None, **more: object
) -> ApiResponse:
    body = memoryview(json.dumps({"instances": [ROW]}).encode())
    request = ApiRequest(
        path={"model": "petals"}, body=body, query=in_query(parameters), **more
    )
    return respond(service, request, tfserving.v1_predict)


def in_query(parameters: dict[str, object] | None) -> dict[str, str]:
    query = {name: str(value) for name, value in (parameters or {}).items()}
    if "timeout" in query:
        query["timeout_ms"] = str(float(query.pop("timeout")) / 1000)
    return query


CALLS = [infer, predict, predict_v1]


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize("call", CALLS)
def test_a_request_with_options_is_answered(service, call):
    terms = {
        "timeout": 20_000_000,
        "priority": 1,
        "stream": "camera",
    }
    assert (
        call(
            service, terms, deadline=time.monotonic() + 20, cancellation=Cancellation()
        ).status
        == 200
    )


@pytest.mark.parametrize("call", CALLS)
def test_the_transports_deadline_applies(service, call):
    call(service)
    before = service.engine.statistics("petals", "tflite").unanswered["expired"].count
    code = code_of(
        lambda: call(service, {"timeout": 20_000_000}, deadline=time.monotonic())
    )
    assert code is ErrorCode.DEADLINE_EXCEEDED
    assert (
        service.engine.statistics("petals", "tflite").unanswered["expired"].count
        == before + 1
    )


@pytest.mark.parametrize("call", CALLS)
def test_a_cancelled_request_is_not_run(service, call):
    call(service)
    switch = Cancellation()
    switch.cancel()
    runs = service.engine.statistics("petals", "tflite").execution_count
    assert code_of(lambda: call(service, cancellation=switch)) is ErrorCode.CANCELLED
    assert service.engine.statistics("petals", "tflite").execution_count == runs


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"stream": "x" * 129},
        {"priority": -1},
        {"priority": 2**32},
        {"timeout": 86_400_000_001},
    ],
)
def test_invalid_options_are_rejected(service, call, parameters):
    assert code_of(lambda: call(service, parameters)) is ErrorCode.INVALID_PARAMETER


@pytest.mark.parametrize("call", CALLS)
def test_the_load_time_is_not_part_of_the_first_request(service, call, monkeypatch):
    call(service)
    engine = service.engine
    real = time.perf_counter_ns
    ahead = [0]
    acquire = engine.acquire
    statistics = engine.statistics("petals", "tflite")

    def slow_load(*arguments: object) -> object:
        ahead[0] += 10**15
        return acquire(*arguments)

    monkeypatch.setattr(time, "perf_counter_ns", lambda: real() + ahead[0])
    monkeypatch.setattr(engine, "acquire_loaded", lambda record: None)
    monkeypatch.setattr(engine, "acquire", slow_load)
    call(service)
    assert ahead[0]
    assert statistics.runs.total_ns < 10**15


def test_a_raw_body_takes_its_options_from_the_query(service):
    body = memoryview(b"\0" * 12)
    request = ApiRequest(
        path={"model": "petals"},
        body=body,
        json_length=0,
        query={"stream": "camera", "priority": "1"},
    )
    assert respond(service, request).status == 200
    request.query = {"priority": "first"}
    assert code_of(lambda: respond(service, request)) is ErrorCode.INVALID_PARAMETER


# --- State that the server fills in

STATEFUL = """
[state.feedback]
b = "sum"
[[inputs]]
name = "a"
datatype = "FP32"
shape = [-1]
[[inputs]]
name = "b"
datatype = "FP32"
shape = [-1]
"""


@pytest.fixture
def adding(tmp_path) -> Iterator[Service]:
    """Create a model that adds its input ``a`` to its state ``b``."""
    folder = tmp_path / "models" / "adding"
    folder.mkdir(parents=True)
    shutil.copy(
        ROOT / "tests" / "runtimes" / "data" / "two_inputs.tflite",
        folder / "adding.tflite",
    )
    (folder / "model.toml").write_text(STATEFUL)
    one = Service(Config(models_dir=tmp_path / "models", state_dir=STATE))
    yield one
    one.close()


def ask(handler: Handler, service: Service, document: object) -> object:
    request = ApiRequest(
        path={"model": "adding"}, body=memoryview(json.dumps(document).encode())
    )
    return json.loads(b"".join(respond(service, request, handler).chunks))


def test_state_inputs_are_optional_everywhere(adding):
    for document in (
        [3],
        {"a": [3]},
        {"a": [3], "b": [4]},
    ):
        found = ask(predictions.predict, adding, document)["predictions"][0]["data"]
        assert found == [3 + 4 * ("b" in document)]
    for inputs in (
        [3],
        {"a": [3]},
        {"a": [3], "b": [4]},
    ):
        assert ask(tfserving.v1_predict, adding, {"inputs": inputs})["outputs"] == [
            3 + 4 * ("b" in inputs)
        ]
    for instances in (
        [3],
        [{"a": 3}],
        [{"a": 3, "b": 4}],
    ):
        assert ask(tfserving.v1_predict, adding, {"instances": instances})[
            "predictions"
        ] == [3 + 4 * ("b" in str(instances))]


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [{"b": 1}]},
        {"instances": [{"a": 1}, {"a": 1, "b": 2}]},
        {"inputs": {"b": [1]}},
    ],
)
def test_other_inputs_are_required(adding, document):
    assert (
        code_of(lambda: ask(tfserving.v1_predict, adding, document))
        is ErrorCode.INVALID_REQUEST
    )
