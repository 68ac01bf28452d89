"""Test sessions of language models: their process, its limits, end and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_files
from confinement import check_confined, check_no_internet_socket
from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.llm import process
from pocketserve.runtimes.llm.client import (
    EngineError,
    EngineInterruptedError,
    EngineTimeoutError,
)
from pocketserve.runtimes.llm.memory import ENGINE_BYTES
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve.runtimes.llm.process import EngineEndedError, EngineStaysAwayError
from pocketserve.runtimes.llm.session import MAX_DEATHS, RUNTIME, LlmSession
from pocketserve.runtimes.llm.settings import CHAT, COMPLETIONS
from pocketserve_wire import ApiError, ErrorCode

pytestmark = pytest.mark.llm
WAIT_S = 120.0
HELLO = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 4,
    "ignore_eos": True,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write_tiny(tmp_path / "m.gguf")


@pytest.fixture
def session(file: Path) -> Iterator[LlmSession]:
    session = RUNTIME.open(ModelSource(file))
    yield session
    session.close()


def events(session: LlmSession, path: str, body: Any) -> list[Any]:
    with session.stream(path, body, time.monotonic() + WAIT_S) as parts:
        return list(parts)


def usage(listed: list[Any]) -> Any:
    return next(event["usage"] for event in listed if event.get("usage"))


def test_a_chat_streams_progress_text_and_usage(session: LlmSession) -> None:
    listed = events(session, CHAT, HELLO)
    assert any("prompt_progress" in event for event in listed)
    reasons = [
        choice.get("finish_reason")
        for event in listed
        for choice in event.get("choices", ())
    ]
    assert reasons[-1] == "length"
    assert usage(listed)["completion_tokens"] == 4


def test_tensors_in_and_out_complete_a_prompt(session: LlmSession) -> None:
    (output,) = session.run({"text_input": np.array([b"Hello"], object)}).values()
    assert output.shape == (1,)
    assert output[0]


def test_the_engine_is_confined(session: LlmSession) -> None:
    check_confined(session.pid)


def test_the_engine_has_one_unix_socket_and_no_other(session: LlmSession) -> None:
    check_no_internet_socket(session.pid)


def test_no_client_reuses_the_prompt_of_another(session: LlmSession) -> None:
    assert cached_tokens(session, "one") == 0
    assert cached_tokens(session, "one") > 0
    assert cached_tokens(session, "") == 0
    assert cached_tokens(session, "") > 0
    assert cached_tokens(session, None) == 0
    assert cached_tokens(session, None) == 0
    assert cached_tokens(session, "one") == 0


def test_a_killed_engine_is_started_again(session: LlmSession) -> None:
    first = session.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: session.pid is None)
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4
    assert session.pid != first


def test_an_engine_killed_in_the_middle_is_reported(session: LlmSession) -> None:
    with pytest.raises(EngineEndedError, match="SIGKILL"):
        answer_and_kill(session)
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4


def test_an_engine_that_keeps_dying_is_not_restarted(session: LlmSession) -> None:
    for _ in range(MAX_DEATHS):
        with pytest.raises(EngineEndedError):
            answer_and_kill(session, signal.SIGSEGV)
    with pytest.raises(EngineStaysAwayError, match="in a row; load the model again"):
        events(session, CHAT, HELLO)


def test_kills_by_the_system_are_not_counted(session: LlmSession) -> None:
    for _ in range(MAX_DEATHS):
        with pytest.raises(EngineEndedError) as caught:
            answer_and_kill(session)
        assert caught.value.by_system
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    session: LlmSession,
) -> None:
    body = {"prompt": "x" * 2000, "max_tokens": 4}
    with pytest.raises(EngineError) as caught:
        events(session, COMPLETIONS, body)
    assert caught.value.status == 400
    assert caught.value.kind == "exceed_context_size_error"
    assert caught.value.details["n_ctx"] == session.context
    assert caught.value.details["n_prompt_tokens"] > session.context


def test_an_interrupted_answer_ends_and_leaves_the_engine_free(
    session: LlmSession,
) -> None:
    engine = session.pid
    with pytest.raises(EngineInterruptedError):
        answer_and_interrupt(session)
    assert session.pid == engine
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4


def test_an_engine_that_ignores_its_deadline_is_killed(
    session: LlmSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STUCK_TIMEOUT_S", 0.5)
    engine = session.pid
    pattern = "^((((a{0,50}){0,50}){0,50}){0,50})$"
    schema = {"schema": {"type": "string", "pattern": pattern}}
    format_ = {"type": "json_schema", "json_schema": schema}
    body = {**HELLO, "response_format": format_}
    with pytest.raises(EngineTimeoutError):
        answer_in_time(session, body, 3.0)
    assert session.pid is None
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4
    assert session.pid != engine


def test_a_silent_request_can_be_abandoned(session: LlmSession) -> None:
    engine = session.pid
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    waits: list[int] = []

    def give_up() -> None:
        waits.append(1)
        if len(waits) == 2:
            os.kill(engine, signal.SIGCONT)
            raise cancelled()

    deadline = time.monotonic() + WAIT_S
    stream = session.stream(CHAT, HELLO, deadline, give_up)
    with pytest.raises(ApiError, match="cancelled"), stream as parts:
        list(parts)
    assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4


def test_an_engine_that_stops_at_its_deadline_is_kept(session: LlmSession) -> None:
    engine = session.pid
    with session.stream(COMPLETIONS, long(), time.monotonic() + WAIT_S) as parts:
        next(parts)
    assert session.pid == engine


def test_closing_ends_the_process_and_removes_its_folder(file: Path) -> None:
    session = RUNTIME.open(ModelSource(file))
    pid = session.pid
    folder = Path(os.readlink(f"/proc/{pid}/cwd"))
    assert folder.stat().st_mode & 0o777 == 0o700
    session.close()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_the_engine_ends_with_its_parent(file: Path) -> None:
    program = (
        "import pathlib, os\n"
        "from pocketserve.runtimes.base import ModelSource\n"
        "from pocketserve.runtimes.llm.session import RUNTIME\n"
        f"print(RUNTIME.open(ModelSource(pathlib.Path({str(file)!r}))).pid, flush=True)\n"
        "os._exit(0)\n"
    )
    output = subprocess.check_output([sys.executable, "-c", program], timeout=WAIT_S)
    status = Path(f"/proc/{int(output)}/stat")
    wait_until(lambda: not status.exists() or " Z " in status.read_text())


def test_a_damaged_file_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    file = gguf_files.write_tiny(tmp_path / "m.gguf", llama__context_length=0)
    with pytest.raises(ModelLoadError, match="context_length must be from 1"):
        RUNTIME.open(ModelSource(file))


def test_an_unknown_architecture_is_the_engines_refusal(tmp_path: Path) -> None:
    changes = {
        key.replace("llama.", "strange."): value
        for key, value in gguf_files.metadata().items()
    }
    changes["general.architecture"] = "strange"
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_files.encode(changes, gguf_files.tensors()))
    with pytest.raises(ModelLoadError, match=r"m\.gguf can't be loaded"):
        RUNTIME.open(ModelSource(file))


def test_the_trial_answers_a_chat(session: LlmSession) -> None:
    session.try_out()


def test_the_context_follows_the_manifest(file: Path) -> None:
    sections = {GenerationOptions: GenerationOptions(context=256)}
    session = RUNTIME.open(ModelSource(file, sections=sections))
    try:
        with pytest.raises(EngineError) as caught:
            events(session, COMPLETIONS, {"prompt": "x" * 400})
        assert caught.value.details["n_ctx"] == session.context == 256
    finally:
        session.close()


def test_a_cache_type_that_does_not_fit_the_heads_is_refused(file: Path) -> None:
    sections = {GenerationOptions: GenerationOptions(cache="q8_0")}
    with pytest.raises(ModelLoadError, match=r"generation\.cache"):
        RUNTIME.open(ModelSource(file, sections=sections))


def test_a_smaller_cache_serves(tmp_path: Path) -> None:
    changes = {"llama__attention__head_count": 2, "llama__rope__dimension_count": 32}
    changes["llama__attention__head_count_kv"] = 1
    file = gguf_files.write_tiny(tmp_path / "m.gguf", **changes)
    sections = {GenerationOptions: GenerationOptions(cache="q8_0")}
    session = RUNTIME.open(ModelSource(file, sections=sections))
    try:
        assert usage(events(session, CHAT, HELLO))["completion_tokens"] == 4
    finally:
        session.close()


def test_too_little_memory_is_refused_with_the_sum(file: Path) -> None:
    with pytest.raises(ApiError) as caught:
        RUNTIME.open(ModelSource(file, memory_budget=ENGINE_BYTES))
    assert caught.value.code is ErrorCode.MEMORY_BUDGET
    assert "engine 49" in caught.value.message


def cached_tokens(session: LlmSession, owner: str | None) -> int:
    """Return the number of a prompt's tokens that the engine reused."""
    deadline = time.monotonic() + WAIT_S
    with session.stream(CHAT, HELLO, deadline, owner=owner) as parts:
        details = usage(list(parts))["prompt_tokens_details"]
    return int(details["cached_tokens"])


