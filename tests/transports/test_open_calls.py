"""Admit tensor requests in JSON before decoding their bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.api.dispatch import answer_request, match
from pocketserve.api.messages import ApiRequest, ApiResponse
from pocketserve.config import load_config
from pocketserve.service import FREE_THREADS, Service

TENSOR = {
    "name": "image",
    "datatype": "FP32",
    "shape": [1, 8, 8, 1],
    "data": [0] * 64,
}
VALID = json.dumps({"inputs": [TENSOR]}).encode()
INFER = "/v2/models/{model}/infer"
PREDICT = "/v1/models/{model}:predict"
MALFORMED = b'{"inputs": ['
BAD_PARAMETER = json.dumps(
    {"inputs": [TENSOR], "parameters": {"priority": "high"}}
).encode()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = {
        "models_dir": MODELS,
        "state_dir": tmp_path,
        "quarantine": False,
        "queue_limit": 1,
    }
    service = Service(load_config(settings, environ={}))
    yield service
    service.close()


def infer(
    service: Service, body: bytes, model: str = "digits", path: str = INFER
) -> ApiResponse:
    target = match("POST", path.format(model=model))
    request = ApiRequest(target.path, {}, memoryview(body))
    return answer_request(service, target.route, request)


def code_of(response: ApiResponse) -> str:
    document = json.loads(b"".join(response.chunks))
    return str(document.get("code", ""))


def slots_of(service: Service) -> int:
    return max(1, service.config.worker_threads - FREE_THREADS)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (INFER, MALFORMED, "MALFORMED_JSON"),
        (INFER, BAD_PARAMETER, "INVALID_PARAMETER"),
        (PREDICT, MALFORMED, "MALFORMED_JSON"),
        (PREDICT, b"{}", "INVALID_REQUEST"),
    ],
)
def test_invalid_requests_release_their_slot(
    service: Service, path: str, body: bytes, code: str
) -> None:
    for _ in range(slots_of(service) + 1):
        assert code_of(infer(service, body, path=path)) == code
    assert infer(service, VALID).status == 200
    assert service.drain(60)


def test_an_overloaded_server_rejects_before_decoding(service: Service) -> None:
    assert infer(service, VALID).status == 200
    before = service.engine.statistics("digits", "tflite").unanswered["refused"].count
    with ExitStack() as busy:
        for _ in range(slots_of(service)):
            busy.enter_context(service.in_flight())
        response = infer(service, MALFORMED)
        assert response.status == 429
        assert code_of(response) == "QUEUE_FULL"
    refused = service.engine.statistics("digits", "tflite").unanswered["refused"].count
    assert refused == before + 1
    assert code_of(infer(service, MALFORMED)) == "MALFORMED_JSON"


@pytest.mark.parametrize("path", [INFER, PREDICT])
def test_an_unknown_model_is_reported_before_the_body(
    service: Service, path: str
) -> None:
    response = infer(service, MALFORMED, "missing", path)
    assert code_of(response) == "MODEL_NOT_FOUND"
    assert service.drain(60)


def test_a_prediction_takes_one_slot(service: Service) -> None:
    body = json.dumps({"instances": [[[[0.0]] * 8] * 8]}).encode()
    with ExitStack() as busy:
        for _ in range(slots_of(service) - 1):
            busy.enter_context(service.in_flight())
        assert infer(service, body, path=PREDICT).status == 200
    assert service.drain(60)


def test_a_draining_server_rejects_before_decoding(service: Service) -> None:
    assert service.drain(60)
    assert code_of(infer(service, MALFORMED)) == "SHUTTING_DOWN"
