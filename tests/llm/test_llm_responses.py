"""Test OpenAI's responses: their shape, their events and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chats import ask, chat
from conftest import Server

pytestmark = pytest.mark.llm
RESPONSES = "/v1/responses"


def respond(server: Server, **fields: Any) -> Any:
    request = {"model": "tiny", "input": "Hello", "max_output_tokens": 8}
    return ask(server, RESPONSES, **request | {"temperature": 0} | fields)


def events_of(answer: Any) -> list[Any]:
    """Return the events of a stream; check their names and numbers."""
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = []
    for part in answer.text.split("\n\n"):
        if part.startswith("event: "):
            name, data = part.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == len(events)
            events.append(event)
    return events


def test_a_response_has_the_text_of_a_chat(llm_server: Server) -> None:
    message = chat(llm_server, temperature=0, max_tokens=8, logit_bias={}).json()
    answer = respond(llm_server).json()
    (item,) = answer["output"]
    expected = message["choices"][0]["message"]["content"]
    assert item["content"][0]["text"] == expected
    usage = answer["usage"]
    assert usage["output_tokens"] == message["usage"]["completion_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_cut_response_is_incomplete(llm_server: Server) -> None:
    answer = respond(llm_server, max_output_tokens=1).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    whole = respond(llm_server, model="speller", max_output_tokens=100).json()
    assert whole["status"] == "completed"
    assert whole["output"][0]["content"][0]["text"] == "café noir!"


def test_a_stream_has_all_events_of_a_text(llm_server: Server) -> None:
    events = events_of(respond(llm_server, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
    ]
    assert kinds[-4:-1] == ["output_text.done", "content_part.done", "output_item.done"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    text = "".join(event["delta"] for event in events[4:-4])
    whole = respond(llm_server).json()
    last = events[-1]["response"]
    assert kinds[-1] == last["status"] == whole["status"]
    assert text == whole["output"][0]["content"][0]["text"]
    assert last["output"][0]["content"][0]["text"] == text
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_messages_and_instructions_are_a_chat(llm_server: Server) -> None:
    system = {"role": "system", "content": "Be short."}
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How are you?"},
    ]
    fields = {"temperature": 0, "max_tokens": 8, "logit_bias": {}}
    expected = chat(llm_server, messages=[system, *history], **fields).json()
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
        },
        {"role": "user", "content": "How are you?"},
    ]
    answer = respond(llm_server, input=items, instructions="Be short.").json()
    text = answer["output"][0]["content"][0]["text"]
    assert text == expected["choices"][0]["message"]["content"]
    prompt_tokens = expected["usage"]["prompt_tokens"]
    assert answer["usage"]["input_tokens"] == prompt_tokens


def test_a_response_fits_a_schema(llm_server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "pick", "strict": True, "schema": schema}
    answer = respond(llm_server, text={"format": form}, max_output_tokens=64).json()
    content = json.loads(answer["output"][0]["content"][0]["text"])
    assert content in ({"a": 1}, {"a": 2})


def test_fields_that_ask_for_nothing_are_accepted(llm_server: Server) -> None:
    fields = {"store": True, "metadata": {"a": "b"}, "user": "x", "tools": []}
    fields |= {"tool_choice": "auto", "truncation": "disabled", "background": False}
    fields |= {"include": [], "reasoning": {"effort": "low", "summary": None}}
    fields |= {"previous_response_id": None, "text": {"format": {"type": "text"}}}
    assert respond(llm_server, **fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": "x" * 3000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"instructions": 5}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"text": {"form": {}}}, "text.form"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"model": None}, "model"),
    ],
)
def test_other_fields_are_refused_by_name(
    llm_server: Server, fields: dict[str, Any], param: str
) -> None:
    answer = respond(llm_server, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
