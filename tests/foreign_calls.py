"""Calls of other people's clients, each with the answer that it must get.

``python tests/foreign_calls.py`` writes the table of docs/generated/language-clients.md.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from conftest import ROOT, Server

PAGE = ROOT / "docs" / "generated" / "language-clients.md"
FOLDER = ROOT / "tests" / "llm"
TIMEOUT_S = 300.0
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
REQUEST: dict[str, Any] = {
    "model": "tiny",
    "messages": HELLO,
    "max_tokens": 8,
    "temperature": 0,
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather", "parameters": CITY},
}
PYTHON = "openai (Python)"
NODE = "openai (npm)"
LANGCHAIN = "langchain-openai"
LITELLM = "litellm"
LLM = "llm"
TRITON = "tritonclient"


@dataclass(frozen=True)
class ForeignCall:
    """A call of a client and its answer, as the table says them."""

    client: str
    call: str
    answer: str
    run: Callable[[Server], None]


CALLS: list[ForeignCall] = []


def foreign(
    client: str, call: str, answer: str
) -> Callable[[Callable[[Server], None]], Callable[[Server], None]]:
    """Add a function, which makes a call and checks its answer, to the table."""

    def add(function: Callable[[Server], None]) -> Callable[[Server], None]:
        CALLS.append(ForeignCall(client, call, answer, function))
        return function

    return add


@functools.cache
def openai_at(url: str, token: str) -> Any:
    import openai

    return openai.OpenAI(
        base_url=f"{url}/v1", api_key=token, timeout=TIMEOUT_S, max_retries=0
    )


def openai_of(server: Server) -> Any:
    return openai_at(server.url, str(server.token))


def chat(server: Server, **fields: Any) -> Any:
    return openai_of(server).chat.completions.create(**REQUEST | fields)


@foreign(PYTHON, "`models.list()`", "all models")
def list_models(server: Server) -> None:
    assert "tiny" in [model.id for model in openai_of(server).models.list()]


@foreign(PYTHON, '`models.retrieve("tiny")`', "the model")
def retrieve_model(server: Server) -> None:
    assert openai_of(server).models.retrieve("tiny").id == "tiny"


@foreign(PYTHON, "`chat.completions.create(…)`", "text and usage")
def create_chat(server: Server) -> None:
    answer = chat(server)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


@foreign(
    PYTHON, "with `stream=True, stream_options=…`", "chunks, the last has the usage"
)
def stream_chat(server: Server) -> None:
    chunks = list(chat(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == 8
    assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)


@foreign(PYTHON, "closing a stream early", "the model is free for the next request")
def close_stream(server: Server) -> None:
    for _ in range(3):
        with chat(server, max_tokens=400, stream=True) as stream:
            next(iter(stream))
    assert chat(server).choices[0].message.content


@foreign(PYTHON, "`chat.completions.stream(…)`", "events and a snapshot with one role")
def stream_helper(server: Server) -> None:
    with openai_of(server).chat.completions.stream(**REQUEST) as stream:
        for _ in stream:
            pass
        message = stream.current_completion_snapshot.choices[0].message
    assert message.role == "assistant"
    assert message.content


@foreign(PYTHON, "`AsyncOpenAI`, streamed", "chunks")
def stream_async(server: Server) -> None:
    import openai

    async def collect() -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=str(server.token), max_retries=0
        ) as client:
            stream = await client.chat.completions.create(**REQUEST, stream=True)
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return "".join(texts)

    assert asyncio.run(collect()) == chat(server).choices[0].message.content


@foreign(PYTHON, "with `max_completion_tokens=3`", "3 tokens")
def limit_tokens(server: Server) -> None:
    assert chat(server, max_completion_tokens=3).usage.completion_tokens == 3


@foreign(PYTHON, "with `seed=7`, twice", "the same text")
def seed_chat(server: Server) -> None:
    fields = {"seed": 7, "temperature": 1}
    texts = set()
    for _ in range(2):
        texts.add(chat(server, **fields).choices[0].message.content)
    assert len(texts) == 1


@foreign(PYTHON, 'with `stop="noir"`', "the text before it")
def stop_chat(server: Server) -> None:
    choice = chat(server, model="speller", stop="noir").choices[0]
    assert (choice.message.content, choice.finish_reason) == ("café ", "stop")


@foreign(
    PYTHON, "with `logprobs=True, top_logprobs=2`", "2 alternatives for each token"
)
def chat_logprobs(server: Server) -> None:
    tokens = chat(server, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [len(token.top_logprobs) for token in tokens] == [2] * 8


@foreign(PYTHON, "`chat.completions.parse(…)` with a pydantic class", "an object of it")
def parse_chat(server: Server) -> None:
    import pydantic

    class Pick(pydantic.BaseModel):
        number: Literal[1, 2]

    parse = openai_of(server).chat.completions.parse
    answer = parse(**REQUEST | {"max_tokens": 250}, response_format=Pick)
    assert answer.choices[0].message.parsed.number in (1, 2)


@foreign(PYTHON, "with `tools`", "the call that the model made")
def call_tool(server: Server) -> None:
    choice = chat(server, model="caller", tools=[WEATHER], max_tokens=60).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "get_weather"


@foreign(PYTHON, 'with `tools, tool_choice="required"`', "a call that fits the schema")
def require_tool(server: Server) -> None:
    fields = {"model": "caller", "tools": [WEATHER], "max_tokens": 200}
    choice = chat(server, tool_choice="required", **fields).choices[0]
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


@foreign(PYTHON, "`completions.create(…)`", "text")
def complete(server: Server) -> None:
    create = openai_of(server).completions.create
    assert create(model="plain", prompt="Hello", max_tokens=4).choices[0].text


@foreign(PYTHON, "`completions.create(…, stream=True)`", "chunks")
def stream_completion(server: Server) -> None:
    create = openai_of(server).completions.create
    stream = create(model="plain", prompt="Hello", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream)


@foreign(PYTHON, "`completions.create(…, logprobs=2)`", "lists of 4 tokens")
def completion_logprobs(server: Server) -> None:
    create = openai_of(server).completions.create
    fields = {"model": "plain", "prompt": "Hello", "max_tokens": 4}
    lists = create(logprobs=2, **fields).choices[0].logprobs
    assert len(lists.tokens) == len(lists.text_offset) == 4


def respond(server: Server, **fields: Any) -> Any:
    create = openai_of(server).responses.create
    return create(model="speller", input="Hello", instructions="Spell.", **fields)


@foreign(PYTHON, "`responses.create(…)`", "text and usage")
def create_response(server: Server) -> None:
    answer = respond(server)
    assert (answer.output_text, answer.status) == ("café noir!", "completed")
    assert answer.usage.total_tokens > answer.usage.output_tokens > 0


@foreign(PYTHON, "`responses.create(…, stream=True)`", "events")
def stream_response(server: Server) -> None:
    events = list(respond(server, stream=True))
    texts = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(texts) == events[-1].response.output_text == "café noir!"


@foreign(PYTHON, "`responses.stream(…)`", "events and the whole response")
def response_helper(server: Server) -> None:
    helper = openai_of(server).responses.stream
    with helper(model="speller", input="Hello") as stream:
        response = stream.get_final_response()
    assert response.output_text == "café noir!"


@foreign(PYTHON, "`embeddings.create(…)`", "vectors (sent in base64)")
def embed(server: Server) -> None:
    answer = openai_of(server).embeddings.create(model="embedder", input=["a", "b"])
    assert [len(entry.embedding) for entry in answer.data] == [64, 64]


def bad_request(server: Server, param: str, **fields: Any) -> Any:
    """Return the error of a refused request; check its field."""
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, **fields)
    assert caught.value.param == param
    return caught.value


@foreign(PYTHON, "with `n=2`", "`BadRequestError`, param `n`")
def two_answers(server: Server) -> None:
    bad_request(server, "n", n=2)


@foreign(PYTHON, "a picture", "`BadRequestError`, param `messages[0].content[0]`")
def send_picture(server: Server) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}
    messages = [{"role": "user", "content": [part]}]
    bad_request(server, "messages[0].content[0]", messages=messages)


@foreign(
    PYTHON,
    "a prompt over the context",
    "`BadRequestError`, code `context_length_exceeded`",
)
def long_prompt(server: Server) -> None:
    messages = [{"role": "user", "content": "x" * 3000}]
    error = bad_request(server, "messages", messages=messages)
    assert error.code == "context_length_exceeded"


@foreign(PYTHON, "an unknown model", "`NotFoundError`, code `model_not_found`")
def unknown_model(server: Server) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as caught:
        chat(server, model="nothing")
    assert caught.value.code == "model_not_found"


@foreign(PYTHON, "a wrong API key", "`AuthenticationError`")
def wrong_key(server: Server) -> None:
    import openai

    with pytest.raises(openai.AuthenticationError):
        openai_at(server.url, "wrong").models.list()


@functools.cache
def results_of(command: tuple[str, ...]) -> dict[str, str]:
    """Return the error of each call that a program makes; empty if it is right."""
    output = run(list(command), {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    results: dict[str, str] = json.loads(output.splitlines()[-1])
    return results


def run(command: list[str], environment: dict[str, str]) -> bytes:
    return subprocess.check_output(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )


def check_node(name: str, server: Server) -> None:
    folder = Path(sys.prefix) / "tfjs"
    program = str(FOLDER / "openai_calls.mjs")
    command = ("node", program, str(folder), server.url, str(server.token))
    fault = results_of(command)[name]
    assert not fault, fault


def check_litellm(name: str, server: Server) -> None:
    program = str(FOLDER / "litellm_calls.py")
    command = (sys.executable, program, server.url, str(server.token))
    fault = results_of(command)[name]
    assert not fault, fault


for foreign_client, check, rows in (
    (
        NODE,
        check_node,
        (
            ("list", "`models.list()`", "all models"),
            ("retrieve", '`models.retrieve("tiny")`', "the model"),
            ("chat", "`chat.completions.create(…)`", "text and usage"),
            ("stream", "with `stream: true`", "chunks"),
            ("abort", "breaking off a stream", "the stream is aborted"),
            ("helper", "`chat.completions.stream(…).finalChatCompletion()`", "text"),
            ("tools", 'with `tool_choice: "required"`', "a call that fits the schema"),
            ("response", "`responses.create(…)`, whole and streamed", "text"),
            ("embeddings", "`embeddings.create(…)`", "vectors (sent in base64)"),
            (
                "error",
                "with `temperature: 3`",
                "`BadRequestError`, param `temperature`",
            ),
        ),
    ),
    (
        LITELLM,
        check_litellm,
        (
            ("completion", "`completion(…)`", "text"),
            ("stream", "`completion(…, stream=True)`", "chunks"),
            ("tools", 'with `tools, tool_choice="required"`', "a call"),
            ("embedding", "`embedding(…)`", "vectors"),
            ("error", "a prompt over the context", "`ContextWindowExceededError`"),
        ),
    ),
):
    for name, call, answer in rows:
        CALLS.append(
            ForeignCall(foreign_client, call, answer, functools.partial(check, name))
        )


def langchain(server: Server, **fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    place = {"base_url": f"{server.url}/v1", "api_key": server.token}
    return ChatOpenAI(**{"model": "tiny", "max_tokens": 200} | place | fields)


@foreign(LANGCHAIN, "`ChatOpenAI.invoke(…)`", "text")
def langchain_invoke(server: Server) -> None:
    assert langchain(server, max_tokens=4).invoke("Hello").content


@foreign(LANGCHAIN, "`ChatOpenAI.stream(…)`", "chunks")
def langchain_stream(server: Server) -> None:
    assert list(langchain(server, max_tokens=4).stream("Hello"))


@foreign(LANGCHAIN, "`with_structured_output(…)`", "an object of the class")
def langchain_structure(server: Server) -> None:
    import pydantic

    class Pick(pydantic.BaseModel):
        number: Literal[1, 2]

    chain = langchain(server).with_structured_output(Pick, method="json_schema")
    assert chain.invoke("Hello").number in (1, 2)


@foreign(LANGCHAIN, '`bind_tools(…, tool_choice="get_weather")`', "a call")
def langchain_tools(server: Server) -> None:
    chain = langchain(server, model="caller").bind_tools(
        [WEATHER], tool_choice="get_weather"
    )
    (call,) = chain.invoke("Hello").tool_calls
    assert call["name"] == "get_weather"
    assert call["args"]["city"] in ("Oslo", "Rome")


@foreign(
    LANGCHAIN,
    "`OpenAIEmbeddings(…, check_embedding_ctx_length=False)`",
    "vectors",
)
def langchain_embeddings(server: Server) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model="embedder",
        base_url=f"{server.url}/v1",
        api_key=server.token,
        check_embedding_ctx_length=False,
    )
    assert len(embeddings.embed_query("Hello")) == 64


def prompt(server: Server, *options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "extra-openai-models.yaml").write_text(
            f"- model_id: pocket\n  model_name: tiny\n  api_base: {server.url}/v1\n"
            "  api_key_name: pocket\n"
        )
        command = [sys.executable, "-m", "llm", "-m", "pocket", "--key"]
        command += [str(server.token), "-o", "max_tokens", "4", *options, "Hello"]
        assert run(command, {"LLM_USER_PATH": folder}).strip()


@foreign(LLM, "`llm -m pocket Hello`", "text, piece by piece")
def llm_stream(server: Server) -> None:
    prompt(server)


@foreign(LLM, "with `--no-stream`", "text")
def llm_whole(server: Server) -> None:
    prompt(server, "--no-stream")


def triton_post(server: Server, path: str) -> Any:
    """Send a body of Triton's generate extension through tritonclient's connection."""
    import tritonclient.http

    body = {"text_input": "Hi", "parameters": {"max_tokens": 8, "temperature": 0}}
    address = server.url.removeprefix("http://")
    client = tritonclient.http.InferenceServerClient(address, network_timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {server.token}"}
    try:
        answer = client._post(path, json.dumps(body), headers, None)
        assert answer.status_code == 200
        return answer.read()
    finally:
        client.close()


@foreign(TRITON, "`POST v2/models/plain/generate`", "`text_output`")
def triton_generate(server: Server) -> None:
    answer = json.loads(triton_post(server, "v2/models/plain/generate"))
    assert answer["text_output"]
    assert answer["model_name"] == "plain"


@foreign(TRITON, "`POST v2/models/plain/generate_stream`", "events with `text_output`")
def triton_stream(server: Server) -> None:
    lines = triton_post(server, "v2/models/plain/generate_stream").split(b"\n\n")
    texts = []
    for line in filter(None, lines):
        texts.append(json.loads(line.removeprefix(b"data: "))["text_output"])
    whole = json.loads(triton_post(server, "v2/models/plain/generate"))
    assert len(texts) > 1
    assert "".join(texts) == whole["text_output"]


@foreign(TRITON, "`infer` with the tensor `text_input`", "the tensor `text_output`")
def triton_infer(server: Server) -> None:
    import tritonclient.http

    address = server.url.removeprefix("http://")
    client = tritonclient.http.InferenceServerClient(address, network_timeout=TIMEOUT_S)
    tensor = tritonclient.http.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"Hi"], dtype=object))
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = client.infer("plain", [tensor], headers=headers)
    assert answer.as_numpy("text_output")[0]
    client.close()


def page() -> str:
    """Return the page with the table."""
    lines = [
        "# Calls of other clients to language models",
        "",
        "`make test-llm` makes each call with the token as API key and checks the"
        " answer. `python",
        "tests/foreign_calls.py` writes this table.",
        "",
        "| client | call | answer |",
        "|---|---|---|",
    ]
    for entry in CALLS:
        lines.append(f"| {entry.client} | {entry.call} | {entry.answer} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
