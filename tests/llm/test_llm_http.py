"""Test language models over HTTP: OpenAI's formats, streams and bad requests."""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
from typing import Any

import pytest

import gguf_files
from chats import CHAT, COMPLETIONS, HELLO, ask, chat, events, named
from conftest import Server

pytestmark = pytest.mark.llm


def test_a_chat_has_openais_shape(llm_server: Server) -> None:
    answer = chat(llm_server)
    assert answer.status_code == 200
    content = answer.json()
    assert content["object"] == "chat.completion"
    assert content["model"] == "tiny"
    (choice,) = content["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    usage = content["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4


def test_a_stream_has_the_text_of_the_whole_answer(llm_server: Server) -> None:
    whole = chat(llm_server, temperature=0, max_tokens=16).json()
    answer = chat(llm_server, temperature=0, max_tokens=16, stream=True)
    chunks = events(answer)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in choice["delta"] for choice in choices[1:])
    assert not any(choice["delta"].get("content", "") is None for choice in choices)
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert [choice["finish_reason"] for choice in choices][-1] == "length"


def test_a_stream_reports_the_usage_on_request(llm_server: Server) -> None:
    options = {"include_usage": True}
    chunks = events(chat(llm_server, stream=True, stream_options=options))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_the_same_seed_gives_the_same_text(llm_server: Server) -> None:
    texts = set()
    for _ in range(2):
        answer = chat(llm_server, seed=7, temperature=1.0, max_tokens=12).json()
        texts.add(answer["choices"][0]["message"]["content"])
    assert len(texts) == 1


def test_the_smaller_of_two_limits_applies(llm_server: Server) -> None:
    answer = chat(llm_server, max_tokens=9, max_completion_tokens=3).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_a_client_reuses_its_own_prompt(llm_server: Server) -> None:
    chat(llm_server)
    usage = chat(llm_server).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_prompt_is_completed(llm_server: Server) -> None:
    fields = {
        "model": "plain",
        "prompt": "Hello",
        "max_tokens": 4,
        "temperature": 0,
    }
    answer = ask(llm_server, COMPLETIONS, **fields).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"]
    chunks = events(ask(llm_server, COMPLETIONS, stream=True, **fields))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert text == answer["choices"][0]["text"]


def test_probabilities_have_the_shape_of_each_route(llm_server: Server) -> None:
    answer = chat(llm_server, logprobs=True, top_logprobs=2).json()
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert tokens
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    fields = {
        "model": "plain",
        "prompt": "Hello",
        "max_tokens": 4,
        "logprobs": 2,
    }
    lists = ask(llm_server, COMPLETIONS, **fields).json()["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) > 0


def test_an_answer_fits_a_json_schema(llm_server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = chat(llm_server, response_format=form, max_tokens=64).json()
    content = json.loads(answer["choices"][0]["message"]["content"])
    assert content in ({"a": 1}, {"a": 2})


def test_raw_text_is_answered_as_a_chat(llm_server: Server) -> None:
    answer = llm_server.call("POST", "/predictions/tiny", data=b"Hello")
    assert answer.json()["predictions"][0]["text"]


def test_tensors_complete_a_prompt(llm_server: Server) -> None:
    tensor = {
        "name": "text_input",
        "shape": [1],
        "datatype": "BYTES",
        "data": ["Hi"],
    }
    answer = ask(llm_server, "/v2/models/tiny/infer", inputs=[tensor]).json()
    assert answer["outputs"][0]["name"] == "text_output"
    assert answer["outputs"][0]["data"][0]


@pytest.mark.parametrize(
    ("model", "text", "status", "part"),
    [
        ("embedder", "Hi", 400, "/v1/embeddings"),
        ("tiny", "", 400, "empty"),
        ("tiny", "x" * 2000, 400, "model's context length"),
    ],
)
def test_tensors_are_checked_as_other_prompts(
    llm_server: Server, model: str, text: str, status: int, part: str
) -> None:
    tensor = {
        "name": "text_input",
        "shape": [1],
        "datatype": "BYTES",
        "data": [text],
    }
    for _ in range(2):
        answer = ask(llm_server, f"/v2/models/{model}/infer", inputs=[tensor])
        assert answer.status_code == status
        assert part in answer.text


def calling(call: Any) -> dict[str, Any]:
    """Return an assistant's message with a tool call."""
    return {"role": "assistant", "tool_calls": [call]}


NESTED = {"type": "string", "pattern": "^((a{0,50}){0,50})$"}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": NESTED}}
FUNCTION = {"name": "f", "parameters": {"properties": {"x": NESTED}}}
CALLED = {"type": "function", "function": {"name": "f"}}
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "poem"}}}


