"""A forced call in the events of an engine's answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pocketserve.api.openai.answers import ChatAnswer
from pocketserve.api.openai.tools import ForcedCall

CALL = '{"name": "get", "arguments": {"city": "Oslo"}}'


def message_of(texts: list[str], reason: str) -> dict[str, Any]:
    events = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    events.append({"choices": [{"delta": {}, "finish_reason": reason}]})
    answer = ChatAnswer({"model": "m"}, 0, call=ForcedCall())
    choice = answer._whole(events)["choices"][0]
    return {**choice["message"], "reason": choice["finish_reason"]}


def test_a_whole_answer_is_a_call() -> None:
    message = message_of([CALL[:9], CALL[9:]], "stop")
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert (message["content"], message["reason"]) == (None, "tool_calls")


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_cut_answer_keeps_its_text(reason: str) -> None:
    message = message_of([CALL[:9], CALL[9:20]], reason)
    assert message["content"] == CALL[:20]
    assert message["reason"] == reason
    assert "tool_calls" not in message