def answer_in_time(session: LlmSession, body: Any, seconds: float) -> None:
    with session.stream(CHAT, body, time.monotonic() + seconds) as parts:
        for _ in parts:
            pass


def answer_and_kill(
    session: LlmSession, number: signal.Signals = signal.SIGKILL
) -> None:
    """Kill the engine after the first event."""
    with session.stream(COMPLETIONS, long(), time.monotonic() + WAIT_S) as parts:
        for _ in parts:
            engine = session.pid
            if engine is not None:
                os.kill(engine, signal.SIGSTOP)
                os.kill(engine, number)
                os.kill(engine, signal.SIGCONT)


def answer_and_interrupt(session: LlmSession) -> None:
    """Abandon the answer after the first event, on another thread."""
    stream = session.stream(COMPLETIONS, long(), time.monotonic() + WAIT_S)
    with stream as parts:
        next(parts)
        thread = threading.Thread(target=stream.interrupt)
        thread.start()
        thread.join(WAIT_S)
        for _ in parts:
            pass


def long() -> dict[str, Any]:
    return {
        "prompt": "Hello",
        "max_tokens": 400,
        "ignore_eos": True,
    }


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def test_parts_answer_like_the_whole_model(file: Path, tmp_path: Path) -> None:
    first = gguf_files.write_parts(tmp_path, "parts", 3)[0]
    answers = []
    for path in (file, first):
        session = RUNTIME.open(ModelSource(path))
        try:
            answers.append(events(session, CHAT, {**HELLO, "temperature": 0}))
        finally:
            session.close()
    texts = [[event["choices"] for event in answer] for answer in answers]
    assert texts[0] == texts[1]
