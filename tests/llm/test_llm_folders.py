"""Hugging Face folders: the same answers and limits as GGUF files."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confinement import check_confined, check_no_internet_socket
from conftest import Server, start_server
from folder_files import CHAT_FILE, CONTEXT, write_folder
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.hugging_face.session import RUNTIME
from pocketserve.runtimes.llm.client import EngineError, EngineInterruptedError
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve.runtimes.llm.session import LlmSession
from pocketserve.runtimes.llm.settings import CHAT, COMPLETIONS
from pocketserve_client import Client

pytestmark = pytest.mark.llm
WAIT_S = 120.0
QUESTIONS = ("What is 3 plus 4?", "What colour is the sky?", "Spell moon.", "Hello!")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmSession]:
    folder = tmp_path_factory.mktemp("folder")
    session = RUNTIME.open(ModelSource(write_folder(folder / "toy", shards=2)))
    yield session
    session.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on one model in both forms."""
    models = tmp_path_factory.mktemp("models")
    write_folder(models / "folder")
    (models / "file").mkdir()
    shutil.copy(CHAT_FILE, models / "file" / "chat.gguf")
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def chat(question: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {
        "messages": messages,
        "temperature": 0,
        **options,
    }


def events(
    session: LlmSession, path: str, body: Any, owner: str | None = None
) -> list[Any]:
    deadline = time.monotonic() + WAIT_S
    with session.stream(path, body, deadline, owner=owner) as parts:
        return list(parts)


def text_of(listed: list[Any]) -> str:
    pieces = []
    for event in listed:
        for choice in event["choices"]:
            piece = choice.get("text") or choice.get("delta", {}).get("content")
            pieces.append(piece or "")
    return "".join(pieces)


def reason_of(listed: list[Any]) -> str:
    reasons = []
    for event in listed:
        for choice in event["choices"]:
            reasons.append(choice["finish_reason"])
    return str(reasons[-1])


def usage_of(listed: list[Any]) -> Any:
    return next(event["usage"] for event in listed if event.get("usage"))


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_folder_and_file_answer_the_same(server: Server, transport: str) -> None:
    port = server.port if transport == "http" else server.socket_port
    with Client(f"{transport}://127.0.0.1:{port}", server.token) as client:
        for question in QUESTIONS:
            answers = []
            for model in ("folder", "file"):
                stream = client.chat(model, question, temperature=0)
                answers.append((stream.text(), stream.finish_reason))
            assert answers[0] == answers[1]


def test_a_chat_streams_progress_text_and_usage(session: LlmSession) -> None:
    listed = events(session, CHAT, chat("What is 3 plus 4?"))
    assert text_of(listed) == "3 plus 4 is 7."
    assert reason_of(listed) == "stop"
    progress = [
        event["prompt_progress"] for event in listed if "prompt_progress" in event
    ]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert usage_of(listed)["prompt_tokens"] == progress[-1]["total"]


def test_long_prompts_are_read_in_pieces(session: LlmSession) -> None:
    listed = events(session, COMPLETIONS, {"prompt": "7 " * 100, "max_tokens": 1})
    processed = []
    for event in listed:
        if "prompt_progress" in event:
            processed.append(event["prompt_progress"]["processed"])
    assert processed == [0, 64, 128, 192, 200]


def test_a_stop_text_is_left_out(session: LlmSession) -> None:
    listed = events(session, CHAT, chat("Spell moon.", stop=[", n"]))
    assert text_of(listed) == "m, o, o"
    assert reason_of(listed) == "stop"


def test_the_limit_of_tokens_ends_an_answer(session: LlmSession) -> None:
    listed = events(session, CHAT, chat("Spell moon.", max_tokens=3))
    assert reason_of(listed) == "length"
    assert usage_of(listed)["completion_tokens"] == 3


def test_a_seed_repeats_an_answer(session: LlmSession) -> None:
    story = chat(
        "Tell me a story about a fox.", temperature=1.5, top_k=0, max_tokens=40
    )
    texts = [
        text_of(events(session, CHAT, story | {"seed": seed})) for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_p": 0},
        {"min_p": 1},
    ],
)
def test_narrow_sampling_is_greedy(session: LlmSession, options: Any) -> None:
    body = chat("What is 3 plus 4?") | {"temperature": 2} | options
    assert text_of(events(session, CHAT, body)) == "3 plus 4 is 7."


def test_a_bias_bars_a_token(session: LlmSession) -> None:
    body = chat("What is 3 plus 4?", logprobs=True, top_logprobs=0)
    entries = []
    for event in events(session, CHAT, body):
        for choice in event["choices"]:
            entries += (choice.get("logprobs") or {}).get("content", [])
    seven = next(entry["id"] for entry in entries if entry["token"] == "7")
    biased = chat("What is 3 plus 4?", logit_bias={str(seven): -100})
    assert "7" not in text_of(events(session, CHAT, biased))