BAD_FIELDS = [
    ({"messages": []}, "'messages'"),
    ({"messages": [calling({})]}, "tool_calls[0]"),
    ({"messages": [calling({"function": {"name": 1}})]}, "function.name"),
    ({"messages": [calling({"function": {"name": "f"}})]}, "function.arguments"),
    ({"response_format": SCHEMA}, "json_schema.schema.pattern"),
    ({"tools": [{"type": "function", "function": FUNCTION}]}, "x.pattern"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"temperature": -1}, "'temperature' must be a number from 0 to 2"),
    ({"temperature": "hot"}, "'temperature'"),
    ({"top_p": 5}, "'top_p'"),
    ({"n": 2}, "'n' must be 1"),
    ({"max_tokens": 0}, "'max_tokens'"),
    ({"max_tokens": 1.5}, "'max_tokens'"),
    ({"logprobs": True, "top_logprobs": 21}, "'top_logprobs'"),
    ({"top_logprobs": 2}, "needs logprobs"),
    ({"n_probs": 100_000_000}, "unknown field 'n_probs'"),
    ({"stop": ["x"] * 17}, "'stop'"),
    ({"stop": [""]}, "'stop'"),
    ({"seed": -1}, "'seed'"),
    ({"logit_bias": {"a": 1}}, "'logit_bias'"),
    ({"logit_bias": {"99999": 1}}, "has the token 99999"),
    ({"tools": [{"type": "robot"}]}, "tools[0]"),
    ({"response_format": {"type": "poem"}}, "response_format.type"),
    ({"stream_options": {"x": True}}, "stream_options.x"),
    ({"stream": "yes"}, "'stream' must be true or false"),
    ({"model": 1}, "'model' must be a text"),
    ({"seed": 2**32 - 1}, "'seed'"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "needs stream"),
    ({"modalities": ["text", "audio"]}, 'must be ["text"]'),
    ({"audio": {"voice": "x"}}, "only text"),
    ({"functions": [FUNCTION]}, "send tools"),
    ({"function_call": "auto"}, "send tools"),
    ({"web_search_options": {}}, "can't reach the network"),
    ({"reasoning_effort": "endless"}, "must be one of none"),
    ({"tool_choice": "required"}, "needs tools"),
    ({"parallel_tool_calls": True}, "needs tools"),
    ({"tools": [CALLED, CALLED]}, "second tool of this name"),
    ({"tools": [{**CALLED, "function": {"name": "a b"}}]}, "letters, digits"),
    ({"tools": [CALLED], "tool_choice": "always"}, "must be an object"),
    ({"tools": [CALLED], "tool_choice": named("g")}, "'g', which tools lacks"),
    ({"tools": [CALLED], "tool_choice": {"type": "robot"}}, "allowed_tools"),
    ({"tools": [CALLED], "logprobs": True}, "combined with tools"),
    ({"tools": [CALLED]}, "template doesn't mention them"),
    ({"response_format": BAD_SCHEMA}, "unrecognized type"),
]


