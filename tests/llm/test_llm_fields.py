"""Test that each field of a request takes effect."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from chats import (
    CALLER,
    CHAT,
    COMPLETIONS,
    HELLO,
    SPELLER,
    SPELLING,
    ask,
    chat,
    events,
    named,
)
from conftest import Server
from pocketserve.api.openai.field_table import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
)
from pocketserve.api.openai.responses import RESPONSE_FIELDS

pytestmark = pytest.mark.llm
WORD = b"".join(SPELLING).decode()
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": CITY},
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
TRANSPORT_FIELDS = {"extra_headers", "extra_query", "extra_body", "timeout", "self"}


def call(server: Server, **fields: Any) -> Any:
    """Return the choice of an answer by the model that calls a function."""
    request = {"model": CALLER, "messages": HELLO, "temperature": 0}
    request |= {"tools": [WEATHER, CLOCK], "max_tokens": 120}
    answer = ask(server, CHAT, **request | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize(
    ("resource", "known"),
    [
        ("chat.completions", CHAT_FIELDS),
        ("completions", COMPLETION_FIELDS),
        ("embeddings", EMBEDDING_FIELDS),
        ("responses", RESPONSE_FIELDS),
    ],
)
def test_each_field_of_openais_client_is_known(resource: str, known: Any) -> None:
    import openai

    with openai.OpenAI(base_url="http://localhost/v1", api_key="x") as client:
        target: Any = client
        for name in resource.split("."):
            target = getattr(target, name)
        names = set(inspect.signature(target.create).parameters)
    assert names - TRANSPORT_FIELDS <= set(known)


def test_ignored_fields_and_defaults_are_accepted(llm_server: Server) -> None:
    fields = {"user": "x", "metadata": {}, "store": True, "prediction": {}}
    fields |= {"verbosity": "low", "modalities": ["text"], "reasoning_effort": "low"}
    fields |= {"audio": None, "functions": None, "tool_choice": "none", "n": 1}
    assert chat(llm_server, **fields).status_code == 200
    body = {"model": "plain", "prompt": "x", "max_tokens": 2, "suffix": None}
    answer = ask(llm_server, COMPLETIONS, echo=False, best_of=1, **body)
    assert answer.status_code == 200
    answer = ask(llm_server, COMPLETIONS, **body | {"echo": True})
    assert answer.json()["error"]["param"] == "echo"


@pytest.mark.parametrize("count", [None, 0, 1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_chats_have_the_requested_probabilities(
    llm_server: Server, count: int | None, stream: bool
) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": count}
    answer = chat(llm_server, stream=stream, **fields)
    tokens = []
    texts = []
    for part in events(answer) if stream else [answer.json()]:
        choice = part["choices"][0]
        texts.append(choice["delta" if stream else "message"].get("content") or "")
        tokens += (choice.get("logprobs") or {"content": []})["content"]
    assert "".join(token["token"] for token in tokens) == "".join(texts)
    assert len(tokens) == 4
    for token in tokens:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert token["logprob"] <= 0
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == (count or 0)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_the_requested_probabilities(
    llm_server: Server, count: int, stream: bool
) -> None:
    fields = {"model": "plain", "prompt": "Hello", "max_tokens": 4, "logprobs": count}
    answer = ask(llm_server, COMPLETIONS, stream=stream, **fields)
    tokens, numbers, offsets = [], [], []
    for part in events(answer) if stream else [answer.json()]:
        lists = part["choices"][0]["logprobs"]
        if lists is None:
            continue
        tokens += lists["tokens"]
        numbers += lists["token_logprobs"]
        offsets += lists["text_offset"]
        assert {len(top) for top in lists["top_logprobs"]} == {count}
    assert len(tokens) == len(numbers) == 4
    assert offsets == [5, 6, 7, 8]
    assert all(number <= 0 for number in numbers)


def test_answers_without_the_field_have_no_probabilities(llm_server: Server) -> None:
    for fields in ({}, {"logprobs": False}):
        assert chat(llm_server, **fields).json()["choices"][0]["logprobs"] is None


def test_a_letter_of_several_tokens_is_whole(llm_server: Server) -> None:
    body = {"model": SPELLER, "messages": HELLO, "temperature": 0, "logprobs": True}
    for stream in (False, True):
        answer = ask(llm_server, CHAT, stream=stream, **body)
        parts = events(answer) if stream else [answer.json()]
        choices = [part["choices"][0] for part in parts]
        texts = [
            choice["delta" if stream else "message"].get("content") or ""
            for choice in choices
        ]
        assert "".join(texts) == WORD
        data = b""
        for choice in choices:
            for token in (choice.get("logprobs") or {"content": []})["content"]:
                data += bytes(token["bytes"])
        assert data.decode() == WORD


def test_a_bias_bans_tokens(llm_server: Server) -> None:
    text = chat(llm_server, temperature=0).json()["choices"][0]["message"]["content"]
    banned = {str(3 + byte): -100 for byte in text.encode()}
    answer = chat(llm_server, temperature=0, logit_bias={"0": -100, "2": -100} | banned)
    other = answer.json()["choices"][0]["message"]["content"]
    assert other
    assert not set(other) & set(text)


def test_stop_texts_end_an_answer(llm_server: Server) -> None:
    body = {"model": SPELLER, "messages": HELLO, "temperature": 0}
    for stop in ("noir", ["x", "noir"]):
        choice = ask(llm_server, CHAT, stop=stop, **body).json()["choices"][0]
        assert choice["message"]["content"] == "caf\u00e9 "
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_other_seeds_give_other_texts(llm_server: Server, stream: bool) -> None:
    texts = set()
    for seed in range(4):
        answer = chat(llm_server, seed=seed, temperature=2, max_tokens=16)
        texts.add(answer.json()["choices"][0]["message"]["content"])
    assert len(texts) > 1


@pytest.mark.parametrize("form", ["json_object", "json_schema"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_format_binds_the_answer(llm_server: Server, form: str, stream: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"const": 7}}, "required": ["x"]}
    schema["additionalProperties"] = False
    wanted: dict[str, Any] = {"type": form}
    if form == "json_schema":
        wanted["json_schema"] = {"name": "x", "schema": schema, "strict": True}
    answer = chat(llm_server, response_format=wanted, max_tokens=64, stream=stream)
    parts = events(answer) if stream else [answer.json()]
    texts = []
    for part in parts:
        choice = part["choices"][0]
        texts.append(choice["delta" if stream else "message"].get("content") or "")
    text = "".join(texts)
    assert text.startswith("{")
    if form == "json_schema":
        assert json.loads(text) == {"x": 7}


def test_a_model_calls_tools_of_its_own_accord(llm_server: Server) -> None:
    choice = call(llm_server)
    (made,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert made["function"]["name"] == "get_weather"
    assert json.loads(made["function"]["arguments"]) == {"city": "Oslo"}
    answer = {"role": "tool", "tool_call_id": made["id"], "content": "rain"}
    turns = [*HELLO, choice["message"], answer]
    assert call(llm_server, messages=turns)["finish_reason"] == "tool_calls"


def test_without_tools_there_is_no_call(llm_server: Server) -> None:
    choice = call(llm_server, tool_choice="none")
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith("<tool_call>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        (named("get_time"), {"get_time"}),
        (named("get_weather"), {"get_weather"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [CLOCK]},
            },
            {"get_time"},
        ),
    ],
)
def test_a_required_call_is_made(
    llm_server: Server, choice: Any, names: set[str], stream: bool
) -> None:
    request = {"model": CALLER, "messages": HELLO, "temperature": 0}
    request |= {"tools": [WEATHER, CLOCK], "max_tokens": 200, "tool_choice": choice}
    answer = ask(llm_server, CHAT, stream=stream, **request)
    assert answer.status_code == 200, answer.text
    calls = []
    contents = []
    for part in events(answer) if stream else [answer.json()]:
        entry = part["choices"][0]
        message = entry["delta" if stream else "message"]
        contents.append(message.get("content"))
        calls += message.get("tool_calls", ())
    assert not any(contents)
    assert entry["finish_reason"] == "tool_calls"
    (made,) = calls
    function = made["function"]
    assert made["id"].startswith("call_")
    assert function["name"] in names
    arguments = json.loads(function["arguments"])
    if function["name"] == "get_weather":
        assert arguments["city"] in ("Oslo", "Rome")
    else:
        assert arguments == {}


def test_a_required_call_that_was_cut_is_a_text(llm_server: Server) -> None:
    for fields, reason in (({"max_tokens": 3}, "length"), ({"stop": "name"}, "stop")):
        choice = call(llm_server, tool_choice="required", **fields)
        assert choice["finish_reason"] == reason
        message = choice["message"]
        assert "tool_calls" not in message
        assert message["content"].startswith("{")


def test_the_socket_gives_the_same_answers(llm_server: Server) -> None:
    request = {"model": CALLER, "messages": HELLO, "temperature": 0}
    request |= {"tools": [WEATHER], "max_tokens": 120, "tool_choice": "required"}
    whole = ask(llm_server, CHAT, **request).json()["choices"][0]["message"]
    with llm_server.connect() as connection:
        answer = connection.call(f"POST {CHAT}", json.dumps(request).encode())
        fault = connection.call(f"POST {CHAT}", b'{"messages": 1, "model": "tiny"}')
    message = answer.document["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == whole["tool_calls"][0]["function"]
    assert fault.document["error"]["param"] == "messages"
