"""``POST /v1/rerank``: order documents by relevance for a query.

Its shape is common to the interfaces of Jina, Cohere and llama.cpp's server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pocketserve.api.messages import (
    JSON,
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import Prediction, RawPayload
from pocketserve.service import Service
from pocketserve.tasks.base import AnswerOptions, Hints
from pocketserve_wire import ApiError, ErrorCode, strict_json
from pocketserve_wire.oip_fields import bad_request

MAX_DOCUMENTS = 256
TASK = "text-classification"
_KEYS = frozenset(("model", "query", "documents", "top_n", "return_documents"))
_TAKES_PAIRS = (
    "a reranker is a text-classification model that takes pairs and answers one score, or two labels, the second of "
    "which means relevant"
)


class _Query(NamedTuple):
    """A checked request."""

    model: str
    query: str
    documents: Sequence[str]
    top_n: int
    return_documents: bool


def rerank(service: Service, request: ApiRequest) -> InferenceCall:
    """Order documents by their relevance for a query."""
    refuse_unknown_query(request, *WAITING_QUERY)
    query = _read(strict_json.loads_object(request.body))
    if len(query.query) * len(query.documents) > service.config.max_body_bytes:
        raise bad_request(
            "'query' is too long for so many documents: it is paired with each of them"
        )
    pairs = []
    for document in query.documents:
        pairs.append({"text": query.query, "text_pair": document})
    body = memoryview(strict_json.dumps(pairs))
    every_score = AnswerOptions(top_k=2, threshold=float("-inf"))
    payload = RawPayload(body, every_score, Hints(JSON, {"usage": True}))
    of_model = ApiRequest(
        {"model": query.model},
        owner=request.owner,
        deadline=request.deadline,
        cancellation=request.cancellation,
        received=request.received,
        execute=request.execute,
        keeps_thread=request.keeps_thread,
    )
    return inference_call(
        service,
        of_model,
        payload,
        waiting_parameters(request),
        partial(_respond, query),
        explain=_explain,
    )


def _read(content: dict[str, Any]) -> _Query:
    """Check a request's body."""
    for key in content:
        if key not in _KEYS:
            names = ", ".join(sorted(_KEYS))
            raise bad_request(f"unknown key {key!r:.80}; known are {names}")
    for key in ("model", "query"):
        text = content.get(key)
        if not isinstance(text, str) or not text.strip():
            raise bad_request(f"{key!r} must be a text, and not empty")
    documents = _documents(content)
    top_n = content.get("top_n")
    if top_n is None:
        top_n = len(documents)
    if type(top_n) is not int or top_n < 1:
        raise bad_request("'top_n' must be a whole number from 1")
    returns = content.get("return_documents", False)
    if not isinstance(returns, bool):
        raise bad_request("'return_documents' must be true or false")
    return _Query(content["model"], content["query"], documents, top_n, returns)


def _documents(content: dict[str, Any]) -> list[str]:
    documents = content.get("documents")
    if not isinstance(documents, list) or not documents:
        raise bad_request("'documents' must be a list of texts with at least one")
    if len(documents) > MAX_DOCUMENTS:
        count = len(documents)
        raise bad_request(
            f"'documents' has {count} texts, the limit is {MAX_DOCUMENTS}"
        )
    return [_document(entry) for entry in documents]


def _document(entry: Any) -> str:
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str) or not text.strip():
        raise bad_request(
            'each document must be a text or {"text": "..."}, and not empty'
        )
    return text


def _respond(query: _Query, prediction: Prediction) -> ApiResponse:
    scores = _scores(prediction, len(query.documents))
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results = [_result(query, scores, index) for index in order[: query.top_n]]
    tokens = prediction.more.get("tokens", 0)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response(
        {
            "model": prediction.model,
            "object": "list",
            "results": results,
            "usage": usage,
        }
    )


def _result(query: _Query, scores: Sequence[float], index: int) -> dict[str, Any]:
    result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
    if query.return_documents:
        result["document"] = {"text": query.documents[index]}
    return result


def _scores(prediction: Prediction, count: int) -> list[float]:
    """Return each document's relevance.

    It is the only score, or that of the second of two labels.
    """
    if prediction.task != TASK:
        raise _no_reranker(prediction.model, f"its task is {prediction.task}")
    classes = prediction.more["classes"]
    if classes not in (1, 2):
        raise _no_reranker(prediction.model, f"it has {classes} labels")
    by_document: list[dict[int, float]] = [{} for _ in range(count)]
    for entry in prediction.predictions:
        by_document[entry["input"]][entry["index"]] = entry["score"]
    scores = []
    for number, of_document in enumerate(by_document):
        if len(of_document) != min(classes, 2):
            text = f"the model's score of document {number} is not a number"
            raise ApiError(ErrorCode.INFERENCE_FAILED, text)
        scores.append(of_document[max(of_document)])
    return scores


def _explain(error: ApiError) -> ApiError:
    """Explain rerankers in a task's rejection of pairs."""
    if error.code is not ErrorCode.INVALID_INPUT:
        return error
    return ApiError(error.code, f"{error.message}; {_TAKES_PAIRS}")


def _no_reranker(model: str, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_INPUT,
        f"model {model!r:.80} can't rerank: {reason}; {_TAKES_PAIRS}",
    )