@pytest.mark.parametrize(
    ("fields", "part"),
    BAD_FIELDS,
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields_are_refused_by_name(
    llm_server: Server, fields: dict[str, Any], part: str, stream: bool
) -> None:
    answer = chat(llm_server, **{"stream": stream} | fields)
    assert answer.status_code == 400
    fault = answer.json()["error"]
    assert part in fault["message"]
    assert fault["type"] == "invalid_request_error"
    (*_, field) = fields
    assert re.match(rf"{field}\b", fault["param"])


@pytest.mark.parametrize(
    "url", ["http://localhost/x.png", "file:///etc/passwd", "data:image/png;base64,AA"]
)
def test_pictures_are_refused_and_never_fetched(llm_server: Server, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = chat(llm_server, messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    fault = answer.json()["error"]
    assert "only text" in fault["message"]
    assert fault["param"] == "messages[0].content[0]"


def test_a_prompt_over_the_context_gets_both_numbers(llm_server: Server) -> None:
    messages = [{"role": "user", "content": "x" * 3000}]
    for stream in (False, True):
        answer = chat(llm_server, messages=messages, stream=stream)
        assert answer.status_code == 400
        fault = answer.json()["error"]
        assert fault["code"] == "context_length_exceeded"
        assert fault["param"] == "messages"
        assert f"context length of {gguf_files.CONTEXT}" in fault["message"]


def test_an_unknown_model_is_404(llm_server: Server) -> None:
    answer = chat(llm_server, model="nothing")
    assert answer.status_code == 404
    fault = answer.json()["error"]
    assert (fault["code"], fault["param"]) == ("model_not_found", "model")


def test_requests_without_the_token_are_refused(llm_server: Server) -> None:
    body = {"model": "tiny", "messages": HELLO}
    answer = llm_server.session.post(llm_server.url + CHAT, json=body, timeout=120)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_a_model_without_a_template_cannot_chat(llm_server: Server) -> None:
    answer = chat(llm_server, model="plain")
    assert answer.status_code == 400
    fault = answer.json()["error"]
    assert "no chat template" in fault["message"]
    assert fault["param"] == "model"


def test_an_answer_ends_at_the_clients_deadline(llm_server: Server) -> None:
    fields = {
        "model": "plain",
        "prompt": "x",
        "max_tokens": 400,
    }
    answer = ask(llm_server, f"{COMPLETIONS}?timeout_ms=1", **fields)
    assert answer.status_code == 504


def test_a_disconnected_client_frees_the_model(llm_server: Server) -> None:
    body = json.dumps(
        {
            "model": "plain",
            "prompt": "x",
            "stream": True,
        }
    ).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Bearer {llm_server.token}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", llm_server.port), 120) as client:
            client.sendall(head.encode() + body)
            assert client.recv(1)
    answer = ask(llm_server, COMPLETIONS, model="plain", prompt="x", max_tokens=2)
    assert answer.status_code == 200


def test_triton_generates_whole_and_in_parts(llm_server: Server) -> None:
    body = {"text_input": "Hi", "parameters": {"max_tokens": 8, "temperature": 0}}
    whole = ask(llm_server, "/v2/models/plain/generate", **body).json()
    assert whole["model_name"] == "plain"
    assert whole["model_version"] == "gguf"
    path = "/v2/models/plain/versions/gguf/generate_stream"
    answer = ask(llm_server, path, **body)
    assert answer.headers["Content-Type"] == "text/event-stream"
    parts = [part for part in answer.text.split("\n\n") if part]
    texts = [json.loads(part[6:])["text_output"] for part in parts]
    assert len(texts) > 1
    assert "".join(texts) == whole["text_output"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text_input": 1},
        {"text_input": ""},
        {"text_input": "x", "more": 1},
        {"text_input": "x", "parameters": {"more": 1}},
        {"text_input": "x", "parameters": {"max_tokens": 0}},
        {"text_input": "x", "parameters": {"stream": True}},
    ],
)
def test_bad_generate_requests_have_tritons_shape(
    llm_server: Server, body: dict[str, Any]
) -> None:
    answer = ask(llm_server, "/v2/models/plain/generate", **body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


def test_models_are_listed_for_every_client(llm_server: Server) -> None:
    listed = llm_server.call("GET", "/v1/models").json()
    assert listed["models"] == [
        "caller",
        "embedder",
        "long",
        "plain",
        "speller",
        "tiny",
    ]
    assert [model["id"] for model in listed["data"]] == listed["models"]
    model = llm_server.call("GET", "/v1/models/tiny").json()
    assert model["id"] == "tiny"
    assert model["object"] == "model"
    assert model["ready"]
    assert llm_server.call("GET", "/v1/models/none").status_code == 404


def test_texts_are_embedded_as_numbers_and_base64(llm_server: Server) -> None:
    fields = {"model": "embedder", "input": ["one", "two"]}
    plain = ask(llm_server, "/v1/embeddings", **fields).json()
    assert [entry["index"] for entry in plain["data"]] == [0, 1]
    assert plain["usage"]["prompt_tokens"] > 0
    packed = ask(llm_server, "/v1/embeddings", encoding_format="base64", **fields)
    for entry, other in zip(plain["data"], packed.json()["data"], strict=True):
        data = base64.b64decode(other["embedding"])
        numbers = struct.unpack(f"<{len(data) // 4}f", data)
        assert len(numbers) == gguf_files.WIDTH
        assert entry["embedding"] == pytest.approx(numbers, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"input": []}, "'input'"),
        ({"input": [1, 2]}, "lists of tokens"),
        ({"input": ""}, "empty"),
        ({"input": ["x" * 600_000] * 2}, "characters in all; it has 1200000"),
        ({"input": "x", "encoding_format": "hex"}, "'encoding_format'"),
        ({"input": "x", "dimensions": 8}, "the model's own length"),
        ({"input": "x", "colour": 8}, "unknown field 'colour'"),
        ({"input": "x", "model": "tiny"}, "no embeddings"),
    ],
)
def test_bad_embedding_requests_are_refused(
    llm_server: Server, fields: dict[str, Any], part: str
) -> None:
    answer = ask(llm_server, "/v1/embeddings", **{"model": "embedder"} | fields)
    assert answer.status_code == 400
    fault = answer.json()["error"]
    assert part in fault["message"]
    (*_, field) = fields
    assert fault["param"] == field


def test_an_embedding_model_does_not_chat(llm_server: Server) -> None:
    answer = chat(llm_server, model="embedder")
    assert answer.status_code == 400
    assert "/v1/embeddings" in answer.json()["error"]["message"]


def test_the_socket_sends_the_whole_answer(llm_server: Server) -> None:
    body = {
        "model": "plain",
        "prompt": "x",
        "max_tokens": 4,
        "temperature": 0,
    }
    whole = ask(llm_server, COMPLETIONS, **body).json()
    with llm_server.connect() as connection:
        answer = connection.call(f"POST {COMPLETIONS}", json.dumps(body).encode())
    assert answer.document["choices"] == whole["choices"]
