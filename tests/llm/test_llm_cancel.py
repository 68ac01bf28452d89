"""Count the tokens that an engine computes after its client has gone.

A stopped engine makes the count exact: everything it sent is read before the connection
is closed. The cache of the next prompt then tells how far it went on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gguf_files
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.llm.client import EngineConnection, EngineLostError
from pocketserve.runtimes.llm.process import SOCKET_NAME
from pocketserve.runtimes.llm.session import RUNTIME, LlmSession
from pocketserve.runtimes.llm.settings import BATCH, COMPLETIONS

pytestmark = pytest.mark.llm
WAIT_S = 120.0
DRAIN_S = 3.0
MAX_MORE_TOKENS = 2
LIMIT = 1500
PROMPT = "abc"
OWNER = "one"


class DrainedError(Exception):
    """All that the stopped engine sent has been read."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[LlmSession]:
    file = gguf_files.write_tiny(tmp_path / "m.gguf", llama__context_length=2048)
    session = RUNTIME.open(ModelSource(file))
    yield session
    session.close()


def drained() -> None:
    raise DrainedError


def generation(prompt: str, tokens: int) -> dict[str, Any]:
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    # Without an h no prompt has the token "th", so that each letter is one token.
    letter = str(gguf_files.tiny_tokens().index("h"))
    body["logit_bias"] = {
        "0": -100,
        "2": -100,
        letter: -100,
    }
    body["stream_options"] = {"include_usage": True}
    return body | {"return_progress": True, "cache_prompt": True}


def whole(session: LlmSession, prompt: str, tokens: int) -> list[Mapping[str, Any]]:
    body = generation(prompt, tokens)
    deadline = time.monotonic() + WAIT_S
    with session.stream(COMPLETIONS, body, deadline, owner=OWNER) as events:
        return list(events)


def text_of(events: list[Mapping[str, Any]]) -> str:
    texts = []
    for event in events:
        for choice in event.get("choices", ()):
            texts.append(choice.get("text") or "")
    return "".join(texts)


def read_and_leave(
    session: LlmSession, body: Mapping[str, Any], events: int
) -> list[Mapping[str, Any]]:
    """Read some events, stop the engine, read the others that it sent, and leave."""
    assert session.pid is not None
    folder = Path(os.readlink(f"/proc/{session.pid}/cwd"))
    connection = EngineConnection(folder, SOCKET_NAME, time.monotonic() + WAIT_S)
    read = []
    try:
        for event in connection.stream(COMPLETIONS, body, drained):
            read.append(event)
            if len(read) == events:
                os.kill(session.pid, signal.SIGSTOP)
                # It may have stopped within a line, whose end can't be awaited.
                threading.Timer(DRAIN_S, connection.interrupt).start()
    except (DrainedError, EngineLostError):
        pass
    finally:
        connection.close()
        os.kill(session.pid, signal.SIGCONT)
    return read


def cached(session: LlmSession, prompt: str) -> int:
    """Return the tokens of a prompt that the engine had computed before."""
    usage = whole(session, prompt, 1)[-1]["usage"]
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def test_an_answer_stops_within_two_tokens(session: LlmSession) -> None:
    text = text_of(whole(session, PROMPT, LIMIT))
    assert len(text) == LIMIT
    cached(session, "x")  # forget it
    events = read_and_leave(session, generation(PROMPT, LIMIT), 20)
    count = len(text_of(events))
    assert 0 < count < LIMIT
    computed = cached(session, PROMPT + text) - len(PROMPT)
    assert count - 1 <= computed <= count + MAX_MORE_TOKENS


def test_a_prompt_stops_within_a_batch(session: LlmSession) -> None:
    prompt = "".join(chr(97 + number % 26) for number in range(LIMIT))
    events = read_and_leave(session, generation(prompt, 1), 2)
    progress = [event["prompt_progress"]["processed"] for event in events]
    assert 0 < len(progress) < LIMIT // BATCH
    assert cached(session, prompt) <= progress[-1] + BATCH
