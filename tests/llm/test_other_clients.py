"""Use other people's clients, with the token as API key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Server

pytestmark = [
    pytest.mark.llm,
    # Libraries warn of their own deprecations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TIMEOUT_S = 300.0


@pytest.fixture
def openai_client(llm_server: Server) -> Any:
    import openai

    client = openai.OpenAI(
        base_url=f"{llm_server.url}/v1",
        api_key=llm_server.token,
        timeout=TIMEOUT_S,
        max_retries=0,
    )
    yield client
    client.close()


def test_openai_chats(openai_client: Any) -> None:
    chat = openai_client.chat.completions
    answer = chat.create(model="tiny", messages=HELLO, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_openai_streams(openai_client: Any) -> None:
    options = {"include_usage": True}
    stream = openai_client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options=options,
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 0
    assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)


def test_openais_stream_helper_gets_one_role(openai_client: Any) -> None:
    with openai_client.chat.completions.stream(
        model="tiny", messages=HELLO, max_completion_tokens=8, temperature=0
    ) as stream:
        for _ in stream:
            pass
        answer = stream.current_completion_snapshot
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content


def test_openai_stops_a_stream(openai_client: Any) -> None:
    for _ in range(3):
        with openai_client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=400, stream=True
        ) as stream:
            next(iter(stream))


def test_openai_completes(openai_client: Any) -> None:
    fields = {"model": "plain", "prompt": "Hello", "max_tokens": 4}
    assert openai_client.completions.create(**fields).choices[0].text
    assert list(openai_client.completions.create(stream=True, **fields))


def test_openai_parses_a_class(openai_client: Any) -> None:
    from typing import Literal

    import pydantic

    class Pick(pydantic.BaseModel):
        number: Literal[1, 2]

    answer = openai_client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Pick, max_tokens=250
    )
    assert answer.choices[0].message.parsed.number in (1, 2)


def test_openai_embeds(openai_client: Any) -> None:
    answer = openai_client.embeddings.create(model="embedder", input=["a", "b"])
    assert [len(entry.embedding) for entry in answer.data] == [64, 64]


def test_openai_lists_and_retrieves_models(openai_client: Any) -> None:
    names = [model.id for model in openai_client.models.list()]
    assert "tiny" in names
    assert openai_client.models.retrieve("tiny").id == "tiny"


def test_openai_raises_its_own_errors(openai_client: Any, llm_server: Server) -> None:
    import openai

    create = openai_client.chat.completions.create
    with pytest.raises(openai.NotFoundError):
        create(model="nothing", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="tiny", messages=[{"role": "user", "content": "x" * 3000}])
    assert caught.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(
            base_url=f"{llm_server.url}/v1", api_key="wrong", max_retries=0
        ) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_langchain_chats_and_streams(llm_server: Server) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        model="tiny",
        base_url=f"{llm_server.url}/v1",
        api_key=llm_server.token,
        max_tokens=4,
        timeout=TIMEOUT_S,
    )
    assert chat.invoke("Hello").content
    assert list(chat.stream("Hello"))


def test_litellm_chats_and_streams(llm_server: Server) -> None:
    program = (
        "import litellm\n"
        "fields = dict(model='openai/tiny', max_tokens=4, timeout=300,\n"
        f"    api_base={llm_server.url + '/v1'!r}, api_key={llm_server.token!r},\n"
        "    messages=[{'role': 'user', 'content': 'Hello'}])\n"
        "assert litellm.completion(**fields).choices[0].message.content\n"
        "assert list(litellm.completion(stream=True, **fields))\n"
    )
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run(["-c", program], environment)


def test_llm_prompts_with_and_without_stream(
    llm_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: pocket\n  model_name: tiny\n  api_base: {llm_server.url}/v1\n"
        "  api_key_name: pocket\n"
    )
    environment = {"LLM_USER_PATH": str(tmp_path)}
    key = str(llm_server.token)
    prompt = ["-m", "llm", "-m", "pocket", "--key", key, "-o", "max_tokens", "4"]
    assert run([*prompt, "Hello"], environment)
    assert run([*prompt, "--no-stream", "Hello"], environment)


def run(arguments: list[str], environment: dict[str, str]) -> bytes:
    import os

    return subprocess.check_output(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )
