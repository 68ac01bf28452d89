"""Reranking and pairs by ``/v1/rerank`` and ``/predictions``, over both transports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve.api.messages import ApiRequest
from pocketserve.api.rerank import rerank
from pocketserve.config import Config
from pocketserve.service import Service
from pocketserve_client import Client
from text_models import write_reranker

pytestmark = [pytest.mark.onnx, pytest.mark.live]


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    for classes in (1, 2, 3):
        write_reranker(models / f"rerank{classes}", classes)
    server = start_server(tmp_path_factory.mktemp("server"), models)
    yield server
    assert server.stop() == 0


def ask(server: Server, path: str, content: Any) -> tuple[int, Any]:
    """Send JSON over both transports, check that they agree, and return status and
    answer.
    """
    body = json.dumps(content).encode()
    answer = server.call("POST", path, data=body)
    with server.connect() as connection:
        framed = connection.call(f"POST {path}", body, json_length=len(body))
    documents = (answer.json(), json.loads(framed.body))
    for document in documents:
        document.pop("timing_ms", None)
    assert (answer.status_code, documents[0]) == (framed.status, documents[1])
    return answer.status_code, documents[0]


def sigmoid(value: float) -> float:
    return 1 / (1 + float(np.exp(-value)))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_are_ordered_by_score(rerankers: Server, path: str) -> None:
    documents = ["good", {"text": "good bad good"}, "good bad"]
    request = {
        "model": "rerank1",
        "query": "good",
        "documents": documents,
        "return_documents": True,
    }
    status, answer = ask(rerankers, path, request)
    assert status == 200
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    # Types are 1 for a document's words and the last [SEP].
    expected = [
        sigmoid(2),
        sigmoid(1),
        sigmoid(0),
    ]
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx(
        expected
    )
    assert answer["results"][0]["document"] == {"text": "good bad good"}
    assert answer["usage"] == {"prompt_tokens": 5 + 7 + 6, "total_tokens": 18}
    assert answer["model"] == "rerank1"


def test_the_answer_is_as_described(rerankers: Server) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = rerankers.call("GET", "/openapi.json").json()
    answers = document["paths"]["/v1/rerank"]["post"]["responses"]
    schema = answers["200"]["content"]["application/json"]["schema"]
    request = {
        "model": "rerank1",
        "query": "good",
        "documents": ["good"],
        "return_documents": True,
    }
    _, answer = ask(rerankers, "/v1/rerank", request)
    jsonschema.validate(answer, schema)


def test_limit_results_and_omit_documents(rerankers: Server) -> None:
    request = {
        "model": "rerank1",
        "query": "good",
        "documents": ["good", "good bad"],
        "top_n": 1,
    }
    _, answer = ask(rerankers, "/v1/rerank", request)
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(sigmoid(1))}
    ]


def test_two_labels_give_the_probability_of_the_second(rerankers: Server) -> None:
    request = {
        "model": "rerank2",
        "query": "good",
        "documents": ["good bad"],
    }
    _, answer = ask(rerankers, "/v1/rerank", request)
    assert answer["results"][0]["relevance_score"] == pytest.approx(sigmoid(1))


FAULTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no model": ({"query": "a", "documents": ["b"]}, 400, "'model' must be"),
    "an unknown model": ({"model": "x", "query": "a", "documents": ["b"]}, 404, "x"),
    "no query": ({"model": "rerank1", "documents": ["b"]}, 400, "'query' must be"),
    "no documents": (
        {"model": "rerank1", "query": "a", "documents": []},
        400,
        "at least one",
    ),
    "too many": (
        {"model": "rerank1", "query": "a", "documents": ["b"] * 257},
        400,
        "limit is 256",
    ),
    "an empty document": (
        {"model": "rerank1", "query": "a", "documents": [" "]},
        400,
        "not empty",
    ),
    "a number": (
        {"model": "rerank1", "query": "a", "documents": [1]},
        400,
        "must be a text",
    ),
    "top_n": (
        {"model": "rerank1", "query": "a", "documents": ["b"], "top_n": 0},
        400,
        "'top_n'",
    ),
    "a misspelt key": (
        {"model": "rerank1", "query": "a", "documents": ["b"], "topn": 1},
        400,
        "'topn'",
    ),
    "three labels": (
        {"model": "rerank3", "query": "a", "documents": ["b"]},
        400,
        "3 labels",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_invalid_requests(rerankers: Server, case: str) -> None:
    content, status, text = FAULTS[case]
    answered, answer = ask(rerankers, "/v1/rerank", content)
    assert answered == status
    assert text in answer["error"]


PAIRS: dict[str, tuple[Any, list[float]]] = {
    "a pair": ({"text": "good", "text_pair": "good bad"}, [1]),
    "pairs": (
        [
            {"text": "good", "text_pair": "good bad"},
            {"text": "good", "text_pair": "good"},
        ],
        [1, 0],
    ),
    "lists of two": ([["good", "good bad"]], [1]),
    "a pair and a text": ([{"text": "good", "text_pair": "good"}, "good"], [0, -2]),
    "a text": ("good", [-2]),
}


@pytest.mark.parametrize("case", PAIRS)
def test_pairs_as_raw_input(rerankers: Server, case: str) -> None:
    content, logits = PAIRS[case]
    status, answer = ask(rerankers, "/predictions/rerank1", content)
    assert status == 200
    assert [entry["score"] for entry in answer["predictions"]] == pytest.approx(
        [sigmoid(x) for x in logits]
    )


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_the_python_client_sends_pairs(rerankers: Server, transport: str) -> None:
    address = (
        rerankers.url
        if transport == "http"
        else f"socket://127.0.0.1:{rerankers.socket_port}"
    )
    with Client(address, token=rerankers.token) as client:
        answer = client.predict(
            "rerank1",
            [
                {"text": "good", "text_pair": "good bad"},
                {"text": "a", "text_pair": "bad"},
            ],
        )
    scores = [entry["score"] for entry in answer["predictions"]]
    assert scores == pytest.approx([sigmoid(1), sigmoid(0)])


def test_other_objects_are_rejected(rerankers: Server) -> None:
    status, answer = ask(
        rerankers, "/predictions/rerank1", [{"text": "good", "text_pair": 5}]
    )
    assert status == 400
    assert "JSON for this model" in answer["error"]


def test_a_long_query_with_many_documents_is_rejected(rerankers: Server) -> None:
    """The query is paired with each document."""
    content = {
        "model": "rerank1",
        "query": "good " * 100_000,
        "documents": ["bad"] * 256,
    }
    status, answer = ask(rerankers, "/v1/rerank", content)
    assert status == 400
    assert "too long for so many documents" in answer["error"]


def test_a_request_is_attributed_to_the_clients_token(tmp_path: Path) -> None:
    """Streams of two apps with one name must stay separate."""
    write_reranker(tmp_path / "models" / "m")
    service = Service(
        Config(
            models_dir=tmp_path / "models",
            state_dir=tmp_path / "state",
            quarantine=False,
        )
    )
    body = json.dumps(
        {
            "model": "m",
            "query": "good",
            "documents": ["bad"],
        }
    ).encode()
    try:
        request = ApiRequest({}, {"stream": "camera"}, memoryview(body), owner="app")
        assert rerank(service, request).options.owner == "app"
    finally:
        service.close()