def test_a_repeated_token_is_penalised(session: LlmSession) -> None:
    plain = text_of(events(session, CHAT, chat("Spell moon.")))
    body = chat("Spell moon.", presence_penalty=2, frequency_penalty=2, max_tokens=20)
    assert text_of(events(session, CHAT, body | {"repeat_penalty": 2})) != plain


def test_logprobs_name_the_likely_tokens(session: LlmSession) -> None:
    body = chat("What is 3 plus 4?", logprobs=True, top_logprobs=3, max_tokens=1)
    entries = []
    for event in events(session, CHAT, body):
        for choice in event["choices"]:
            entries += (choice.get("logprobs") or {}).get("content", [])
    (entry,) = entries
    assert bytes(entry["bytes"]).decode() == entry["token"] == "3"
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
    assert len(entry["top_logprobs"]) == 3


def test_only_the_same_client_reuses_a_prompt(session: LlmSession) -> None:
    counts = []
    for owner in ("one", "one", "two", None, None):
        listed = events(session, CHAT, chat("Hello!", max_tokens=2), owner)
        counts.append(usage_of(listed)["prompt_tokens_details"]["cached_tokens"] > 0)
    assert counts == [False, True, False, False, False]


def test_a_reused_prompt_gives_the_same_answer(session: LlmSession) -> None:
    texts = []
    for question in ("Spell moon.", "Spell star.", "Spell moon."):
        texts.append(text_of(events(session, CHAT, chat(question), "one")))
    assert texts[0] == texts[2] == "m, o, o, n."


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    session: LlmSession,
) -> None:
    with pytest.raises(EngineError) as caught:
        events(session, COMPLETIONS, {"prompt": "7 " * 600})
    assert caught.value.kind == "exceed_context_size_error"
    assert caught.value.details["n_ctx"] == CONTEXT
    assert caught.value.details["n_prompt_tokens"] == 1200


def test_a_prompt_that_the_tokenizer_rejects_leaves_the_engine_running(
    session: LlmSession,
) -> None:
    """Half of a surrogate pair is valid in JSON, and no text."""
    pid = session.pid
    with pytest.raises(EngineError, match="the prompt cannot be read"):
        events(session, COMPLETIONS, {"prompt": "\ud800"})
    assert text_of(events(session, CHAT, chat("Hello!"))) == "Hello! How can I help?"
    assert session.pid == pid


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tools": [{"type": "function"}]}, "'tools' needs the model's GGUF file"),
        ({"response_format": {"type": "json_object"}}, "'response_format' needs"),
        ({"grammar": "root ::= x"}, "'grammar' is not supported"),
        ({"tool_choice": "required"}, "'tool_choice' needs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize' can't be set"),
    ],
)
def test_unsupported_fields_are_refused_by_name(
    session: LlmSession, options: Any, text: str
) -> None:
    with pytest.raises(EngineError, match=text) as caught:
        events(session, CHAT, chat("Hello!", **options))
    assert caught.value.status == 400


def test_an_interrupted_answer_leaves_the_engine_free(session: LlmSession) -> None:
    engine = session.pid
    with pytest.raises(EngineInterruptedError):
        answer_and_interrupt(session)
    assert session.pid == engine
    assert text_of(events(session, CHAT, chat("Hello!"))) == "Hello! How can I help?"


def test_the_engine_is_confined_and_has_no_tcp_socket(session: LlmSession) -> None:
    check_confined(session.pid)
    check_no_internet_socket(session.pid)


def test_code_of_the_folder_does_not_run(tmp_path: Path) -> None:
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config = write_folder(tmp_path / "m", model_type="own", auto_map=code)
    mark = tmp_path / "ran"
    (tmp_path / "m" / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    with pytest.raises(ModelLoadError, match="code of its own"):
        RUNTIME.open(ModelSource(config))
    assert not mark.exists()


def test_a_cache_of_another_type_is_refused(tmp_path: Path) -> None:
    config = write_folder(tmp_path / "m")
    sections = {GenerationOptions: GenerationOptions(cache="q8_0")}
    with pytest.raises(ModelLoadError, match=r"generation\.cache can't be q8_0"):
        RUNTIME.open(ModelSource(config, sections=sections))


def answer_and_interrupt(session: LlmSession) -> None:
    """Abandon an answer after its first event, on another thread."""
    body = {
        "prompt": "Hello",
        "max_tokens": 400,
        "ignore_eos": True,
    }
    stream = session.stream(COMPLETIONS, body, time.monotonic() + WAIT_S)
    thread = threading.Thread(target=stream.interrupt)
    with stream as parts:
        next(parts)
        thread.start()
        thread.join()
        list(parts)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "toy", num_hidden_layers=5)
    with pytest.raises(ModelLoadError, match=r"model\.layers\.4\..* and \d+ more"):
        RUNTIME.open(ModelSource(path))
