"""Hold the shapes and invariants that llama.cpp's own server tests check.

They follow tools/server/tests/unit of ggml-org/llama.cpp, on the toy chat model. The
differences are listed in docs/text-generation.md.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import gguf_files
from chats import CHAT, COMPLETIONS, ask, events
from conftest import ROOT, Server, start_server

pytestmark = pytest.mark.llm
FOLDER = ROOT / "tests" / "models" / "chat"
SYSTEM = {"role": "system", "content": "Book"}
SKY = {"role": "user", "content": "What colour is the sky?"}
BLUE = "The sky is blue."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(FOLDER, models / "chat")
    gguf_files.write_tiny(models / "embedder.gguf", llama__pooling_type=1)
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def chat(server: Server, *messages: Any, **fields: Any) -> Any:
    request = {
        "model": "chat",
        "messages": list(messages),
        "temperature": 0,
    }
    return ask(server, CHAT, **request | fields)


def content(answer: Any) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_an_answer_has_its_shape_and_counts(server: Server) -> None:
    document = chat(server, SYSTEM, SKY, max_tokens=3).json()
    assert document["id"].startswith("chatcmpl-")
    assert document["created"] > 0
    usage = document["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["prompt_tokens"] > 3
    (choice,) = document["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert content(chat(server, SKY)) == BLUE
    assert chat(server, SKY).json()["choices"][0]["finish_reason"] == "stop"


def test_parts_of_a_message_are_joined(server: Server) -> None:
    parts = [{"type": "text", "text": text} for text in ("What colour ", "is the sky?")]
    joined = chat(server, {"role": "user", "content": parts})
    whole = chat(server, SKY)
    assert content(joined) == content(whole)
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in (joined, whole)]
    assert counts[0] == counts[1]


def test_a_stream_has_its_shape(server: Server) -> None:
    options = {"include_usage": True}
    chunks = events(chat(server, SKY, stream=True, stream_options=options))
    *parts, end = chunks
    assert end["choices"] == []
    assert end["usage"] == chat(server, SKY).json()["usage"] | {
        "prompt_tokens_details": end["usage"]["prompt_tokens_details"]
    }
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    choices = [part["choices"][0] for part in parts]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert choices[-1]["finish_reason"] == "stop"
    assert "content" not in choices[-1]["delta"]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == BLUE


def test_an_answer_goes_on_where_the_assistant_stopped(server: Server) -> None:
    begun = {"role": "assistant", "content": "The sky"}
    assert content(chat(server, SKY, begun)).strip() == "is blue."


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "fo"}}}, '"fo"'),
        ({"type": "text"}, BLUE),
        ({"type": "sound"}, None),
        ({"type": "json_object", "schema": 123}, None),
        ({"type": "json_object", "schema": {"type": 123}}, None),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, None),
    ],
)
def test_formats_are_obeyed_or_refused(
    server: Server, form: dict[str, Any], text: str | None
) -> None:
    answer = chat(server, SKY, response_format=form, max_tokens=60)
    if text is None:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("response_format")
    else:
        assert content(answer) == text


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        [123],
        [{}],
        [{"role": 123}],
        [{"content": "hello"}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
        [SKY, *[{"role": "assistant", "content": "test"}] * 2],
    ],
)
def test_bad_messages_are_refused(server: Server, messages: Any) -> None:
    for stream in (False, True):
        request = {
            "model": "chat",
            "messages": messages,
            "stream": stream,
        }
        answer = ask(server, CHAT, **request)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("messages")


def test_probabilities_belong_to_the_text(server: Server) -> None:
    fields = {"logprobs": True, "top_logprobs": 10}
    whole = chat(server, SKY, **fields).json()["choices"][0]["logprobs"]["content"]
    streamed = []
    for chunk in events(chat(server, SKY, stream=True, **fields)):
        logprobs = chunk["choices"][0].get("logprobs") or {"content": []}
        streamed += logprobs["content"]
    for tokens in (whole, streamed):
        assert "".join(token["token"] for token in tokens) == BLUE
        for token in tokens:
            assert token["logprob"] <= 0
            numbers = [other["logprob"] for other in token["top_logprobs"]]
            assert numbers == sorted(numbers, reverse=True)
            assert token["logprob"] == max(numbers)
            assert sum(map(math.exp, numbers)) <= 1.001


def test_requests_at_once_are_all_answered(server: Server) -> None:
    questions = (
        ("What colour is the sky?", BLUE),
        ("What is 3 plus 4?", "3 plus 4 is 7."),
        ("Spell moon.", "m, o, o, n."),
    ) * 3
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as threads:
        answers = threads.map(
            lambda pair: content(chat(server, {"role": "user", "content": pair[0]})),
            questions,
        )
    assert list(answers) == [expected for _, expected in questions]


def test_a_cached_prompt_changes_nothing(server: Server) -> None:
    story = {"role": "user", "content": "Tell me a story about a fox."}
    first = chat(server, story, max_tokens=40)
    second = chat(server, story, max_tokens=40)
    assert content(first) == content(second)
    usage = second.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_a_completion_streams_its_text(server: Server) -> None:
    request = {
        "model": "chat",
        "prompt": "Once there",
        "max_tokens": 8,
    }
    request["temperature"] = 0
    whole = ask(server, COMPLETIONS, **request).json()
    assert whole["id"].startswith("cmpl-")
    assert whole["choices"][0]["finish_reason"] == "length"
    chunks = events(ask(server, COMPLETIONS, stream=True, **request))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_prompts_over_the_context_are_refused(server: Server) -> None:
    for stream in (False, True):
        request = {
            "model": "chat",
            "prompt": "fox " * 600,
            "stream": stream,
        }
        fault = ask(server, COMPLETIONS, **request).json()["error"]
        assert fault["code"] == "context_length_exceeded"
        assert fault["param"] == "prompt"
        assert "context length of 512" in fault["message"]


def embed(server: Server, texts: Any, **fields: Any) -> Any:
    return ask(server, "/v1/embeddings", model="embedder", input=texts, **fields)


def test_vectors_have_length_one_and_repeat(server: Server) -> None:
    document = embed(server, ["a fox", "a hen", "a fox"]).json()
    vectors = [entry["embedding"] for entry in document["data"]]
    for vector in vectors:
        assert math.fsum(value**2 for value in vector) == pytest.approx(1, abs=1e-3)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-3)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-3)
    single = embed(server, "a fox").json()
    assert single["data"][0]["embedding"] == pytest.approx(vectors[0], abs=1e-3)


def test_tokens_of_texts_are_counted(server: Server) -> None:
    single = embed(server, "This is a test").json()["usage"]
    assert single["prompt_tokens"] == single["total_tokens"] > 0
    double = embed(server, ["This is a test"] * 2).json()["usage"]
    assert double["prompt_tokens"] == 2 * single["prompt_tokens"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        {"content": "a"},
        "x " * 2000,
        None,
        7,
        [None],
    ],
)
def test_bad_texts_are_refused(server: Server, texts: Any) -> None:
    answer = embed(server, texts)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/embeddings"])
@pytest.mark.parametrize("key", [None, "Bearer wrong", "Basic d3Jvbmc="])
def test_each_route_needs_the_key(server: Server, path: str, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    answer = server.session.post(
        server.url + path, data=b"{}", headers=headers, timeout=120
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/props", "/slots", "/metrics/x", "/apply-template"])
def test_the_engines_own_routes_are_not_reachable(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        assert server.call(method, path).status_code == 404


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[" * 100_000,
        b'{"a": "\xff"}',
        b"[]",
        b"",
    ],
)
def test_bad_bodies_get_openais_shape(server: Server, data: bytes) -> None:
    answer = server.call("POST", CHAT, data=data)
    assert answer.status_code == 400
    fault = answer.json()["error"]
    assert fault["type"] == "invalid_request_error"
    assert json.dumps(fault["message"])
