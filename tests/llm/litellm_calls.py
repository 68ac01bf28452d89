"""Make each call of litellm; print the names of those that got the expected answer.

Usage: python litellm_calls.py URL TOKEN
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import litellm

URL, TOKEN = sys.argv[1:]
PLACE = {
    "api_base": f"{URL}/v1",
    "api_key": TOKEN,
    "timeout": 300,
}
CHAT: dict[str, Any] = {
    "model": "openai/tiny",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "Hello"}],
    **PLACE,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def completion() -> None:
    assert litellm.completion(**CHAT).choices[0].message.content


def stream() -> None:
    chunks = list(litellm.completion(stream=True, **CHAT))
    assert any(chunk.choices[0].delta.content for chunk in chunks)


def tools() -> None:
    fields = CHAT | {"model": "openai/caller", "max_tokens": 200}
    answer = litellm.completion(tools=[TOOL], tool_choice="required", **fields)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def embedding() -> None:
    answer = litellm.embedding(
        model="openai/embedder", input=["a"], encoding_format="float", **PLACE
    )
    assert len(answer.data[0]["embedding"]) == 64


def error() -> None:
    try:
        litellm.completion(
            **CHAT | {"messages": [{"role": "user", "content": "x" * 3000}]}
        )
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("the prompt was taken")


results = {}
for call in (completion, stream, tools, embedding, error):
    try:
        call()
        results[call.__name__] = ""
    except Exception:
        results[call.__name__] = traceback.format_exc()
print(json.dumps(results))
